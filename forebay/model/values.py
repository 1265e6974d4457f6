"""Partitions, ranges, gaps and blocks: the values that all parts share. Each is checked when it is made; none does any I/O.

A driver has hundreds of thousands of blocks, and no value of a block can be part of a reference cycle. ``gc=False`` excludes them
from the cyclic garbage collector, whose full collections would otherwise stop the driver to traverse them all.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import msgspec

from forebay.model.bounds import (
    INT32_MAX,
    OFFSET_MAX,
    Checksum,
    FilePlace,
    FrameLength,
    LeaderEpoch,
    Number,
    Offset,
    PartitionNumber,
    RecordCount,
    Sha256,
    Size,
    Text,
    TimeMs,
    Topic,
)
from forebay.model.identifiers import check_name
from forebay.model.wire import WIRE_NAMES

#: where a task reads a block from, in this order
Tier = Literal["local", "agent", "wal", "kafka"]
TIERS: tuple[Tier, ...] = ("local", "agent", "wal", "kafka")

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
