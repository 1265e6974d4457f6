"""The HTTP messages between receivers, agents, the driver and the command line: JSON bodies, version 1.

Unknown fields are ignored, so that a newer peer can say more. A refusal is HTTP 409 (fenced: ``code = "fenced"``), 400
(bad input), 404, or 503 (not ready yet: try again), always with a :class:`Refusal` body.
"""

from __future__ import annotations

import msgspec

from forebay.values import Block, TopicPartition


class Message(msgspec.Struct, frozen=True, rename={"from_offset": "from", "until_offset": "until"}):
    pass


class Refusal(Message, frozen=True, kw_only=True):
    code: str  # fenced | bad-request | not-found | not-ready | conflict
    message: str


# ---- receivers -------------------------------------------------------------------------------------------------------


class RegisterRequest(Message, frozen=True, kw_only=True):
    """POST /v1/receivers/register. The same ``instance_id`` gets the same epoch again; another one ends the older's claims."""

    stream: str
    receiver_id: str
    host: str
    instance_id: str
    release: str


class RegisterAnswer(Message, frozen=True, kw_only=True):
    epoch: int
    driver_epoch: int
    lineage: int


class PartitionView(Message, frozen=True, kw_only=True):
    """What the journal durably holds of one partition. ``known`` is False until the driver has begun its first life."""

    topic: str
    partition: int
    known: bool
    token: int = 0  # the newest token given for this partition, 0 if none yet
    life: int = 0
    position: int = 0
    leader_epoch: int = -1
    topic_id: str = ""  # "" where the broker can't tell

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class LookRequest(Message, frozen=True, kw_only=True):
    """POST /v1/partitions/look. Changes nothing."""

    receiver_id: str
    epoch: int
    partitions: tuple[TopicPartition, ...]


class LookAnswer(Message, frozen=True, kw_only=True):
    partitions: tuple[PartitionView, ...]


class ClaimAsk(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    known_token: int  # compare-and-set: granted only if it is still the newest


class ClaimRequest(Message, frozen=True, kw_only=True):
    """POST /v1/partitions/claim. A repeated request after a lost answer is refused by the token and looked up again."""

    receiver_id: str
    epoch: int
    claims: tuple[ClaimAsk, ...]


class ClaimGrant(Message, frozen=True, kw_only=True):
    granted: bool
    view: PartitionView  # after the decision: if granted, ``view.token`` is the new token and ``view.position`` where to assign


class ClaimAnswer(Message, frozen=True, kw_only=True):
    claims: tuple[ClaimGrant, ...]  # in the order asked


class Release(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    token: int


class ReleaseRequest(Message, frozen=True, kw_only=True):
    """POST /v1/partitions/release. Ends the tokens named, if they are still current; otherwise changes nothing."""

    receiver_id: str
    epoch: int
    releases: tuple[Release, ...]


class Done(Message, frozen=True, kw_only=True):
    pass


class ReportRequest(Message, frozen=True, kw_only=True):
    """POST /v1/blocks/report. Sealed and stored blocks in order of their sequence; repeated until answered."""

    receiver_id: str
    epoch: int
    blocks: tuple[Block, ...]


class StaleRange(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    reason: str  # token | life | position
    token: int  # the newest token now
    position: int  # the durable position now


class BlockResult(Message, frozen=True, kw_only=True):
    block_id: str
    accepted: bool
    stale: tuple[StaleRange, ...] = ()


class ReportAnswer(Message, frozen=True, kw_only=True):
    results: tuple[BlockResult, ...]  # in the order reported


class Trouble(Message, frozen=True, kw_only=True):
    """POST /v1/partitions/trouble. Kafka no longer continues at the position (rule 8).

    kind: ``out-of-range`` (position below ``low`` or above ``high``), ``truncated`` (a lower leader epoch), ``recreated``
    (another topic id), ``corrupt`` (a record batch failed its checksum at the position).
    """

    receiver_id: str
    epoch: int
    topic: str
    partition: int
    token: int
    kind: str
    position: int
    low: int
    high: int
    topic_id: str = ""
    leader_epoch: int = -1


class TroubleAnswer(Message, frozen=True, kw_only=True):
    """``proceed``: the journal now has a gap or a new life; claim again. Otherwise the partition stays paused."""

    proceed: bool
    message: str


class PartitionStatus(Message, frozen=True, kw_only=True):
    """How one partition stands at its receiver: ``position`` is the next offset it will poll."""

    topic: str
    partition: int
    token: int
    state: str  # claiming | active | paused | trouble
    position: int
    high_watermark: int
    detail: str = ""


class Command(Message, frozen=True, kw_only=True):
    """An order that rides on the answer to a heartbeat, repeated until its ``version`` is acknowledged; idempotent.

    kind: ``stop`` | ``drain`` (receivers), ``reclaim`` (``partitions``: claim these again), ``delete`` (agents: ``blocks``).
    ``driver_epoch`` below the highest one seen: refused by whoever gets it (INV-4).
    """

    version: int
    driver_epoch: int
    kind: str
    partitions: tuple[TopicPartition, ...] = ()
    blocks: tuple[str, ...] = ()


class HeartbeatRequest(Message, frozen=True, kw_only=True):
    """POST /v1/receivers/heartbeat."""

    receiver_id: str
    epoch: int
    state: str  # starting | active | waiting | draining
    detail: str
    acknowledged: int  # the highest command version done
    buffered_bytes: int
    records: int  # taken in since the start
    counters: dict[str, int] = {}  # name → count: e.g. local_copies_given_up, stale_messages_dropped
    partitions: tuple[PartitionStatus, ...] = ()


class HeartbeatAnswer(Message, frozen=True, kw_only=True):
    driver_epoch: int
    commands: tuple[Command, ...] = ()


# ---- agents ----------------------------------------------------------------------------------------------------------


class AgentHeartbeatRequest(Message, frozen=True, kw_only=True):
    """POST /v1/agents/heartbeat."""

    host: str
    url: str
    instance_id: str
    acknowledged: int
    blocks: int
    used_bytes: int
    free_bytes: int


class AgentHeartbeatAnswer(Message, frozen=True, kw_only=True):
    driver_epoch: int
    commands: tuple[Command, ...] = ()
