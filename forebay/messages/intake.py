"""Messages with which a query over the intake finds the blocks that it reads."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from forebay.messages.message import PARTITIONS_MAX, Message
from forebay.model.values import Block, Number, Offset, PartitionNumber, Text, TimeMs, Topic, TopicPartition
from forebay.model.wire import WIRE_NAMES


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
    storage: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    key_file: str | None = None
    blocks_directory: str | None = None
    agent_urls: dict[str, str] = msgspec.field(default_factory=dict)
    kafka: dict[str, str] = msgspec.field(default_factory=dict)
    groups: tuple[str, ...] = ()
    headers: bool = False


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
    copies: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    lost: dict[str, str] = msgspec.field(default_factory=dict)


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
