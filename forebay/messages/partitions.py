"""Messages with which a receiver looks up, claims and releases partitions, and reports their faults."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from forebay.messages.message import PARTITIONS_MAX, Message
from forebay.model.bounds import LeaderEpoch, Number, Offset, PartitionNumber, Text, Topic
from forebay.model.values import Gap, TopicPartition


class PartitionView(Message, frozen=True, kw_only=True):
    """One partition as the journal durably holds it.

    ``known`` is False until the driver has begun the partition's first incarnation.
    """

    topic: str
    partition: PartitionNumber
    known: bool
    token: Number = 0  # the newest token of this partition; 0: none yet
    incarnation: Number = 0
    position: Offset = 0
    leader_epoch: LeaderEpoch = -1
    topic_id: str = ""  # "": the broker does not support topic ids
    #: gap that ends at ``position``; the receiver repeats it in the metadata of the next range
    preceding_gap: Gap | None = None

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class LookupRequest(Message, frozen=True, kw_only=True):
    """POST /v1/partitions/look. Returns the state of partitions and changes nothing."""

    receiver_id: Text
    epoch: Number
    partitions: Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)]


class LookupAnswer(Message, frozen=True, kw_only=True):
    """Answer to :class:`LookupRequest`."""

    partitions: tuple[PartitionView, ...]


class ClaimAsk(Message, frozen=True, kw_only=True):
    """Claim of one partition, by compare-and-set."""

    topic: Topic
    partition: PartitionNumber
    known_token: Number  # the driver grants the claim only if this is still the newest token


class ClaimRequest(Message, frozen=True, kw_only=True):
    """POST /v1/partitions/claim.

    If an answer is lost and the receiver repeats the request, the driver refuses the old token. The receiver then looks the
    partitions up again.
    """

    receiver_id: Text
    epoch: Number
    claims: Annotated[tuple[ClaimAsk, ...], Meta(max_length=PARTITIONS_MAX)]
    number: Number = 0  # number of this request among the process's claims, from 1; 0: an older release


class ClaimGrant(Message, frozen=True, kw_only=True):
    """Decision on one claim.

    ``view`` is the partition after the decision. If the claim is granted, ``view.token`` is the new token and
    ``view.position`` is the offset at which the receiver assigns the partition.
    """

    granted: bool
    view: PartitionView


class ClaimAnswer(Message, frozen=True, kw_only=True):
    """Answer to :class:`ClaimRequest`."""

    claims: tuple[ClaimGrant, ...]  # in the order of the request


class Release(Message, frozen=True, kw_only=True):
    """A claim to end."""

    topic: Topic
    partition: PartitionNumber
    token: Number


class ReleaseRequest(Message, frozen=True, kw_only=True):
    """POST /v1/partitions/release. Ends each token that is still current, and ignores the others."""

    receiver_id: Text
    epoch: Number
    releases: Annotated[tuple[Release, ...], Meta(max_length=PARTITIONS_MAX)]


class Fault(Message, frozen=True, kw_only=True):
    """POST /v1/partitions/trouble. Reports that Kafka's log does not continue at the position (rule 8).

    ``kind``: ``out-of-range`` (the position is below ``low`` or above ``high``), ``truncated`` (the leader epoch is lower),
    ``recreated`` (the topic id is another one) or ``corrupt`` (a record batch at the position failed its checksum).
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
    """Answer to :class:`Fault`.

    ``proceed``: the journal now has a gap or a new incarnation, and the receiver claims the partition again. Otherwise the
    partition stays paused.
    """

    proceed: bool
    message: str
