"""Messages with which a receiver looks up, claims and releases partitions, and reports their faults."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from forebay.messages.message import PARTITIONS_MAX, Message
from forebay.model.values import Gap, LeaderEpoch, Number, Offset, PartitionNumber, Text, Topic, TopicPartition


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
