"""Search for the blocks of a query over the intake."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from forebay.messages.message import PARTITIONS_MAX, Message
from forebay.model.bounds import LeaderEpoch, Number, Offset, PartitionNumber, Text, TimeMs, Topic
from forebay.model.values import Block, TopicPartition
from forebay.model.wire import WIRE_NAMES


class IncarnationView(Message, frozen=True, kw_only=True, rename={**WIRE_NAMES, "number": "life"}):
    """One incarnation of a partition: its offsets ``[start, end)``.

    ``end`` is None for the current incarnation. ``topic_id`` is "" if the broker does not support topic ids. ``first_epoch``:
    leader epoch at the end of the first range that was taken in. ``last_epoch``: of the last record that was taken in before the
    incarnation ended. -1: not known.
    """

    number: Number
    start: Offset
    topic_id: str = ""
    end: Offset | None = None
    first_epoch: LeaderEpoch = -1
    last_epoch: LeaderEpoch = -1


class IntakePartition(Message, frozen=True, kw_only=True):
    """One partition of the intake: its incarnations in order, and the next offset of the newest one to take in (``position``).

    ``leader_epoch``: of the last record before ``position``; -1 if it is not known, or the driver is of an older release.
    """

    topic: str
    partition: PartitionNumber
    position: Offset
    incarnations: tuple[IncarnationView, ...]
    leader_epoch: LeaderEpoch = -1

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class IntakeRequest(Message, frozen=True, kw_only=True):
    """GET /v1/cursors/intake. Returns the partitions of the intake, and how to read its blocks."""


class IntakeAnswer(Message, frozen=True, kw_only=True):
    """Answer to :class:`IntakeRequest`.

    ``storage`` is the section of forebay.toml, which refuses secrets. ``kafka`` has only options that can't be secrets.
    ``groups`` are the stream's own consumer groups.
    """

    stream: str
    partitions: tuple[IntakePartition, ...]
    wal_url: str
    storage: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    key_file: str | None = None
    blocks_directory: str | None = None
    agent_urls: dict[str, str] = msgspec.field(default_factory=dict)
    kafka: dict[str, str] = msgspec.field(default_factory=dict)
    groups: tuple[str, ...] = ()
    headers: bool = False


class IncarnationSpan(Message, frozen=True, kw_only=True):
    """Offsets ``[from, until)`` of one incarnation of a partition."""

    topic: Topic
    partition: PartitionNumber
    incarnation: Number
    from_offset: Offset
    until_offset: Offset

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class RecordedGap(Message, frozen=True, kw_only=True):
    """Offsets that Kafka lost before they were taken in, by the decision of an operator or of ``kafka.on_gap``."""

    topic: str
    partition: PartitionNumber
    incarnation: Number
    from_offset: Offset
    until_offset: Offset
    cause: str


class BlocksRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/blocks. Returns the blocks that hold records of ``spans``, as many as fit one answer."""

    spans: Annotated[tuple[IncarnationSpan, ...], Meta(max_length=PARTITIONS_MAX)]


class BlocksAnswer(Message, frozen=True, kw_only=True):
    """Answer to :class:`BlocksRequest`.

    ``reached``: for each span, the offset up to which the answer is complete. The WAL does not hold records before it that are in
    none of ``blocks``. ``copies``: block id → hosts with a cached copy. ``lost``: label of a range of these blocks whose loss an
    operator accepted → the operator and the reason.
    """

    blocks: tuple[Block, ...]
    reached: tuple[int, ...]
    gaps: tuple[RecordedGap, ...] = ()
    copies: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    lost: dict[str, str] = msgspec.field(default_factory=dict)


class SpanRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/span. Returns the blocks that hold offsets ``[from, until)``, which Kafka has lost.

    An offset belongs to the newest incarnation that has it, of the topic with this id ("": with any id). ``leader_epoch``: of
    the leader under which the offsets were chosen, -1 if unknown. If a later leader has cut the log back since, they belong to
    what was taken in before that.
    """

    topic: Topic
    partition: PartitionNumber
    from_offset: Offset
    until_offset: Offset
    topic_id: Text = ""
    leader_epoch: LeaderEpoch = -1

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class SpanAnswer(Message, frozen=True, kw_only=True):
    """Answer to :class:`SpanRequest`.

    ``spans``: the parts of the range that were taken in, in the order of offsets. ``found``: their blocks, as many as fit one
    answer. ``intake`` has only the partition of the request, or none if it was never taken in.
    """

    intake: IntakeAnswer
    spans: tuple[IncarnationSpan, ...]
    found: BlocksAnswer


class TimedSpan(Message, frozen=True, kw_only=True):
    """A search for the first record of ``span`` at or after ``time_ms``."""

    span: IncarnationSpan
    time_ms: TimeMs


class TimesRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/times. Returns for each of ``wanted`` the first block that may hold the record.

    A search that exceeds the limit of one answer goes on with the next request.
    """

    wanted: Annotated[tuple[TimedSpan, ...], Meta(max_length=PARTITIONS_MAX)]


class TimedBlock(Message, frozen=True, kw_only=True):
    """Result of one search by time.

    ``block`` holds a record of that time or later, in its range that begins at ``reached`` or before. None: no block up to
    ``reached`` does. Offsets before ``reached`` need no further search.
    """

    reached: Offset
    block: Block | None = None


class TimesAnswer(Message, frozen=True, kw_only=True):
    """Answer to :class:`TimesRequest`."""

    found: tuple[TimedBlock, ...]  # in the order of the request
