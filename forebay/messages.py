"""The HTTP messages between receivers, agents, the driver and the command line: JSON bodies, version 1.

Unknown fields are ignored, so that a newer peer can say more. A refusal is HTTP 409 (fenced: ``code = "fenced"``), 400
(bad input), 404, or 503 (not ready yet: try again), always with a :class:`Refusal` body.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from forebay.model.values import (
    Amount,
    Block,
    Gap,
    LeaderEpoch,
    Number,
    NumberOrNone,
    Offset,
    OffsetOrNone,
    PartitionNumber,
    Size,
    Text,
    TimeMs,
    Topic,
    TopicPartition,
)
from forebay.model.wire import WIRE_NAMES

#: entries of a list of partitions, or of what is said of each
PARTITIONS_MAX = 100_000
#: errors, counters and hosts in one heartbeat
HEARTBEAT_ITEMS_MAX = 200


class Message(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    pass


class Refusal(Message, frozen=True, kw_only=True):
    code: str  # fenced | bad-request | not-found | not-ready | conflict
    message: str
    leader: str | None = (
        None  # of a standby, which decides nothing: where the driver at work is, "" if it knows of none
    )


# ---- receivers -------------------------------------------------------------------------------------------------------


class RegisterRequest(Message, frozen=True, kw_only=True):
    """POST /v1/receivers/register. The same ``instance_id`` gets the same epoch again; another one ends the older's claims."""

    stream: Text
    receiver_id: Text
    host: Text
    instance_id: Text
    release: Text


class RegisterAnswer(Message, frozen=True, kw_only=True):
    epoch: Number
    driver_epoch: Number
    timeline: Number
    topics: tuple[str, ...] | None = None  # as HeartbeatAnswer.topics


class PartitionView(Message, frozen=True, kw_only=True):
    """What the journal durably holds of one partition. ``known`` is False until the driver has begun its first life."""

    topic: str
    partition: PartitionNumber
    known: bool
    token: Number = 0  # the newest token given for this partition, 0 if none yet
    incarnation: Number = 0
    position: Offset = 0
    leader_epoch: LeaderEpoch = -1
    topic_id: str = ""  # "" where the broker can't tell
    preceding_gap: Gap | None = None  # ends at ``position``: to be repeated in the metadata of the next range

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class LookupRequest(Message, frozen=True, kw_only=True):
    """POST /v1/partitions/look. Changes nothing."""

    receiver_id: Text
    epoch: Number
    partitions: Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)]


class LookupAnswer(Message, frozen=True, kw_only=True):
    partitions: tuple[PartitionView, ...]


class ClaimAsk(Message, frozen=True, kw_only=True):
    topic: Topic
    partition: PartitionNumber
    known_token: Number  # compare-and-set: granted only if it is still the newest


class ClaimRequest(Message, frozen=True, kw_only=True):
    """POST /v1/partitions/claim. A repeated request after a lost answer is refused by the token and looked up again."""

    receiver_id: Text
    epoch: Number
    claims: Annotated[tuple[ClaimAsk, ...], Meta(max_length=PARTITIONS_MAX)]
    number: Number = 0  # of this request among the process's claims, from 1; 0: an older release


class ClaimGrant(Message, frozen=True, kw_only=True):
    granted: bool
    view: PartitionView  # after the decision: if granted, ``view.token`` is the new token and ``view.position`` where to assign


class ClaimAnswer(Message, frozen=True, kw_only=True):
    claims: tuple[ClaimGrant, ...]  # in the order asked


class Release(Message, frozen=True, kw_only=True):
    topic: Topic
    partition: PartitionNumber
    token: Number


class ReleaseRequest(Message, frozen=True, kw_only=True):
    """POST /v1/partitions/release. Ends the tokens named, if they are still current; otherwise changes nothing."""

    receiver_id: Text
    epoch: Number
    releases: Annotated[tuple[Release, ...], Meta(max_length=PARTITIONS_MAX)]


class Done(Message, frozen=True, kw_only=True):
    pass


class ReportRequest(Message, frozen=True, kw_only=True):
    """POST /v1/blocks/report. Sealed and stored blocks in order of their sequence; repeated until answered."""

    receiver_id: Text
    epoch: Number
    blocks: tuple[Block, ...]


class StaleRange(Message, frozen=True, kw_only=True):
    topic: str
    partition: PartitionNumber
    reason: str  # token | life | position | copy (the second copy lies where none was sent)
    token: Number  # the newest token now
    position: Offset  # the durable position now


class BlockResult(Message, frozen=True, kw_only=True):
    block_id: str
    accepted: bool
    stale: tuple[StaleRange, ...] = ()


class ReportAnswer(Message, frozen=True, kw_only=True):
    results: tuple[BlockResult, ...]  # in the order reported


class Fault(Message, frozen=True, kw_only=True):
    """POST /v1/partitions/trouble. Kafka no longer continues at the position (rule 8).

    kind: ``out-of-range`` (position below ``low`` or above ``high``), ``truncated`` (a lower leader epoch), ``recreated``
    (another topic id), ``corrupt`` (a record batch failed its checksum at the position).
    """

    receiver_id: Text
    epoch: Number
    topic: Topic
    partition: PartitionNumber
    token: Number
    kind: Annotated[str, Meta(pattern="^(out-of-range|truncated|recreated|corrupt)$")]
    position: Offset
    low: Offset
    high: Offset
    topic_id: Text = ""
    leader_epoch: LeaderEpoch = -1


class FaultAnswer(Message, frozen=True, kw_only=True):
    """``proceed``: the journal now has a gap or a new life; claim again. Otherwise the partition stays paused."""

    proceed: bool
    message: str


class PartitionStatus(Message, frozen=True, kw_only=True):
    """How one partition stands at its receiver: ``position`` is the next offset it will poll."""

    topic: Topic
    partition: PartitionNumber
    token: Number
    state: Text  # claiming | active | paused | trouble
    position: OffsetOrNone
    high_watermark: OffsetOrNone
    detail: Text = ""
    rate: Amount = 0.0  # records/s that it is held to, by a setting or the driver's word; 0: none


class PartitionRate(Message, frozen=True, kw_only=True):
    topic: str
    partition: PartitionNumber
    records_per_second: Amount


class Rates(Message, frozen=True, kw_only=True):
    """What a receiver may take in: in all, and of each partition named."""

    records_per_second: Amount
    partitions: tuple[PartitionRate, ...] = ()


class Command(Message, frozen=True, kw_only=True):
    """An order that rides on the answer to a heartbeat, repeated until its ``version`` is acknowledged; idempotent.

    kind: ``stop`` | ``drain`` (receivers), ``reclaim`` (``partitions``: claim these again), ``rate`` (``rates``: take in no more;
    a newer one replaces it), ``delete`` (agents: ``blocks``),
    ``start-receiver`` | ``stop-receiver`` (it drains) | ``kill-receiver`` (agents: ``receiver_id``). The last three are not
    acknowledged: they are repeated until the agent's heartbeat says that it is so. A start is done once for its version,
    the others only to a start that is not newer than they are.
    ``driver_epoch`` below the highest one seen: refused by whoever gets it (INV-4).
    """

    version: Number
    driver_epoch: Number
    kind: str
    partitions: tuple[TopicPartition, ...] = ()
    blocks: tuple[str, ...] = ()
    receiver_id: str = ""
    rates: Rates | None = None


class Holding(Message, frozen=True, kw_only=True):
    """A token under which the receiver may yet write: it takes records in under it, or has some that are not in the WAL."""

    topic: Topic
    partition: PartitionNumber
    token: Number


class ErrorNote(Message, frozen=True, kw_only=True):
    """Something that went wrong and did not end the process: how often, and how long ago the last time was."""

    words: Text
    count: Number
    seconds_ago: Amount


class HeartbeatRequest(Message, frozen=True, kw_only=True):
    """POST /v1/receivers/heartbeat.

    ``holding``: all that it may yet write under. Once a claim is among ``claims_done`` and its token not among ``holding``,
    it never will be again: so a heartbeat that is late or repeated says nothing wrong.
    """

    receiver_id: Text
    epoch: Number
    state: Text  # starting | active | waiting | draining
    detail: Text
    acknowledged: Number  # the highest command version done
    buffered_bytes: Size
    records: Number  # taken in since the start
    counters: Annotated[
        dict[Text, Number], Meta(max_length=HEARTBEAT_ITEMS_MAX)
    ] = {}  # name → count: e.g. local_copies_given_up, stale_messages_dropped
    partitions: Annotated[tuple[PartitionStatus, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    claims_done: NumberOrNone = (
        -1
    )  # its claims up to this number are answered or given up; -1: an older release, which can't tell
    holding: Annotated[tuple[Holding, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    errors: Annotated[
        tuple[ErrorNote, ...], Meta(max_length=HEARTBEAT_ITEMS_MAX)
    ] = ()  # the last few that did not end it, the latest last
    rate: Amount = 0.0  # records/s that it is held to, by a setting or the driver's word; 0: none
    replica_host: Text = ""  # where its second copies go; "": nowhere yet
    refusing_hosts: Annotated[
        tuple[Text, ...], Meta(max_length=HEARTBEAT_ITEMS_MAX)
    ] = ()  # that lately did not take a second copy of it
    release: Text = ""  # of its software


class ReplicaHost(Message, frozen=True, kw_only=True):
    """Where a receiver puts its second copies: a host, and the url of its agent."""

    host: str
    url: str


class HeartbeatAnswer(Message, frozen=True, kw_only=True):
    """``second_host``: where second copies go from now on; None: no host can take them, or none are wanted.

    ``topics``: the topics that ``kafka.pattern`` matches now; the receiver subscribes to exactly these. None: the
    receiver subscribes to ``kafka.topics`` of its own settings, or keeps what it was told before."""

    driver_epoch: Number
    commands: tuple[Command, ...] = ()
    replica_host: ReplicaHost | None = None
    topics: tuple[str, ...] | None = None


# ---- agents ----------------------------------------------------------------------------------------------------------


class ReceiverProcess(Message, frozen=True, kw_only=True):
    """A managed receiver at its agent. ``driver_epoch`` and ``version``: of the command that started it."""

    receiver_id: Text
    driver_epoch: Number
    version: Number
    running: bool
    pid: Number = 0  # 0 unless it runs
    exit_code: int | None = (
        None  # negative: the signal that ended it; None while it runs, or if it could not be started
    )
    last_words: Text = ""  # of one that ended: the last line that it wrote


class AgentHeartbeatRequest(Message, frozen=True, kw_only=True):
    """POST /v1/agents/heartbeat."""

    #: active | draining (it is about to end: tasks are to look elsewhere for its blocks, until it is active again)
    state: str = "active"

    host: str
    url: str
    instance_id: str
    acknowledged: Number
    blocks: Number
    used_bytes: Size
    free_bytes: Size
    #: ids of blocks that have lain there for a while, so that those which nobody will ever report can be told to go
    old_blocks: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()  # key=value
    capacity: Number = 0  # managed receivers that the host may run now
    receivers: tuple[ReceiverProcess, ...] = ()  # those that run, and how the last start of each other one ended
    load: Amount = 0.0  # processes that ran or waited in the last minute, by processor
    requests: Number = 0  # that it is answering now: blocks on their way, above all
    short_bytes: Size = 0  # by how much its blocks pass the quota, or the share of the filesystem that is to stay free
    #: ids of the blocks that it was given copies of, the newest last; None: as in the heartbeat before
    copies: tuple[str, ...] | None = None
    release: str = ""  # of its software
    #: ids of blocks of which it set a damaged copy aside, the first ones; and how many there are
    damaged: tuple[str, ...] = ()
    damaged_blocks: int = 0


class AgentHeartbeatAnswer(Message, frozen=True, kw_only=True):
    driver_epoch: Number
    commands: tuple[Command, ...] = ()


# ---- queries over the intake -----------------------------------------------------------------------------------------


class CursorPlace(Message, frozen=True, kw_only=True):
    """Up to here a cursor has finished a partition: the offset is the next one to read."""

    topic: Topic
    partition: PartitionNumber
    incarnation: Number
    offset: Offset

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class OpenCursorRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/open. ``user``, one process, reads by ``cursor`` from ``places`` on; a name that is not known makes it.
    Refused (in-use) while another user is at work. The same user gets the same epoch again; another one ends the older's.
    ``left``: partitions that it does not read, though they may be held for it; one that it names in neither way is held from its
    beginning. ``key``: random, known to the user alone, who must have it to move or close the cursor."""

    cursor: Text
    user: Text
    places: Annotated[tuple[CursorPlace, ...], Meta(max_length=PARTITIONS_MAX)]
    left: Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    key: Text = ""


class OpenCursorAnswer(Message, frozen=True, kw_only=True):
    """``ended``: why the driver had forgotten the cursor before; "" if it had not, or knows of none."""

    epoch: Number
    ended: str = ""


class MoveCursorRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/move. What lies before ``places`` is finished for good; without any: the user is at work still. Refused
    (fenced) when another one has opened the cursor, and (not-found) when it is gone."""

    cursor: Text
    epoch: Number
    places: Annotated[tuple[CursorPlace, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    left: Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    key: Text = ""


class CloseCursorRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/close. The user ends: the next one need not wait. What the cursor holds stays held, but if its query could
    not begin at all (``forget``): then nobody comes back to it."""

    cursor: Text
    epoch: Number
    forget: bool = False
    key: Text = ""


class IncarnationView(Message, frozen=True, kw_only=True, rename={**WIRE_NAMES, "number": "life"}):
    """Offsets ``[start, end)`` of one life; ``end`` None: it lasts. ``topic_id``: "" where the broker can't tell."""

    number: Number
    start: Offset
    topic_id: str = ""
    end: Offset | None = None


class IntakePartition(Message, frozen=True, kw_only=True):
    """``position``: the next offset to be taken in, of the newest of ``lives``, which are in order."""

    topic: str
    partition: PartitionNumber
    position: Offset
    incarnations: tuple[IncarnationView, ...]

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class IntakeRequest(Message, frozen=True, kw_only=True):
    """GET /v1/cursors/intake."""


class IntakeAnswer(Message, frozen=True, kw_only=True):
    """What is taken in, and how blocks are read. ``storage``: as in forebay.toml, where secrets are refused. ``kafka``: options
    without any that could be one. ``groups``: the stream's own consumer groups."""

    stream: str
    partitions: tuple[IntakePartition, ...]
    wal_url: str
    storage: dict[str, dict[str, Any]] = {}
    key_file: str | None = None
    blocks_directory: str | None = None
    agent_urls: dict[str, str] = {}
    kafka: dict[str, str] = {}
    groups: tuple[str, ...] = ()
    headers: bool = False


class EarliestRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/earliest. Of each partition: from where on the WAL holds all, but for gaps, up to the position."""

    partitions: Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)]


class EarliestAnswer(Message, frozen=True, kw_only=True):
    places: tuple[CursorPlace, ...]


class IncarnationSpan(Message, frozen=True, kw_only=True):
    """Offsets ``[from, until)`` of one partition in one life."""

    topic: Topic
    partition: PartitionNumber
    incarnation: Number
    from_offset: Offset
    until_offset: Offset

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class RecordedGap(Message, frozen=True, kw_only=True):
    """Offsets that Kafka lost before they were taken in, as somebody decided."""

    topic: str
    partition: PartitionNumber
    incarnation: Number
    from_offset: Offset
    until_offset: Offset
    cause: str


class BlocksRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/blocks. The blocks that hold records of ``spans``: as many as one answer takes."""

    spans: Annotated[tuple[IncarnationSpan, ...], Meta(max_length=PARTITIONS_MAX)]


class BlocksAnswer(Message, frozen=True, kw_only=True):
    """``reached``: for each span asked for, up to where the answer goes: what no block here has up to there, the WAL has not.
    ``copies``: block id → hosts that were given a copy of it. ``lost``: ranges of these blocks, by their labels, whose loss a
    person accepted → who, and why."""

    blocks: tuple[Block, ...]
    reached: tuple[int, ...]
    gaps: tuple[RecordedGap, ...] = ()
    copies: dict[str, tuple[str, ...]] = {}
    lost: dict[str, str] = {}


class SpanRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/span. What blocks hold of offsets ``[from, until)``, which Kafka has lost. An offset is of the newest
    life that has it, of the topic with this id ("": of any)."""

    topic: Topic
    partition: PartitionNumber
    from_offset: Offset
    until_offset: Offset
    topic_id: Text = ""

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class SpanAnswer(Message, frozen=True, kw_only=True):
    """``spans``: the parts of it that were taken in, in the order of offsets; ``found``: of these, as far as one answer goes.
    ``intake``: its only partition is the one that was asked for, if it was ever taken in."""

    intake: IntakeAnswer
    spans: tuple[IncarnationSpan, ...]
    found: BlocksAnswer


class TimedSpan(Message, frozen=True, kw_only=True):
    """The first record of ``span`` at or after ``time_ms`` is wanted."""

    span: IncarnationSpan
    time_ms: TimeMs


class TimesRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/times. For each of ``wanted``: the first block that may hold that record, as far as one answer looks."""

    wanted: Annotated[tuple[TimedSpan, ...], Meta(max_length=PARTITIONS_MAX)]


class TimedBlock(Message, frozen=True, kw_only=True):
    """``block``: holds a record of that time or a later one, in its range that begins at ``reached`` or before; None: no block up
    to ``reached`` does. What lies before ``reached`` need not be looked at."""

    reached: Offset
    block: Block | None = None


class TimesAnswer(Message, frozen=True, kw_only=True):
    found: tuple[TimedBlock, ...]


class DropCursorRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/drop-cursor. Nothing is held for it any more; its user, if one is at work, ends."""

    cursor: Text
    cause: str = ""  # who drops it, and why


# ---- people and their tools ------------------------------------------------------------------------------------------


class TrackedPartition(Message, frozen=True, kw_only=True):
    """One partition as the journal holds it, with what its receiver last said of it."""

    topic: str
    partition: int
    incarnation: int
    topic_id: str
    position: int  # taken in
    completed: int  # up to here all batches are completed
    high_watermark: int  # the log's end in Kafka; -1 if nobody told yet
    receiver_id: str  # "" if unclaimed
    token: int
    state: str  # as PartitionStatus.state; "unclaimed"
    fault: str = ""  # what must be decided, with the command that does it
    foreign: str = ""  # where somebody else has set the group's offset, which changes nothing
    rate: float = 0.0  # as PartitionStatus.rate
    end_age_seconds: float = -1.0  # since high_watermark was read; -1: not known
    lag: int | None = None  # offsets that are not taken in; None: not known, since the end is too old


class TrackedReceiver(Message, frozen=True, kw_only=True):
    receiver_id: str
    epoch: int
    host: str
    state: str  # registered | starting | active | waiting | draining | lost | fenced
    detail: str
    silent_seconds: float  # since its last heartbeat, -1 before the first
    buffered_bytes: int
    records: int
    counters: dict[str, int] = {}
    errors: tuple[ErrorNote, ...] = ()
    rate: float = 0.0  # as HeartbeatRequest.rate
    release: str = ""  # of its software; "": not heard yet


class ManagedReceiver(Message, frozen=True, kw_only=True):
    """A receiver that the driver keeps by an agent."""

    receiver_id: str
    state: str  # scheduled | active | draining | stopped | failed
    host: str  # where it runs or is to be started; "" while it has no place
    pid: int = 0
    restarts: int = 0  # since this driver began to lead
    exit_code: int | None = None  # of its last end; negative: the signal
    detail: str = ""  # what it waits for, why it ended
    moves_to: str = ""  # the host where it starts when it has drained here
    fault: str = ""  # what a person must do


class TrackedAgent(Message, frozen=True, kw_only=True):
    host: str
    url: str
    silent_seconds: float
    blocks: int
    used_bytes: int
    free_bytes: int
    labels: tuple[str, ...] = ()
    capacity: int = 0  # managed receivers that it may run
    state: str = "active"  # as AgentHeartbeatRequest.state
    load: float = 0.0
    requests: int = 0
    copies: int = 0  # of its blocks: those that it was given
    release: str = ""  # of its software
    damaged: tuple[str, ...] = ()  # as AgentHeartbeatRequest.damaged
    damaged_blocks: int = 0


class TrackedBatch(Message, frozen=True, kw_only=True):
    batch_id: int
    number: int  # its place in the sequence of its lineage, from 1
    time_ms: int
    state: str  # queued | running | failing | failed | unreadable | completed
    blocks: int
    records: int
    attempts: int
    detail: str = ""
    replay: int = 0  # the number of the replay in which it runs again; 0: in none
    written: tuple[str, ...] = ()  # what its job's output helpers wrote and skipped, in words
    outputs: tuple[str, ...] = ()  # of several, those that are done


class TrackedReplay(Message, frozen=True, kw_only=True):
    """A replay that is under way: batches ``first_id`` to ``last_id`` run again, ``completed`` of ``batches`` are done."""

    replay: int
    first_id: int
    last_id: int
    batches: int
    completed: int
    begun_ms: int
    cause: str


class TrackedListener(Message, frozen=True, kw_only=True):
    """Who is told what happens. ``dropped``: events that did not fit its queue, or that it did not take."""

    name: str
    delivered: int
    waiting: int
    dropped: int
    failures: int = 0
    last_error: str = ""


class TrackedCursor(Message, frozen=True, kw_only=True):
    """A query's cursor. ``behind``: offsets between it and the positions, of the newest lives. ``opened_ms``: since when there is
    one by this name; 0 of one that ended."""

    cursor: str
    user: str
    state: str  # at work | silent | expired | dropped
    silent_seconds: float  # since its user was heard; of an ended one: since then
    behind: int
    detail: str = ""
    places: tuple[CursorPlace, ...] = ()
    opened_ms: int = 0


class Problem(Message, frozen=True, kw_only=True):
    """Something that does not mend itself, or has not for too long. ``kind``: kafka | source | wal | journal |
    partitions-without-receiver | receiver-gone | receiver-waiting | receiver-not-running | receiver-without-host | agent-gone |
    partition | batch-unreadable | job | cursor | driver. ``command``: what to do, "" where ``cause`` names it. ``seconds``: since
    when, as far as that is known."""

    kind: str
    cause: str
    command: str = ""
    seconds: float = 0.0


class StatusAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/status."""

    stream: str
    release: str
    timeline: int
    driver_epoch: int
    state: str  # waiting (says for what) | running | stopping | failed
    detail: str
    topic_ids_known: bool
    waiting_blocks: int
    waiting_records: int
    batches_completed: int
    records_completed: int
    tiers: dict[str, int] = {}  # ranges read by tier: local, agent, wal
    requests: dict[str, int] = {}  # the driver's own to remote stores: journal_put, wal_get, …, and seconds counted
    partitions: tuple[TrackedPartition, ...] = ()
    receivers: tuple[TrackedReceiver, ...] = ()
    agents: tuple[TrackedAgent, ...] = ()
    batches: tuple[TrackedBatch, ...] = ()  # unfinished ones, those next in a replay, and the last few completed
    replay: TrackedReplay | None = None
    managed: tuple[ManagedReceiver, ...] = ()  # in the order of their numbers; none where receivers are static
    backpressure: bool = False
    rate: float = 0.0  # records/s that the job was seen to take; 0: not learned (yet)
    listeners: tuple[TrackedListener, ...] = ()
    cursors: tuple[TrackedCursor, ...] = ()  # those at work or silent, and the last that ended
    held_for_cursors: int = 0  # bytes of WAL segments that nothing but cursors keeps
    problems: tuple[Problem, ...] = ()  # `forebay status` exits with 1 if there is one
    pending: tuple[Problem, ...] = ()  # would be problems, were their grace over


class PartitionProgress(Message, frozen=True, kw_only=True):
    """How far a partition is, and what the journal tells of the rest."""

    topic: str
    partition: int
    incarnation: int
    position: int
    completed: int
    record_bytes: float  # the mean of the records taken in last, of keys and values; 0: none is known
    waiting_since_ms: int  # of the first block that is not completed its newest record; -1: none


class LagAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/lag. The driver's share: where Kafka's logs end, Kafka is to be asked."""

    partitions: tuple[PartitionProgress, ...]


class AcceptGapRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/accept-gap. The range must be the one that status shows: nobody accepts a loss unseen."""

    topic: Topic
    partition: PartitionNumber
    from_offset: Offset
    until_offset: Offset
    cause: str = ""  # who accepts it, and why


class ResetRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/reset. A new life of a partition, or of all of a topic, that begins elsewhere. ``to``: earliest, latest,
    time (``value``: milliseconds), offset (``value``, of one partition). Without ``apply`` nothing is changed."""

    topic: Topic
    partition: NumberOrNone = -1  # -1: all that the stream has of the topic
    to: Text
    value: TimeMs = 0
    apply: bool = False
    cause: str = ""  # who asks for it, and why


class PlannedReset(Message, frozen=True, kw_only=True):
    """``life``: the new one, which begins at ``start``; the one before ends at ``position``."""

    topic: str
    partition: int
    incarnation: int
    position: int
    start: int


class ResetAnswer(Message, frozen=True, kw_only=True):
    done: bool
    partitions: tuple[PlannedReset, ...]


class FenceRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/fence. The host of a receiver that ``partition`` waits for is gone for good: its epoch is outdated."""

    topic: Topic
    partition: PartitionNumber
    receiver_id: Text


class AcceptLossRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/accept-loss. ``ranges``: of the batch; none: every range of it that no tier can read."""

    batch_id: Number
    ranges: tuple[str, ...] = ()  # "topic/partition[from, until)"
    cause: str = ""  # who accepts it, and why


class ReplayRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/replay. Runs completed batches again: from ``batch`` on (an id, or a number of its sequence), or, if
    that is 0, from the first one at or after ``time_ms``. Refused if one of them is no longer held, or a replay is under way."""

    batch: Number = 0
    time_ms: TimeMs = 0
    cause: str = ""  # who asks for it, and why


class StopRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/stop. ``drain``: receivers drain first, and all that was taken in is completed, within
    ``timeout_seconds`` (0: as ``driver.stop_timeout`` says). Answered at once; the driver is gone when it no longer answers."""

    drain: bool = False
    timeout_seconds: Amount = 0.0


class ForgetRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/forget. The receiver or the host's agent of this ``name`` is gone on purpose: status no longer waits for
    it. One that comes back is known again."""

    name: Text


class RetryRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/retry. The next attempt at every failed or unreadable batch begins now."""


class OperatorAnswer(Message, frozen=True, kw_only=True):
    message: str
