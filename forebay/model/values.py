"""The values that all parts share. Each is checked when made; none does any I/O.

Numbers that a driver gives out (receiver epochs, tokens, batch ids, journal epochs) carry the journal's lineage in
their high part, so that a rebuilt journal can never give out a number that an older lineage gave (design: *lineage*).

A driver holds a block's values by the hundred thousand, and they hold nothing that could hold them: the cyclic garbage
collector is kept from them (``gc=False``), or each of its full rounds would stop the driver to look through all.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from forebay.model.wire import WIRE_NAMES

#: low bits left to a lineage for its own counting; lineage << 40 stays exact in a JSON number up to lineage 8191
TIMELINE_SHIFT = 40

#: the SHA-256 of bytes
Sha256 = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

# ---- bounds of numbers: checked by whatever decodes a message, a frame, an event or a snapshot --------------------------

#: Kafka's offsets are signed 64-bit numbers; the range after the last record ends at its offset + 1
OFFSET_MAX = 2**63 - 1
#: Kafka's leader epochs and partitions are signed 32-bit numbers
INT32_MAX = 2**31 - 1
#: numbers that a driver gives out, and counters: below it, a JSON number is exact
NUMBER_MAX = 2**53 - 1
#: a field's number in place of one outside its bounds, in a journal that an older release wrote (``driver.journal.bounds``)
INSTEAD = "instead"

#: characters of a text that a process says of itself, or of what it met
TEXT_LENGTH_MAX = 1_000
#: of a topic's name in Kafka
TOPIC_LENGTH_MAX = 249

Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
#: an offset, or -1 where there is none
OffsetOrNone = Annotated[int, Meta(ge=-1, le=OFFSET_MAX)]
#: -1 where the broker does not say
LeaderEpoch = Annotated[int, Meta(ge=-1, le=INT32_MAX, extra={INSTEAD: -1})]
PartitionNumber = Annotated[int, Meta(ge=0, le=INT32_MAX)]
#: epochs, tokens, batch ids, and the numbers that a process counts its requests and blocks by
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
#: a number, or -1 where there is none
NumberOrNone = Annotated[int, Meta(ge=-1, le=NUMBER_MAX)]
#: per second, or a load: finite sums of them stay finite
Amount = Annotated[float, Meta(ge=0, le=1e15)]
#: records of one block: far more than a payload of 2 GiB can hold
RecordCount = Annotated[int, Meta(ge=0, le=INT32_MAX)]
#: milliseconds since 1970, as Kafka's timestamps
TimeMs = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
#: bytes
Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]
#: a byte's place in a file, and the length of a frame, which is below 2 GiB + 17 MiB
FilePlace = Annotated[int, Meta(ge=0, le=2**48)]
FrameLength = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Text = Annotated[str, Meta(max_length=TEXT_LENGTH_MAX)]
Topic = Annotated[str, Meta(max_length=TOPIC_LENGTH_MAX)]
Checksum = Annotated[int, Meta(ge=0, le=2**32 - 1)]


#: receivers' ids that begin so belong to the driver and the tools, and are refused from the wire
RESERVED_PREFIX = "forebay-"


def is_reserved(receiver_id: str) -> bool:
    return receiver_id.startswith(RESERVED_PREFIX)


def managed_id(stream: str, ordinal: int) -> str:
    """The id of the driver's own receiver ``ordinal`` of ``stream``, from 0."""
    return f"{stream}-r{ordinal}"


def managed_ordinal(stream: str, receiver_id: str) -> int | None:
    """The ordinal in an id that :func:`managed_id` makes for ``stream``; None for any other id."""
    found = re.fullmatch(r"(.+)-r(0|[1-9][0-9]{0,4})", receiver_id)
    return int(found[2]) if found is not None and found[1] == stream else None


def numbered(timeline: int, count: int) -> int:
    """The ``count``-th number of ``lineage``. Raises ValueError outside 1 ≤ lineage < 8192, 0 ≤ count < 2**40."""
    if not 1 <= timeline < 8192 or not 0 <= count < 1 << TIMELINE_SHIFT:
        raise ValueError(f"lineage {timeline}, count {count}: out of range")
    return timeline << TIMELINE_SHIFT | count


def timeline_of(number: int) -> int:
    return number >> TIMELINE_SHIFT


def count_of(number: int) -> int:
    return number & ((1 << TIMELINE_SHIFT) - 1)


def check_name(kind: str, name: str) -> str:
    """Returns ``name`` if it can be part of a path: 1 to 64 of ``A-Za-z0-9_.-``, the first a letter or digit.

    Raises ValueError otherwise. Streams, receivers and hosts pass through here, so no name can climb out of a directory.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{kind} {name!r}: allowed are 1 to 64 letters, digits, '.', '_' and '-', the first a letter or digit"
        )
    return name


class TopicPartition(msgspec.Struct, frozen=True, order=True):
    topic: Topic
    partition: PartitionNumber

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Gap(msgspec.Struct, frozen=True, gc=False, rename=WIRE_NAMES):
    """Offsets ``[from, until)`` that Kafka lost before they were taken in. Compaction and markers are never a gap."""

    from_offset: Offset
    until_offset: Offset
    cause: Text

    def __post_init__(self) -> None:
        if not 0 <= self.from_offset < self.until_offset <= OFFSET_MAX:
            raise ValueError(
                f"gap [{self.from_offset}, {self.until_offset}): from must be below until, which is {OFFSET_MAX} at most"
            )


class OffsetRange(msgspec.Struct, frozen=True, gc=False, rename=WIRE_NAMES):
    """Offsets ``[from, until)`` of one partition in one life, taken in under one token.

    What Kafka skips (compaction, transaction markers) lies inside. ``records`` may be 0: a tail of markers moves the
    position too. ``digest``: 16 hex digits (see ``forebay.model.records.digest``). ``bytes`` counts keys and values.
    ``max_timestamp_ms`` is -1 for a range without records. ``preceding_gap``, if any, ends at ``from``.
    """

    topic: Topic
    partition: PartitionNumber
    incarnation: Number
    from_offset: Offset
    until_offset: Offset
    records: RecordCount
    leader_epoch: LeaderEpoch  # of the last record; -1 where the broker did not tell
    digest: Text
    token: Number
    bytes: Size = 0
    max_timestamp_ms: TimeMs = -1
    preceding_gap: Gap | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.from_offset < self.until_offset <= OFFSET_MAX:
            raise ValueError(f"range {self.label}: from must be below until, which is {OFFSET_MAX} at most")
        if not 0 <= self.records <= min(self.until_offset - self.from_offset, INT32_MAX):
            raise ValueError(f"range {self.label}: {self.records} records can't lie in it")
        if not -1 <= self.leader_epoch <= INT32_MAX:
            raise ValueError(f"range {self.label}: leader epoch {self.leader_epoch} is none, from -1 to {INT32_MAX}")
        gap = self.preceding_gap
        if gap is not None and gap.until_offset != self.from_offset:
            raise ValueError(f"range {self.label}: its preceding gap ends at {gap.until_offset}")

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def label(self) -> str:
        """The range in words, unique within its stream: offsets mean other records in another life."""
        incarnation = "" if self.incarnation == 1 else f" life {self.incarnation}"
        return f"{self.topic}/{self.partition}[{self.from_offset}, {self.until_offset}){incarnation}"


class Handle(msgspec.Struct, frozen=True, gc=False):
    """Where a block lies in the WAL.

    ``path`` is relative to the WAL's root; ``offset`` and ``length`` bound the whole frame in bytes; ``checksum`` is the
    CRC-32C of the frame's payload. ``path`` is "" for a block of a stream without a WAL: its hosts' copies are all there is,
    and ``length`` and ``checksum`` are of their frame.
    """

    path: Text
    offset: FilePlace
    length: FrameLength
    checksum: Checksum


class BlockMeta(msgspec.Struct, frozen=True, gc=False):
    """What a frame says of its block: all that is needed to take it in without the journal (docs/FORMAT.md)."""

    id: str
    stream: str
    receiver_id: str
    epoch: Number
    sequence: Number  # dense within the epoch, from 1
    ranges: tuple[OffsetRange, ...]
    records: RecordCount
    created_ms: TimeMs
    host: str
    headers: bool = False  # whether the payload has a headers column
    key_id: Text | None = None  # of the key that encrypted the payload; None: not encrypted
    #: True: its topics' ids were read after its last poll, before it was written, and were those of the claims; else absent
    checked: bool | msgspec.UnsetType = msgspec.UNSET
    #: of the payload as it is stored, encrypted or not; absent in a block of a release that did not compute it
    sha256: Sha256 | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        check_name("receiver id", self.receiver_id)
        check_name("stream", self.stream)
        if self.id != block_id(self.receiver_id, self.epoch, self.sequence):
            raise ValueError(f"block {self.id!r} does not fit its receiver, epoch and sequence")
        if not self.ranges:
            raise ValueError(f"block {self.id} has no range")
        if len({(r.topic, r.partition) for r in self.ranges}) != len(self.ranges):
            raise ValueError(f"block {self.id} has two ranges of one partition")
        if self.records != sum(r.records for r in self.ranges):
            raise ValueError(f"block {self.id}: {self.records} records, its ranges say otherwise")


class Block(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A stored block: its metadata, its handle, whether the receiver's host keeps a local copy, and which ``other_hosts`` do."""

    meta: BlockMeta
    handle: Handle
    local: bool
    other_hosts: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return self.meta.id

    @property
    def in_wal(self) -> bool:
        return bool(self.handle.path)

    @property
    def hosts(self) -> tuple[str, ...]:
        """All that keep a copy, the receiver's first."""
        return (self.meta.host, *self.other_hosts) if self.local else self.other_hosts

    def without_copy(self, host: str) -> Block:
        """The block when the copy at ``host`` is deleted."""
        others = tuple(other for other in self.other_hosts if other != host)
        return Block(self.meta, self.handle, self.local and host != self.meta.host, others)


def block_id(receiver_id: str, epoch: int, sequence: int) -> str:
    return f"{receiver_id}-{epoch:x}-{sequence}"
