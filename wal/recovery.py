"""What to do with what a scan found: a decision table kept as data. It decides; whoever asks acts.

Two facts carry the table. A frame that the journal names was synced before it was accepted, so where it is not whole
it was damaged: **an accepted tail is never taken for torn**. A frame that the journal does not name may still be
reported, unless every range in it is settled and nobody writes its segment any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from forebay.model.errors import CorruptionError
from forebay.model.values import Block, BlockMeta, OffsetRange
from wal.blocks import decode_meta
from wal.digests import fits
from wal.frame import Frame, FrameKind
from wal.retention import JournalView, RangeStatus
from wal.scan import Damage, Scanned, TornTail


class Found(Enum):
    WHOLE = "a whole frame"
    TORN = "a torn tail"
    DAMAGED = "damage"
    NEWER = "a frame of a newer release"
    ABSENT = "nothing"


class Decision(Enum):
    WHOLE = "whole"
    TORN_DROP = "torn-drop"
    DAMAGED_QUARANTINE = "damaged-quarantine"
    ORPHAN_KEEP = "orphan-keep"
    ORPHAN_DELETE = "orphan-delete"
    MISSING = "missing"
    NEWER_REFUSE = "newer-refuse"


@dataclass(frozen=True, slots=True)
class Evidence:
    """``named``: the journal has an accepted block whose handle points here. ``standing``: of one range in it;
    UNKNOWN where its ranges can't be read. ``closed``: the segment is sealed or its writer is fenced.
    """

    found: Found
    named: bool
    status: RangeStatus
    closed: bool

    def __post_init__(self) -> None:
        if self.found is Found.ABSENT and not self.named:
            raise ValueError("nothing was found and nothing is named: there is nothing to decide")


@dataclass(frozen=True, slots=True)
class Row:
    """Holds for every Evidence that agrees with it; None agrees with everything."""

    found: Found
    named: bool | None
    status: RangeStatus | None
    closed: bool | None
    decision: Decision
    words: str

    def holds(self, evidence: Evidence) -> bool:
        return (
            self.found is evidence.found
            and self.named in (None, evidence.named)
            and self.status in (None, evidence.status)
            and self.closed in (None, evidence.closed)
        )


_N, _U = True, False  # named, unnamed
_C, _O = True, False  # closed, open

#: exactly one row holds for each Evidence
TABLE: tuple[Row, ...] = (
    Row(Found.NEWER, None, None, None, Decision.NEWER_REFUSE, "only a newer release can read it: run that one"),
    Row(Found.WHOLE, _N, None, None, Decision.WHOLE, "it is what the journal says"),
    Row(Found.WHOLE, _U, None, _O, Decision.ORPHAN_KEEP, "its writer may be about to report it"),
    Row(Found.WHOLE, _U, RangeStatus.BEHIND, _C, Decision.ORPHAN_KEEP, "its report may still come, or it may be adopted"),
    Row(Found.WHOLE, _U, RangeStatus.UNKNOWN, _C, Decision.ORPHAN_KEEP, "the journal can't tell yet what it is"),
    Row(Found.WHOLE, _U, RangeStatus.PAST, _C, Decision.ORPHAN_DELETE, "all of it came in otherwise"),
    Row(Found.WHOLE, _U, RangeStatus.INCARNATION_ENDED, _C, Decision.ORPHAN_DELETE, "its life has ended: adoption was tried"),
    Row(Found.TORN, _N, None, None, Decision.DAMAGED_QUARANTINE, "an accepted block was cut off: read it again"),
    Row(Found.TORN, _U, None, _O, Decision.ORPHAN_KEEP, "its writer may be in the middle of it"),
    Row(Found.TORN, _U, None, _C, Decision.TORN_DROP, "a write was cut off, nothing points at it"),
    Row(Found.DAMAGED, _N, None, None, Decision.DAMAGED_QUARANTINE, "an accepted block is damaged: read it again"),
    Row(Found.DAMAGED, _U, None, _O, Decision.DAMAGED_QUARANTINE, "what may yet be reported is damaged"),
    Row(Found.DAMAGED, _U, RangeStatus.BEHIND, _C, Decision.DAMAGED_QUARANTINE, "what may yet be reported is damaged"),
    Row(Found.DAMAGED, _U, RangeStatus.UNKNOWN, _C, Decision.DAMAGED_QUARANTINE, "what was here can't be told"),
    Row(Found.DAMAGED, _U, RangeStatus.PAST, _C, Decision.ORPHAN_DELETE, "damaged, but nothing needs what it held"),
    Row(Found.DAMAGED, _U, RangeStatus.INCARNATION_ENDED, _C, Decision.ORPHAN_DELETE, "damaged, but nothing needs what it held"),
    Row(Found.ABSENT, _N, None, None, Decision.MISSING, "an accepted block is not there: read it again"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of the bytes ``[offset, until)`` of ``path``. ``ranges``: what to read again, keep or drop, as far as it can be
    named; ``block_id``: likewise. ``named``: the journal has that block there.
    """

    path: str
    offset: int
    until: int
    decision: Decision
    words: str
    block_id: str | None = None
    ranges: tuple[OffsetRange, ...] = ()
    found: Found = Found.WHOLE
    named: bool = False


def decide(evidence: Evidence) -> Row:
    """The row that holds."""
    for row in TABLE:
        if row.holds(evidence):
            return row
    raise AssertionError(f"no row for {evidence}")


def assess_segment(
    path: str, scanned: Iterable[Scanned] | None, accepted: Sequence[Block], view: JournalView, *, closed: bool
) -> list[Verdict]:
    """A verdict for everything found in the block segment ``path`` and for every block the journal has there, in
    order of offsets.

    ``scanned``: a scan with payloads, None if there is no such file. ``accepted``: blocks of the journal whose
    handles name ``path``. An orphan with several ranges is deleted only if each of them allows it.
    """
    named = {block.handle.offset: block for block in accepted}
    verdicts = []
    for item in scanned or ():
        verdicts += _verdicts(path, item, named, view, closed)
    verdicts += [_of_block(path, Found.ABSENT, block, view, closed) for block in named.values()]
    return sorted(verdicts, key=lambda verdict: (verdict.offset, verdict.until))


def _verdicts(path: str, item: Scanned, named: dict[int, Block], view: JournalView, closed: bool) -> list[Verdict]:
    """Of one thing found; takes the blocks that it speaks of out of ``named``."""
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
            return [_of_block(path, Found.WHOLE if same else Found.DAMAGED, block, view, closed)]
        if meta is None:
            return [_of_unnamed(path, Found.DAMAGED, item.offset, until, None, (), view, closed)]
        return [_of_unnamed(path, Found.WHOLE, item.offset, until, meta.id, meta.ranges, view, closed)]
    if isinstance(item, TornTail):
        found, until, metadata = Found.TORN, item.offset + item.length, None
    elif isinstance(item, Damage):
        found, until, metadata = Found.DAMAGED, item.until, item.metadata
    else:
        found, until, metadata = Found.NEWER, item.until, None
    blocks = _taken(named, item.offset, until)
    if blocks:
        return [_of_block(path, found, block, view, closed) for block in blocks]
    block_id: str | None = None
    ranges: tuple[OffsetRange, ...] = ()
    if metadata is not None:
        try:
            meta = decode_meta(metadata, path, item.offset)
        except CorruptionError:
            meta = None
        if meta is not None:
            block_id, ranges = meta.id, meta.ranges
    return [_of_unnamed(path, found, item.offset, until, block_id, ranges, view, closed)]


def _same(meta: BlockMeta | None, accepted: BlockMeta) -> bool:
    """Whether a frame's metadata is that of the accepted block; recovery may have encrypted it with another key, and an older
    release may have written it, or journalled it, without a SHA-256."""
    return (
        meta is not None and msgspec.structs.replace(meta, key_id=accepted.key_id, sha256=accepted.sha256) == accepted
    )


def _taken(named: dict[int, Block], offset: int, until: int) -> list[Block]:
    inside = [at for at, block in named.items() if at < until and at + block.handle.length > offset]
    return [named.pop(at) for at in inside]


def _of_block(path: str, found: Found, block: Block, view: JournalView, closed: bool) -> Verdict:
    row = decide(Evidence(found, True, view.status(block.meta.ranges[0]), closed))
    handle = block.handle
    until = handle.offset + handle.length
    return Verdict(path, handle.offset, until, row.decision, row.words, block.id, block.meta.ranges, found, True)


def _of_unnamed(
    path: str,
    found: Found,
    offset: int,
    until: int,
    block_id: str | None,
    ranges: tuple[OffsetRange, ...],
    view: JournalView,
    closed: bool,
) -> Verdict:
    statuses = [view.status(held) for held in ranges] or [RangeStatus.UNKNOWN]
    rows = [decide(Evidence(found, False, status, closed)) for status in statuses]
    row = next((row for row in rows if row.decision is not Decision.ORPHAN_DELETE), rows[0])
    return Verdict(path, offset, until, row.decision, row.words, block_id, ranges, found)
