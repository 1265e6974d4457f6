"""The values that all parts share. Each is checked when it is made; none does any I/O.

The high part of each number that a driver assigns (receiver epoch, token, batch id, journal epoch) is the journal's timeline. So
a rebuilt journal never assigns a number that an older timeline assigned.

A driver has hundreds of thousands of blocks, and no value of a block can be part of a reference cycle. ``gc=False`` excludes them
from the cyclic garbage collector, whose full collections would otherwise stop the driver to traverse them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from forebay.model.wire import WIRE_NAMES

#: number of low bits that count within a timeline; timeline << 40 is exact as a JSON number up to timeline 8191
TIMELINE_SHIFT = 40

#: a SHA-256
Sha256 = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]

#: where a task reads a block from, in this order
Tier = Literal["local", "agent", "wal", "kafka"]
TIERS: tuple[Tier, ...] = ("local", "agent", "wal", "kafka")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

# ---- bounds of numbers: checked when a message, a frame, an event or a snapshot is decoded ------------------------------

#: Kafka's offsets are signed 64-bit numbers; a range ends at the offset of its last record + 1
OFFSET_MAX = 2**63 - 1
#: Kafka's leader epochs and partitions are signed 32-bit numbers
INT32_MAX = 2**31 - 1
#: maximum of assigned numbers and of counters: up to it, a JSON number is exact
NUMBER_MAX = 2**53 - 1
#: key of the number that replaces one outside its bounds in an older release's journal (``driver.journal.log.bounds``)
INSTEAD = "instead"

#: maximum characters of a text that a process reports, such as an error
TEXT_LENGTH_MAX = 1_000
#: maximum characters of a topic's name in Kafka
TOPIC_LENGTH_MAX = 249

Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
#: an offset, or -1 for none
OffsetOrNone = Annotated[int, Meta(ge=-1, le=OFFSET_MAX)]
#: -1 if the broker does not report it
LeaderEpoch = Annotated[int, Meta(ge=-1, le=INT32_MAX, extra={INSTEAD: -1})]
PartitionNumber = Annotated[int, Meta(ge=0, le=INT32_MAX)]
#: an epoch, a token, a batch id, or the number of a request or block of a process
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
#: a number, or -1 for none
NumberOrNone = Annotated[int, Meta(ge=-1, le=NUMBER_MAX)]
#: a rate per second, or a load; bounded so that sums stay finite
Amount = Annotated[float, Meta(ge=0, le=1e15)]
#: records of one block; the bound is far above what a payload of 2 GiB can hold
RecordCount = Annotated[int, Meta(ge=0, le=INT32_MAX)]
#: milliseconds since 1970 UTC, as Kafka's timestamps
TimeMs = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
SIZE_MAX = 2**63 - 1
#: bytes
Size = Annotated[int, Meta(ge=0, le=SIZE_MAX)]
#: position of a byte in a file; length of a frame, which is below 2 GiB + 17 MiB
FilePlace = Annotated[int, Meta(ge=0, le=2**48)]
FrameLength = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Text = Annotated[str, Meta(max_length=TEXT_LENGTH_MAX)]
Topic = Annotated[str, Meta(max_length=TOPIC_LENGTH_MAX)]
Checksum = Annotated[int, Meta(ge=0, le=2**32 - 1)]


#: prefix of receiver ids of the driver and the tools; requests with such an id are refused
RESERVED_PREFIX = "forebay-"


def is_reserved(receiver_id: str) -> bool:
    """Return whether only the driver and the tools may use this receiver id."""
    return receiver_id.startswith(RESERVED_PREFIX)


def managed_id(stream: str, ordinal: int) -> str:
    """Return the id of the managed receiver number ``ordinal`` of ``stream``, from 0."""
    return f"{stream}-r{ordinal}"


def managed_ordinal(stream: str, receiver_id: str) -> int | None:
    """Return the ordinal of an id that :func:`managed_id` makes for ``stream``; None for any other id."""
    found = re.fullmatch(r"(.+)-r(0|[1-9][0-9]{0,4})", receiver_id)
    return int(found[2]) if found is not None and found[1] == stream else None


def numbered(timeline: int, count: int) -> int:
    """Return number ``count`` of a timeline. Raises ValueError unless 1 ≤ timeline < 8192 and 0 ≤ count < 2**40."""
    if not 1 <= timeline < 8192 or not 0 <= count < 1 << TIMELINE_SHIFT:
        raise ValueError(f"timeline {timeline}, count {count}: out of range")
    return timeline << TIMELINE_SHIFT | count


def timeline_of(number: int) -> int:
    """Return the timeline of an assigned number."""
    return number >> TIMELINE_SHIFT


def count_of(number: int) -> int:
    """Return the count of an assigned number within its timeline."""
    return number & ((1 << TIMELINE_SHIFT) - 1)


@lru_cache(1024)  # each block names its stream and its receiver
def check_name(kind: str, name: str) -> str:
    """Return ``name`` if it can be part of a path: 1 to 64 of ``A-Za-z0-9_.-``, the first a letter or digit.

    Raises ValueError otherwise. All names of streams, receivers and hosts are checked here, so none can lead out of a directory.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{kind} {name!r}: allowed are 1 to 64 letters, digits, '.', '_' and '-', the first a letter or digit"
        )
    return name


#: maximum length of a text that blocks share: the texts that are kept stay in memory
SHARED_LENGTH_MAX = 255


@lru_cache(1024)
def _kept(text: str) -> str:
    return text


def _shared(text: str) -> str:
    """Return an equal text, mostly the same object for equal short texts: a decoder makes a new one for each value."""
    return _kept(text) if len(text) <= SHARED_LENGTH_MAX else text


#: sets a field of a frozen value
_share = msgspec.structs.force_setattr


class TopicPartition(msgspec.Struct, frozen=True, order=True):
    """A ``partition``, by its number, of a ``topic``."""

    topic: Topic
    partition: PartitionNumber

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Gap(msgspec.Struct, frozen=True, gc=False, rename=WIRE_NAMES):
    """Offsets ``[from, until)`` that Kafka lost before they were taken in. Compacted records and markers are not a gap."""

    from_offset: Offset
    until_offset: Offset
    cause: Text

    def __post_init__(self) -> None:
        if not 0 <= self.from_offset < self.until_offset <= OFFSET_MAX:
            raise ValueError(
                f"gap [{self.from_offset}, {self.until_offset}): from must be below until, which is {OFFSET_MAX} at most"
            )


class BlockRange(msgspec.Struct, frozen=True, gc=False, rename=WIRE_NAMES):
    """Offsets ``[from, until)`` of one partition in one incarnation, taken in under one token.

    Offsets without a record (compaction, transaction markers) are part of it. ``records`` may be 0, since markers at the end of
    the log move the position too. ``digest``: 16 hex digits (see ``forebay.model.digest.digest``). ``bytes``: size of keys and
    values. ``max_timestamp_ms`` is -1 for a range without records. ``preceding_gap``, if any, ends at ``from``.
    """

    topic: Topic
    partition: PartitionNumber
    incarnation: Number
    from_offset: Offset
    until_offset: Offset
    records: RecordCount
    leader_epoch: LeaderEpoch  # of the last record; -1 if the broker did not report it
    digest: Text
    token: Number
    bytes: Size = 0
    max_timestamp_ms: TimeMs = -1
    preceding_gap: Gap | None = None

    def __post_init__(self) -> None:
        _share(self, "topic", _shared(self.topic))
        if not 0 <= self.from_offset < self.until_offset <= OFFSET_MAX:
            raise ValueError(f"range {self.label}: from must be below until, which is {OFFSET_MAX} at most")
        if not 0 <= self.records <= min(self.until_offset - self.from_offset, INT32_MAX):
            raise ValueError(f"range {self.label}: {self.records} records are more than its offsets, or fewer than 0")
        if not -1 <= self.leader_epoch <= INT32_MAX:
            raise ValueError(f"range {self.label}: leader epoch {self.leader_epoch} is not from -1 to {INT32_MAX}")
        gap = self.preceding_gap
        if gap is not None and gap.until_offset != self.from_offset:
            raise ValueError(
                f"range {self.label}: its preceding gap ends at {gap.until_offset}, not at its first offset"
            )

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def label(self) -> str:
        """The range as text, unique within its stream. It names an incarnation above 1: its offsets are other records."""
        incarnation = "" if self.incarnation == 1 else f" life {self.incarnation}"
        return f"{self.topic}/{self.partition}[{self.from_offset}, {self.until_offset}){incarnation}"


class Handle(msgspec.Struct, frozen=True, gc=False):
    """Where a block is stored in the WAL.

    ``path``: relative to the WAL's root. ``offset``, ``length``: the whole frame, in bytes. ``checksum``: the CRC-32C of the
    frame's payload. In a stream without a WAL, ``path`` is "", and ``length`` and ``checksum`` are those of the copies' frame.
    """

    path: Text
    offset: FilePlace
    length: FrameLength
    checksum: Checksum

    def __post_init__(self) -> None:
        _share(self, "path", _shared(self.path))


class BlockMeta(msgspec.Struct, frozen=True, gc=False):
    """A block's metadata in its frame: all that is needed to accept the block without the journal (docs/FORMAT.md)."""

    id: str
    stream: str
    receiver_id: str
    epoch: Number
    sequence: Number  # consecutive within the epoch, from 1
    ranges: tuple[BlockRange, ...]
    records: RecordCount
    created_ms: TimeMs
    host: str
    headers: bool = False  # whether the payload has a headers column
    key_id: Text | None = None  # of the key that encrypted the payload; None: not encrypted
    #: True: its topics' ids, read between its last poll and its write, were those of the claims; else absent
    checked: bool | msgspec.UnsetType = msgspec.UNSET
    #: of the payload as it is stored, encrypted or not; absent in a block of an older release
    sha256: Sha256 | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        _share(self, "receiver_id", check_name("receiver id", self.receiver_id))
        _share(self, "stream", check_name("stream", self.stream))
        _share(self, "host", _shared(self.host))
        if self.id != block_id(self.receiver_id, self.epoch, self.sequence):
            raise ValueError(f"block id {self.id!r} does not match its receiver, epoch and sequence")
        if not self.ranges:
            raise ValueError(f"block {self.id} has no range")
        if len({(r.topic, r.partition) for r in self.ranges}) != len(self.ranges):
            raise ValueError(f"block {self.id} has two ranges of one partition")
        if self.records != sum(r.records for r in self.ranges):
            raise ValueError(
                f"block {self.id} has {self.records} records, but its ranges have {sum(r.records for r in self.ranges)}"
            )


class Block(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A stored block. ``local``: whether the receiver's host has a copy. ``other_hosts``: those that have one too."""

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
        """All hosts with a copy, the receiver's first."""
        return (self.meta.host, *self.other_hosts) if self.local else self.other_hosts

    def without_copy(self, host: str) -> Block:
        """Return the block after the copy at ``host`` was deleted."""
        others = tuple(other for other in self.other_hosts if other != host)
        return Block(self.meta, self.handle, self.local and host != self.meta.host, others)


def block_id(receiver_id: str, epoch: int, sequence: int) -> str:
    return f"{receiver_id}-{epoch:x}-{sequence}"


def total_size(sizes: Iterable[int]) -> int:
    """Return the sum of sizes, at most :data:`SIZE_MAX`: a receiver may report any size for each of its blocks."""
    return min(sum(sizes), SIZE_MAX)
