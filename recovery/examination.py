"""The examination: reads the whole WAL and compares it with the journal.

Every checksum of every segment is verified, several segments at the same time (checksums and reads release the interpreter's
lock). Nothing is changed and no process is fenced; a driver and receivers may run meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import msgspec

from driver.journal.log import reading as journal
from driver.journal.state import State, is_fenced
from forebay.model.errors import CorruptionError, StoreError, UsageError
from forebay.model.values import Block, Handle
from wal.blocks import decode_meta
from wal.decisions.recovery import Decision, FrameCondition, RecoveryVerdict, UnreadRest, assess_segment
from wal.decisions.retention import JournalView, PartitionPosition
from wal.reading import incarnation_key
from wal.segments.frame import Frame, FrameKind, aligned
from wal.segments.layout import BlockPlace, block_folder, parse_block
from wal.segments.scan import Damage, Readable, Scanned, TornTail, scan_segment
from wal.storage import Storage

#: decisions that a person must act on
NEEDS_A_PERSON = frozenset({Decision.DAMAGED_QUARANTINE, Decision.MISSING, Decision.NEWER_REFUSE, Decision.UNREADABLE})
#: maximum number of segments read at the same time; each needs memory for a piece of the segment or its longest frame
READERS_MAX = 8

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class UnnamedFrame:
    """A whole block frame at a place that the journal does not name.

    It is an orphan, was written twice, or is in a segment under another segment's name.
    """

    block_id: str
    handle: Handle


@dataclass(frozen=True, slots=True)
class Segment:
    """One block segment and the verdicts on it.

    ``place``: None if the path is not that of a block segment. ``sealed``: a later segment of its writer exists. ``fenced``:
    the journal says that its writer is outdated. ``swapped``: its header names another path. ``copies``: also the blocks after a
    failed read, since each of them may be readable by itself. ``unreadable``: the store's error; "" if all bytes were read.
    """

    path: str
    place: BlockPlace | None
    bytes: int
    frames: int
    sealed: bool
    fenced: bool
    swapped: bool
    verdicts: tuple[RecoveryVerdict, ...]
    copies: tuple[UnnamedFrame, ...]
    unreadable: str = ""

    @property
    def closed(self) -> bool:
        return self.sealed or self.fenced

    @property
    def holds_nothing(self) -> bool:
        """Whether the segment is absent or empty. False if that is unknown, because its size can't be read."""
        return not self.bytes and not self.unreadable


class MissingSegments(msgspec.Struct, frozen=True):
    """Segments ``first`` to ``last`` of an epoch do not exist, but later ones do; the journal names no block in them."""

    receiver: str
    epoch: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Examination:
    """The result of an examination.

    ``state``: the journal's; None if only the WAL was examined. ``segments``: absent ones too, with 0 bytes.
    """

    stream: str
    state: State | None
    segments: tuple[Segment, ...]
    missing_segments: tuple[MissingSegments, ...]

    @property
    def verdicts(self) -> Iterator[RecoveryVerdict]:
        for segment in self.segments:
            yield from segment.verdicts

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(verdict.decision.value for verdict in self.verdicts))


class Place(msgspec.Struct, frozen=True, rename={"reason": "words"}):
    """One place of the WAL, or one block that the journal names. ``decision``: as in ``wal.decisions.recovery.Decision``.

    ``batch_id``: the batch with the block, 0 if none. ``needed``: an unfinished or later batch still has to read the block.
    """

    path: str
    offset: int
    until: int
    decision: str
    reason: str
    block_id: str
    ranges: tuple[str, ...]
    batch_id: int = 0
    needed: bool = False


def read_state(storage: Storage, stream: str) -> State:
    """Return the journal's state, without disturbing the process that leads it. Raises UsageError if there is no journal."""
    state = journal.read_beside_a_writer(storage, stream).state
    if state is None:
        raise UsageError(f"{storage.url} holds no journal of stream {stream!r}: check stream and driver.journal")
    return state


def listed_segments(storage: Storage, stream: str) -> list[str]:
    """Return the paths of the block segments that the store lists."""
    return [path for path in storage.list(block_folder(stream)) if path.endswith(".seg")]


def total_bytes(storage: Storage, stream: str) -> int:
    """Return the total size of all block segments whose size can be read, in bytes."""
    total = 0
    for path in listed_segments(storage, stream):
        # deleted since it was listed; or an error, which the examination reports
        with contextlib.suppress(FileNotFoundError, StoreError):
            total += storage.size(path)
    return total


def examine_beside_a_driver(
    journal_storage: Storage, wal_storage: Storage, stream: str, progress: Progress = lambda _: None
) -> Examination:
    """Examine the WAL while a driver may run: read the journal first, then the WAL.

    A block that a receiver writes meanwhile appears as an orphan with the decision to keep it. If a block is missing, the
    journal is read again, since clean-up may have deleted it or a recovery may have moved it. Raises UsageError if there is no
    journal.
    """
    state = read_state(journal_storage, stream)
    found = examine(state, wal_storage, stream, progress=progress)
    if not any(verdict.condition is FrameCondition.ABSENT for verdict in found.verdicts):
        return found
    later = read_state(journal_storage, stream)

    def holds(verdict: RecoveryVerdict) -> bool:
        if verdict.condition is not FrameCondition.ABSENT:
            return True
        block = later.blocks.get(verdict.block_id or "")
        return (
            block is not None
            and (block.handle.path, block.handle.offset) == (verdict.path, verdict.offset)
            and block.handle.path not in later.cleaning_segments
        )

    segments = tuple(replace(s, verdicts=tuple(v for v in s.verdicts if holds(v))) for s in found.segments)
    return Examination(stream, state, segments, found.missing_segments)


def examine(
    state: State | None, storage: Storage, stream: str, *, readers: int = 0, progress: Progress = lambda _: None
) -> Examination:
    """Read every block segment of ``stream`` and verify all checksums.

    ``readers``: segments read at the same time; 0: one for each processor. ``progress`` is called with bytes read, from several
    threads. A segment that can't be read is a finding. Raises StoreError if none can be read, or the listing fails: the store is
    unavailable.
    """
    paths = listed_segments(storage, stream)
    accepted = _accepted(state, paths)
    view = journal_view(state)
    named = (*paths, *accepted)  # segments under clean-up are not in ``accepted``, and may still exist
    places = {path: parse_block(path) for path in named}
    newest: dict[tuple[str, int], int] = {}
    for path in paths:
        if (place := places[path]) is not None:
            newest[place[1:3]] = max(newest.get(place[1:3], 0), place.sequence)

    def one(path: str) -> Segment:
        place = places[path]
        sealed = not storage.appendable or (place is not None and place.sequence < newest.get(place[1:3], 0))
        fenced = place is not None and state is not None and is_fenced(state, place.receiver, place.epoch)
        return examine_segment(storage, path, accepted[path], view, sealed=sealed, fenced=fenced, progress=progress)

    with ThreadPoolExecutor(readers or min(READERS_MAX, os.cpu_count() or 1), "examine") as pool:
        segments = tuple(pool.map(one, sorted(accepted)))
    if any(segment.unreadable for segment in segments):
        listed_segments(storage, stream)  # raises if the store is away by now, and not only these segments
    if segments and all(segment.unreadable and not segment.frames for segment in segments):
        raise StoreError(segments[0].unreadable)  # or a store that is away would have its blocks written again
    return Examination(stream, state, segments, tuple(_missing_segments(filter(None, places.values()))))


def examine_segment(
    storage: Readable,
    path: str,
    accepted: Sequence[Block],
    view: JournalView,
    *,
    sealed: bool,
    fenced: bool,
    progress: Progress = lambda _: None,
) -> Segment:
    """Examine one segment. ``accepted``: the blocks that the journal has there. A StoreError is a finding."""
    tapped = _Tap(progress)
    size, unreadable = 0, ""
    try:
        size = storage.size(path)
        verdicts = assess_segment(
            path, tapped.pass_on(scan_segment(storage, path), size), accepted, view, closed=sealed or fenced
        )
    except FileNotFoundError:
        size = 0
        verdicts = assess_segment(path, None, accepted, view, closed=sealed or fenced)
    except StoreError as error:  # of the size; the scan's are items of it
        unreadable = str(error)
        end = max((block.handle.offset + block.handle.length for block in accepted), default=0)
        verdicts = assess_segment(path, [UnreadRest(0, end, unreadable)], accepted, view, closed=sealed or fenced)
    any_name = _AnyName()
    if any(verdict.condition is FrameCondition.DAMAGED for verdict in verdicts):
        any_name.scan(storage, path)
        copies = any_name.frames
    else:
        copies = [
            UnnamedFrame(verdict.block_id, tapped.handle(path, verdict.offset))
            for verdict in verdicts
            if verdict.condition is FrameCondition.WHOLE and not verdict.named and verdict.block_id is not None
        ]
    handles = {block.id: block.handle for block in accepted}
    copies += [
        UnnamedFrame(verdict.block_id, handles[verdict.block_id])
        for verdict in verdicts
        if verdict.condition is FrameCondition.UNREADABLE and verdict.block_id is not None
    ]
    return Segment(
        path=path,
        place=parse_block(path),
        bytes=size,
        frames=tapped.frames,
        sealed=sealed,
        fenced=fenced,
        swapped=tapped.whole_damage and any_name.swapped,
        verdicts=tuple(verdicts),
        copies=tuple(copies),
        unreadable=unreadable or tapped.unreadable or any_name.unreadable,
    )


class _Tap:
    """Observes a scan: counts the frames, records each frame's handle, and ends the scan at the first error of the store."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._frames: dict[int, tuple[int, int]] = {}
        self.frames = 0
        self.whole_damage = False
        self.unreadable = ""

    def pass_on(self, scanned: Iterable[Scanned], size: int) -> Iterator[Scanned | UnreadRest]:
        reached = 0
        try:
            for item in scanned:
                if isinstance(item, Frame):
                    self.frames += 1
                    if item.header.kind == FrameKind.BLOCK:
                        self._frames[item.offset] = (item.length, item.header.payload_checksum)
                elif isinstance(item, Damage) and item.offset == 0:
                    self.whole_damage = True
                end = end_of(item)
                self._progress(end - reached)
                reached = end
                yield item
        except StoreError as error:
            self.unreadable = str(error)
            yield UnreadRest(reached, max(size, reached), self.unreadable)

    def handle(self, path: str, offset: int) -> Handle:
        length, checksum = self._frames[offset]
        return Handle(path, offset, length, checksum)


def end_of(item: Scanned) -> int:
    """Return the offset at which the next item of the segment begins."""
    if isinstance(item, Frame):
        return item.offset + aligned(item.length)
    return item.offset + item.length if isinstance(item, TornTail) else item.until


class _AnyName:
    """A second scan of a damaged segment, also of one whose header names another path.

    ``frames``: every whole block frame, since any of them may be a block that is missing elsewhere. ``swapped``: whether the
    header is whole. ``unreadable``: the store's error, after which ``frames`` has those before; "" if there was none.
    """

    def __init__(self) -> None:
        self.frames: list[UnnamedFrame] = []
        self.swapped = False
        self.unreadable = ""

    def scan(self, storage: Readable, path: str) -> None:
        try:
            for item in scan_segment(storage, path, swapped=True):
                if isinstance(item, Frame):
                    self.swapped = self.swapped or item.offset == 0
                    self._add(path, item)
        except FileNotFoundError:  # clean-up deleted the segment meanwhile
            self.frames.clear()
        except StoreError as error:
            self.unreadable = str(error)

    def _add(self, path: str, frame: Frame) -> None:
        if frame.header.kind != FrameKind.BLOCK:
            return
        try:
            meta = decode_meta(frame.metadata, path, frame.offset)
        except CorruptionError:  # the verdicts report it as damage
            return
        handle = Handle(path, frame.offset, frame.length, frame.header.payload_checksum)
        self.frames.append(UnnamedFrame(meta.id, handle))


def _accepted(state: State | None, paths: Sequence[str]) -> dict[str, list[Block]]:
    """Return the blocks that the journal has in each segment.

    A segment under clean-up is left out: it may be deleted already, and the journal's intent says that nothing needs it (INV-8).
    """
    accepted: dict[str, list[Block]] = {path: [] for path in paths}
    if state is not None:
        for block in state.blocks.values():
            accepted.setdefault(block.handle.path, []).append(block)
        for path in state.cleaning_segments:
            accepted.pop(path, None)
    return accepted


def journal_view(state: State | None) -> JournalView:
    if state is None:
        return JournalView(frozenset(), frozenset(), {})
    return JournalView(
        needed=state.blocks.keys() - state.released.keys(),
        released=state.released.keys(),
        positions={p.tp: PartitionPosition(p.incarnation.number, p.position) for p in state.partitions.values()},
    )


def _missing_segments(places: Iterable[BlockPlace]) -> Iterator[MissingSegments]:
    sequences: dict[tuple[str, int], list[int]] = {}
    for place in places:
        sequences.setdefault(place[1:3], []).append(place.sequence)
    for (receiver, epoch), there in sorted(sequences.items()):
        there.sort()
        for before, after in itertools.pairwise(there):
            if after > before + 1:
                yield MissingSegments(receiver, epoch, before + 1, after - 1)


def described(verdict: RecoveryVerdict, state: State | None) -> Place:
    """Return ``verdict`` as shown to people, with the batch that needs the block."""
    block_id = verdict.block_id or ""
    batch_id = state.batch_of.get(block_id, 0) if state is not None and verdict.named else 0
    return Place(
        path=verdict.path,
        offset=verdict.offset,
        until=verdict.until,
        decision=verdict.decision.value,
        reason=verdict.reason,
        block_id=block_id,
        ranges=tuple(r.label for r in verdict.ranges),
        batch_id=batch_id,
        needed=verdict.named and state is not None and is_needed(state, block_id),
    )


def topic_ids(state: State, blocks: Iterable[Block]) -> dict[str, str]:
    """Return the topic's id for the ``incarnation_key`` of each range of ``blocks``."""
    return {
        incarnation_key(r): state.partitions[str(r.tp)].topic_id(r.incarnation)
        for block in blocks
        for r in block.meta.ranges
        if str(r.tp) in state.partitions
    }


def is_needed(state: State, block_id: str) -> bool:
    """Return whether the block waits for a batch, or an unfinished batch, its window, a replay or a cursor needs it."""
    batch = state.batches.get(state.batch_of.get(block_id, 0))
    held = batch is not None and not state.is_past(batch.number)
    return block_id in state.waiting or held or block_id in state.replay_blocks() or is_unread(state, block_id)


def is_unread(state: State, block_id: str) -> bool:
    """Return whether a cursor has not read the block yet."""
    block = state.blocks.get(block_id)
    return block is not None and block.in_wal and state.index.unread(block) > 0
