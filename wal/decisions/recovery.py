"""The decision on each place of a scanned block segment, as a table kept as data. It only decides; the caller acts.

Two facts explain the table:

* A frame that the journal names was synced before it was accepted. So if it is not whole now, it was damaged: **an accepted
  tail is never taken for a torn write**.
* A frame that the journal does not name may still be reported, unless the status of every range in it is final and no writer can
  append to its segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import msgspec

from forebay.model.errors import CorruptionError
from forebay.model.values import Block, BlockMeta, BlockRange
from wal.blocks import decode_meta
from wal.blocks.digests import fits
from wal.decisions.retention import JournalView, RangeStatus
from wal.segments.frame import Frame, FrameKind
from wal.segments.scan import Damage, Scanned, TornTail


class FrameCondition(Enum):
    """What a scan found at one place."""

    WHOLE = "a whole frame"
    TORN = "a torn tail"
    DAMAGED = "damage"
    NEWER = "a frame of a newer release"
    ABSENT = "nothing"
    UNREADABLE = "bytes that the store can't read"


class Decision(Enum):
    """What to do with one place. The values are shown by commands and stored in their JSON output."""

    WHOLE = "whole"
    TORN_DROP = "torn-drop"
    DAMAGED_QUARANTINE = "damaged-quarantine"
    ORPHAN_KEEP = "orphan-keep"
    ORPHAN_DELETE = "orphan-delete"
    MISSING = "missing"
    NEWER_REFUSE = "newer-refuse"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class FrameEvidence:
    """All that a decision depends on.

    ``named``: the journal has an accepted block whose handle points here. ``status``: the status of one range in the frame;
    UNKNOWN if its ranges can't be read. ``closed``: the segment is sealed or its writer is fenced.
    """

    condition: FrameCondition
    named: bool
    status: RangeStatus
    closed: bool

    def __post_init__(self) -> None:
        if self.condition is FrameCondition.ABSENT and not self.named:
            raise ValueError("nothing was found and nothing is named: there is nothing to decide")


@dataclass(frozen=True, slots=True)
class RecoveryRow:
    """One row of the table: holds for every FrameEvidence with these values; None stands for any value."""

    condition: FrameCondition
    named: bool | None
    status: RangeStatus | None
    closed: bool | None
    decision: Decision
    reason: str

    def holds(self, evidence: FrameEvidence) -> bool:
        return (
            self.condition is evidence.condition
            and self.named in (None, evidence.named)
            and self.status in (None, evidence.status)
            and self.closed in (None, evidence.closed)
        )


_N, _U = True, False  # named, unnamed
_C, _O = True, False  # closed, open

_BEHIND, _PAST = RangeStatus.BEHIND, RangeStatus.PAST
_UNKNOWN, _ENDED = RangeStatus.UNKNOWN, RangeStatus.INCARNATION_ENDED
_NEWER, _WHOLE, _TORN = FrameCondition.NEWER, FrameCondition.WHOLE, FrameCondition.TORN
_DAMAGED, _ABSENT, _UNREADABLE = FrameCondition.DAMAGED, FrameCondition.ABSENT, FrameCondition.UNREADABLE

#: exactly one row holds for each FrameEvidence
TABLE: tuple[RecoveryRow, ...] = (
    RecoveryRow(_NEWER, None, None, None, Decision.NEWER_REFUSE, "only a newer release can read it: run that release"),
    RecoveryRow(_WHOLE, _N, None, None, Decision.WHOLE, "it is the block that the journal names"),
    RecoveryRow(_WHOLE, _U, None, _O, Decision.ORPHAN_KEEP, "its writer may be about to report it"),
    RecoveryRow(
        _WHOLE, _U, _BEHIND, _C, Decision.ORPHAN_KEEP, "its report may still arrive, or the driver may adopt it"
    ),
    RecoveryRow(
        _WHOLE, _U, _UNKNOWN, _C, Decision.ORPHAN_KEEP, "the journal does not know its partition or incarnation yet"
    ),
    RecoveryRow(_WHOLE, _U, _PAST, _C, Decision.ORPHAN_DELETE, "other blocks already hold all of its offsets"),
    RecoveryRow(_WHOLE, _U, _ENDED, _C, Decision.ORPHAN_DELETE, "its incarnation has ended, and it was not adopted"),
    RecoveryRow(
        _TORN, _N, None, None, Decision.DAMAGED_QUARANTINE, "an accepted block was cut off: it must be recovered"
    ),
    RecoveryRow(_TORN, _U, None, _O, Decision.ORPHAN_KEEP, "its writer may be in the middle of writing it"),
    RecoveryRow(_TORN, _U, None, _C, Decision.TORN_DROP, "a write was cut off, and the journal names nothing there"),
    RecoveryRow(
        _DAMAGED, _N, None, None, Decision.DAMAGED_QUARANTINE, "an accepted block is damaged: it must be recovered"
    ),
    RecoveryRow(_DAMAGED, _U, None, _O, Decision.DAMAGED_QUARANTINE, "a frame that may still be reported is damaged"),
    RecoveryRow(
        _DAMAGED, _U, _BEHIND, _C, Decision.DAMAGED_QUARANTINE, "a frame that may still be reported is damaged"
    ),
    RecoveryRow(_DAMAGED, _U, _UNKNOWN, _C, Decision.DAMAGED_QUARANTINE, "what these bytes held is unknown"),
    RecoveryRow(_DAMAGED, _U, _PAST, _C, Decision.ORPHAN_DELETE, "damaged, but other blocks hold all of its offsets"),
    RecoveryRow(_DAMAGED, _U, _ENDED, _C, Decision.ORPHAN_DELETE, "damaged, but its incarnation has ended"),
    RecoveryRow(_ABSENT, _N, None, None, Decision.MISSING, "an accepted block is not there: it must be recovered"),
    RecoveryRow(
        _UNREADABLE, _N, None, None, Decision.UNREADABLE, "an accepted block can't be read: it must be recovered"
    ),
    RecoveryRow(_UNREADABLE, _U, None, None, Decision.UNREADABLE, "what these bytes hold is unknown"),
)


@dataclass(frozen=True, slots=True)
class UnreadRest:
    """The bytes ``[offset, until)`` of a segment, from the first read on that failed. ``reason``: the store's error."""

    offset: int
    until: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecoveryVerdict:
    """The decision on the bytes ``[offset, until)`` of ``path``.

    ``ranges``, ``block_id``: the ranges and id of the block there, as far as they can be read. ``named``: the journal has that
    block there.
    """

    path: str
    offset: int
    until: int
    decision: Decision
    reason: str
    block_id: str | None = None
    ranges: tuple[BlockRange, ...] = ()
    condition: FrameCondition = FrameCondition.WHOLE
    named: bool = False


def decide(evidence: FrameEvidence) -> RecoveryRow:
    """Return the row that holds for ``evidence``."""
    for row in TABLE:
        if row.holds(evidence):
            return row
    raise AssertionError(f"no row for {evidence}")


def assess_segment(
    path: str,
    scanned: Iterable[Scanned | UnreadRest] | None,
    accepted: Sequence[Block],
    view: JournalView,
    *,
    closed: bool,
) -> list[RecoveryVerdict]:
    """Return a verdict on everything found in the block segment ``path`` and on every block that the journal has there.

    The verdicts are in order of offsets. ``scanned``: a scan with payloads, whose last item is an UnreadRest if the scan failed;
    None if there is no such file. ``accepted``: the journal's blocks whose handles name ``path``. An orphan with several ranges
    is deleted only if each of them allows it.
    """
    named = {block.handle.offset: block for block in accepted}
    verdicts = []
    for item in scanned or ():
        verdicts += _verdicts(path, item, named, view, closed)
    verdicts += [_of_block(path, FrameCondition.ABSENT, block, view, closed) for block in named.values()]
    return sorted(verdicts, key=lambda verdict: (verdict.offset, verdict.until))


def _verdicts(
    path: str, item: Scanned | UnreadRest, named: dict[int, Block], view: JournalView, closed: bool
) -> list[RecoveryVerdict]:
    """Return the verdicts on one thing found, and remove the blocks that it covers from ``named``."""
    if isinstance(item, Frame):
        if item.header.kind == FrameKind.SEGMENT:
            return []
        try:
            meta = decode_meta(item.metadata, path, item.offset)
        except CorruptionError:
            meta = None
        block = named.pop(item.offset, None)
        until = item.offset + item.length
        if block is not None:
            same = (
                _same(meta, block.meta)
                and (item.length, item.header.payload_checksum) == (block.handle.length, block.handle.checksum)
                and fits(block.meta.sha256, item.payload)
            )
            return [_of_block(path, FrameCondition.WHOLE if same else FrameCondition.DAMAGED, block, view, closed)]
        if meta is None:
            return [_of_unnamed(path, FrameCondition.DAMAGED, item.offset, until, None, (), view, closed)]
        return [_of_unnamed(path, FrameCondition.WHOLE, item.offset, until, meta.id, meta.ranges, view, closed)]
    if isinstance(item, UnreadRest):
        blocks = _pop_overlapping(named, item.offset, item.until)
        verdicts = [_of_block(path, FrameCondition.UNREADABLE, block, view, closed) for block in blocks] or [
            _of_unnamed(path, FrameCondition.UNREADABLE, item.offset, item.until, None, (), view, closed)
        ]
        return [replace(verdict, reason=f"{verdict.reason}: {item.reason}") for verdict in verdicts]
    if isinstance(item, TornTail):
        found, until, metadata = FrameCondition.TORN, item.offset + item.length, None
    elif isinstance(item, Damage):
        found, until, metadata = FrameCondition.DAMAGED, item.until, item.metadata
    else:
        found, until, metadata = FrameCondition.NEWER, item.until, None
    blocks = _pop_overlapping(named, item.offset, until)
    if blocks:
        return [_of_block(path, found, block, view, closed) for block in blocks]
    block_id: str | None = None
    ranges: tuple[BlockRange, ...] = ()
    if metadata is not None:
        try:
            meta = decode_meta(metadata, path, item.offset)
        except CorruptionError:
            meta = None
        if meta is not None:
            block_id, ranges = meta.id, meta.ranges
    return [_of_unnamed(path, found, item.offset, until, block_id, ranges, view, closed)]


def _same(meta: BlockMeta | None, accepted: BlockMeta) -> bool:
    """Return whether a frame's metadata is the accepted block's.

    The key may differ, since recovery may have encrypted the block with another one. The SHA-256 may differ, since an older
    release may have written or journalled the block without it.
    """
    return (
        meta is not None and msgspec.structs.replace(meta, key_id=accepted.key_id, sha256=accepted.sha256) == accepted
    )


def _pop_overlapping(named: dict[int, Block], offset: int, until: int) -> list[Block]:
    inside = [at for at, block in named.items() if at < until and at + block.handle.length > offset]
    return [named.pop(at) for at in inside]


def _of_block(path: str, condition: FrameCondition, block: Block, view: JournalView, closed: bool) -> RecoveryVerdict:
    row = decide(FrameEvidence(condition, True, view.status_of(block.meta.ranges[0]), closed))
    handle = block.handle
    until = handle.offset + handle.length
    return RecoveryVerdict(
        path, handle.offset, until, row.decision, row.reason, block.id, block.meta.ranges, condition, True
    )


def _of_unnamed(
    path: str,
    condition: FrameCondition,
    offset: int,
    until: int,
    block_id: str | None,
    ranges: tuple[BlockRange, ...],
    view: JournalView,
    closed: bool,
) -> RecoveryVerdict:
    statuses = [view.status_of(held) for held in ranges] or [RangeStatus.UNKNOWN]
    rows = [decide(FrameEvidence(condition, False, status, closed)) for status in statuses]
    row = next((row for row in rows if row.decision is not Decision.ORPHAN_DELETE), rows[0])
    return RecoveryVerdict(path, offset, until, row.decision, row.reason, block_id, ranges, condition)
