"""Which segments may be deleted from the WAL (INV-8). Decision logic, without I/O.

A segment may be deleted if it is sealed or its writer is fenced, if all of it can be read, and if the journal durably says of
every block in it that nothing needs it:

* A block that the journal knows must have been released by every batch, cursor and rewind horizon.
* If the journal does not know a block, the block is an orphan, or its clean-up is done. Each of its ranges must be in other
  blocks already: its incarnation has ended (records that only the orphan held were adopted then), or the durable position is
  at or past the range's end. Until then the orphan's report may still arrive and be accepted.

Of the segments that nothing holds, :func:`due` returns those to delete now: first those whose rewind horizon has passed, then the
oldest while the WAL has more bytes or blocks than its limits, or its store has too little free space.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum

from forebay.model.errors import CorruptionError
from forebay.model.values import BlockRange, TopicPartition
from wal.blocks import decode_meta
from wal.segments.barrier import BARRIER_KEPT_MS, barrier_made_ms
from wal.segments.frame import Frame, FrameKind
from wal.segments.scan import Damage, Newer, Scanned

#: maximum number of reasons in a judgement
REASONS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """The limits of retention.

    ``retention_ms``: how long completed batches stay readable. The oldest are deleted earlier while the WAL has more than
    ``retention_bytes`` or ``retention_blocks``, or its store has less than ``free_bytes`` free; 0: no limit. ``room_bytes``:
    the WAL's size at which ``free_bytes`` are left, as :meth:`within` computed it; None: unknown.
    """

    retention_ms: int
    retention_bytes: int = 0
    retention_blocks: int = 0
    free_bytes: int = 0
    room_bytes: int | None = None

    def within(self, free_bytes: int | None, held_bytes: int) -> RetentionLimits:
        """Return the limits for one round of clean-up.

        ``free_bytes``: free space of the store, None if it reports none. ``held_bytes``: the WAL's size.
        """
        if free_bytes is None or not self.free_bytes:
            return self
        return replace(self, room_bytes=max(0, held_bytes + free_bytes - self.free_bytes))


@dataclass(frozen=True, slots=True)
class ReleasedSegment:
    """A segment that no batch, cursor or replay needs. ``released_ms``: when the last of its batches was completed."""

    path: str
    bytes: int
    released_ms: int
    blocks: int


class DueReason(Enum):
    """Why a segment is deleted now."""

    TIME = "its time has passed"
    SIZE = "the WAL holds more than retention_size"
    BLOCKS = "the WAL holds more than retention_blocks"
    SPACE = "the WAL's store has less than retention_free left"


def due(
    oldest_first: Iterable[ReleasedSegment], held_bytes: int, held_blocks: int, limits: RetentionLimits, now_ms: int
) -> Iterator[tuple[ReleasedSegment, DueReason]]:
    """Yield the segments to delete now, oldest first.

    ``held_bytes``, ``held_blocks``: totals of all segments, needed ones included.
    """
    for segment in oldest_first:
        if now_ms - segment.released_ms >= limits.retention_ms:
            yield segment, DueReason.TIME
        elif 0 < limits.retention_bytes < held_bytes:
            yield segment, DueReason.SIZE
        elif 0 < limits.retention_blocks < held_blocks:
            yield segment, DueReason.BLOCKS
        elif limits.room_bytes is not None and limits.room_bytes < held_bytes:
            yield segment, DueReason.SPACE
        else:
            return
        held_bytes -= segment.bytes
        held_blocks -= segment.blocks


class RangeStatus(Enum):
    """The status of an unaccepted range, by the journal: whether all its offsets are taken in, so that no report of it can be
    accepted any more."""

    INCARNATION_ENDED = "its incarnation has ended"
    PAST = "the durable position is at or past its end"
    BEHIND = "the durable position is before its end"
    UNKNOWN = "the journal knows no such partition or incarnation"

    @property
    def is_final(self) -> bool:
        return self in (RangeStatus.INCARNATION_ENDED, RangeStatus.PAST)


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """A partition's current incarnation, and the durable position in it."""

    incarnation: int
    offset: int


@dataclass(frozen=True, slots=True)
class JournalView:
    """The durable content of the journal about blocks and positions.

    ``needed``: ids of accepted blocks that wait, or that a batch, a cursor or a rewind horizon needs. ``released``: ids of
    accepted blocks that nothing needs any more and whose bytes still exist.
    """

    needed: AbstractSet[str]
    released: AbstractSet[str]
    positions: Mapping[TopicPartition, PartitionPosition]

    def status_of(self, held: BlockRange) -> RangeStatus:
        position = self.positions.get(held.tp)
        if position is None or held.incarnation > position.incarnation:
            return RangeStatus.UNKNOWN
        if held.incarnation < position.incarnation:
            return RangeStatus.INCARNATION_ENDED
        return RangeStatus.PAST if position.offset >= held.until_offset else RangeStatus.BEHIND


@dataclass(frozen=True, slots=True)
class FrameFacts:
    """One block in a segment."""

    block_id: str
    ranges: tuple[BlockRange, ...]


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A block segment as a scan found it.

    ``sealed``: a later segment of the same writer and epoch exists. ``fenced``: the journal gave the writer's id a newer epoch.
    ``unreadable``: a description of each place that can't be read. ``bars_until_ms``: the time until which a barrier is kept; 0
    for every other segment.
    """

    path: str
    sealed: bool
    fenced: bool
    frames: tuple[FrameFacts, ...]
    unreadable: tuple[str, ...] = ()
    bars_until_ms: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a segment may be deleted. ``reasons``: why it is kept; none if it may be deleted."""

    path: str
    reasons: tuple[str, ...]

    @property
    def deletable(self) -> bool:
        return not self.reasons


def segment_facts(path: str, found: Iterable[Scanned], *, sealed: bool, fenced: bool) -> SegmentFacts:
    """Return the facts from a scan of a block segment, with or without payloads. A torn tail holds nothing."""
    frames = []
    unreadable = []
    bars_until_ms = 0
    for item in found:
        if isinstance(item, Damage):
            unreadable.append(f"damaged at byte {item.offset}: {item.reason}")
        elif isinstance(item, Newer):
            unreadable.append(f"written by a newer release, with {item.feature} at byte {item.offset}")
        elif isinstance(item, Frame) and item.header.kind == FrameKind.BLOCK:
            try:
                meta = decode_meta(item.metadata, path, item.offset)
            except CorruptionError as error:
                unreadable.append(f"damaged at byte {item.offset}: {error.reason}")
            else:
                frames.append(FrameFacts(meta.id, meta.ranges))
        elif isinstance(item, Frame) and item.header.kind == FrameKind.SEGMENT:
            made_ms = barrier_made_ms(item, path)
            bars_until_ms = made_ms + BARRIER_KEPT_MS if made_ms is not None else 0
        elif isinstance(item, Frame):
            unreadable.append(f"a frame of kind {item.header.kind}, not a block, at byte {item.offset}")
    return SegmentFacts(path, sealed, fenced, tuple(frames), tuple(unreadable), 0 if frames else bars_until_ms)


def judge_segment(facts: SegmentFacts, view: JournalView) -> Judgement:
    """Return whether the segment may be deleted, and if not, why."""
    reasons = list(facts.unreadable)
    if not (facts.sealed or facts.fenced):
        reasons.append("its writer may still append to it")
    for frame in facts.frames:
        reasons += _reasons(frame, view)
        if len(reasons) >= REASONS_MAX:
            break
    return Judgement(facts.path, tuple(reasons[:REASONS_MAX]))


def _reasons(frame: FrameFacts, view: JournalView) -> list[str]:
    if frame.block_id in view.needed:
        return [f"block {frame.block_id} is needed"]
    if frame.block_id in view.released:
        return []
    statuses = ((held, view.status_of(held)) for held in frame.ranges)
    return [
        f"block {frame.block_id} is an orphan; of its range {held.label} in incarnation {held.incarnation}, {status.value}"
        for held, status in statuses
        if not status.is_final
    ]
