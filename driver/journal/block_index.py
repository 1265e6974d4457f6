"""What the deciding thread asks of all blocks at once, kept beside the state so that no round looks through them all.

Derived from :class:`driver.journal.state.State` alone and never journalled: ``apply`` changes it with the state, and a state
that was read from a snapshot makes it anew.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forebay.model.values import Block, OffsetRange
from wal.decisions.retention import Due, Limits, ReleasedSegment, due

if TYPE_CHECKING:
    from driver.journal.state import State


@dataclass(slots=True)
class SegmentShare:
    """What the journal names of one WAL segment. ``bytes``: up to the end of its last block. ``held``: blocks that wait, that
    an unfinished or unarchived batch has, or that a replay wants again. ``unread``: ranges of its blocks that a cursor has yet to
    read. ``released_ms``: when the last of the others' batches was completed."""

    blocks: dict[str, None] = field(default_factory=dict)
    bytes: int = 0
    held: int = 0
    unread: int = 0
    released_ms: int = 0

    @property
    def needed(self) -> bool:
        return self.held > 0 or self.unread > 0


#: in place of a time
NO_RECORDS, ANY_TIME = -1, 2**63 - 1


@dataclass(slots=True)
class IncarnationBlocks:
    """The blocks of one partition in one life, in the order of their offsets: their ranges' two ends, their ids. ``begins``:
    where those begin that no other one touches from below. ``newest_ms``: the latest time of a record of each range,
    ``NO_RECORDS``, or ``ANY_TIME`` where the block does not say."""

    from_offsets: list[int] = field(default_factory=list)
    until_offsets: list[int] = field(default_factory=list)
    block_ids: list[str] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    newest_ms: list[int] = field(default_factory=list)

    def add(self, r: OffsetRange, block_id: str) -> None:
        from_offset, until_offset = r.from_offset, r.until_offset
        at = len(self.from_offsets)
        if at and from_offset < self.from_offsets[-1]:
            at = bisect_left(self.from_offsets, from_offset)
        if not at or self.until_offsets[at - 1] != from_offset:
            insort(self.begins, from_offset)
        if at < len(self.from_offsets) and self.from_offsets[at] == until_offset:
            del self.begins[bisect_left(self.begins, until_offset)]
        self.from_offsets.insert(at, from_offset)
        self.until_offsets.insert(at, until_offset)
        self.block_ids.insert(at, block_id)
        self.newest_ms.insert(
            at, NO_RECORDS if not r.records else r.max_timestamp_ms if r.max_timestamp_ms >= 0 else ANY_TIME
        )

    def remove(self, from_offset: int) -> None:
        at = bisect_left(self.from_offsets, from_offset)
        if not at or self.until_offsets[at - 1] != from_offset:
            del self.begins[bisect_left(self.begins, from_offset)]
        if at + 1 < len(self.from_offsets) and self.from_offsets[at + 1] == self.until_offsets[at]:
            insort(self.begins, self.until_offsets[at])
        del self.from_offsets[at], self.until_offsets[at], self.block_ids[at], self.newest_ms[at]

    def reaches_back(self, until_offset: int) -> int:
        """Where the blocks begin that touch one another up to ``until_offset``; that itself if none ends there."""
        at = bisect_left(self.until_offsets, until_offset)
        if at == len(self.until_offsets) or self.until_offsets[at] != until_offset:
            return until_offset
        return self.begins[bisect_left(self.begins, until_offset) - 1]


#: a place in a partition: life, offset. Places of one partition compare as they follow one another
Place = tuple[int, int]


def wanted_again(state: State) -> dict[str, None]:
    """Ids of the blocks that a replay has yet to read, as its batches or in their windows, in order."""
    batches = (*state.replay_window.values(), *state.replaying.values())
    return {b: None for batch in batches for task in batch.tasks for b in task}


def unread(state: State) -> set[str]:
    """Ids of the blocks in the WAL that a cursor has yet to read. Goes over all of them once."""
    if not state.cursors:
        return set()
    return {block.id for block in state.blocks.values() if block.in_wal and state.index.unread(block)}


def lowest(state: State, key: str) -> Place | None:
    """Up to where every cursor that reads the partition has finished; None if none does."""
    return min((cursor.vector[key] for cursor in state.cursors.values() if key in cursor.vector), default=None)


@dataclass(slots=True)
class BlockIndex:
    """``free``: (released_ms, path) of the segments that nothing holds, oldest first. ``bytes``, ``blocks``: in all
    segments that the journal names. ``spare``: by host, local copies that nothing needs and no open clean-up names.
    ``waiting_records``: in blocks that wait; ``records``: in each unfinished batch. ``lowest``: ``topic/partition`` →
    where the cursor stands that is furthest back, of partitions that cursors read. ``lives``: as :meth:`by_offset`,
    None until somebody asks."""

    segments: dict[str, SegmentShare] = field(default_factory=dict)
    free: list[tuple[int, str]] = field(default_factory=list)
    bytes: int = 0
    blocks: int = 0
    spare: dict[str, dict[str, None]] = field(default_factory=dict)
    waiting_records: int = 0
    records: dict[int, int] = field(default_factory=dict)
    lowest: dict[str, Place] = field(default_factory=dict)
    incarnations: dict[str, dict[int, IncarnationBlocks]] | None = field(default=None, compare=False)

    @classmethod
    def of(cls, state: State) -> BlockIndex:
        """The index of ``state`` as it is, by looking through all of it once."""
        index = cls()
        index.waiting_records = sum(state.blocks[block_id].meta.records for block_id in state.waiting)
        for batch in state.batches.values():
            if batch.completed_ms is None:
                records = sum(state.blocks[b].meta.records for b in batch.block_ids)
                index.records[batch.batch_id] = records + sum(span.size for span in batch.spans)
        for cursor in state.cursors.values():
            for key, place in cursor.vector.items():
                index.lowest[key] = min(place, index.lowest.get(key, place))
        for block in state.blocks.values():
            index.add(block)
        for block_id, completed_ms in state.released.items():
            index.release(state.blocks[block_id], completed_ms)
        again = wanted_again(state)
        for block_id in again:
            if block_id in state.released:
                index.hold(state.blocks[block_id])
        for batch in state.batches.values():
            if state.is_past(batch.number):
                index.finish(b for block_id in batch.block_ids if (b := state.blocks[block_id]).in_wal)
        index.finish(state.blocks[block_id] for block_id in state.released)
        index.clean(state.blocks[block_id] for block_id in again if block_id in state.blocks)
        for cleanup in state.cleanups.values():
            index.clean((state.blocks[b] for b in cleanup.blocks if b in state.blocks), cleanup.host)
        return index

    def add(self, block: Block) -> None:
        """The journal names ``block`` from now on; it is held."""
        if not block.in_wal:
            return
        if self.incarnations is not None:
            self._enter(self.incarnations, block)
        self._put(block)

    def by_offset(self, blocks: Mapping[str, Block]) -> dict[str, dict[int, IncarnationBlocks]]:
        """``topic/partition`` → life → its blocks in the WAL. Made from all ``blocks`` when first asked for, and kept from then
        on."""
        if self.incarnations is None:
            self.incarnations = {}
            for block in blocks.values():
                if block.in_wal:
                    self._enter(self.incarnations, block)
        return self.incarnations

    @staticmethod
    def _enter(incarnations: dict[str, dict[int, IncarnationBlocks]], block: Block) -> None:
        for r in block.meta.ranges:
            own = incarnations.setdefault(f"{r.topic}/{r.partition}", {})
            own.setdefault(r.incarnation, IncarnationBlocks()).add(r, block.id)

    def _put(self, block: Block) -> None:
        """Its segment has ``block``, which is held."""
        share = self.segments.setdefault(block.handle.path, SegmentShare())
        if share.blocks and not share.needed:
            self._not_free(share, block.handle.path)
        share.blocks[block.id] = None
        self.blocks += 1
        share.held += 1
        share.unread += self.unread(block)
        grown = max(0, block.handle.offset + block.handle.length - share.bytes)
        share.bytes += grown
        self.bytes += grown

    def unread(self, block: Block) -> int:
        """Ranges of it that a cursor has yet to read."""
        if not self.lowest:
            return 0
        lows = ((r, self.lowest.get(f"{r.topic}/{r.partition}")) for r in block.meta.ranges)
        return sum(low is not None and (r.incarnation, r.until_offset) > low for r, low in lows)

    def hold(self, block: Block) -> None:
        """A released block is needed again."""
        if not block.in_wal:
            return
        share = self.segments[block.handle.path]
        if not share.needed:
            self._not_free(share, block.handle.path)
        share.held += 1

    def release(self, block: Block, completed_ms: int) -> None:
        """``block`` is held no more, since its batch, completed at ``completed_ms``, is in the history alone, or its replay is
        done."""
        if not block.in_wal:
            return
        share = self.segments[block.handle.path]
        share.held -= 1
        share.released_ms = max(share.released_ms, completed_ms)
        if not share.needed:
            insort(self.free, (share.released_ms, block.handle.path))

    def move(self, block: Block, state: State) -> None:
        """The bytes of ``block`` lay at its handle until now, and lie where ``state`` names them."""
        path, moved, released_ms = block.handle.path, state.blocks[block.id], state.released.get(block.id)
        wanted = released_ms is not None and bool(state.replaying) and block.id in wanted_again(state)
        share = self.segments[path]
        if not share.needed:
            self._not_free(share, path)
        del share.blocks[block.id]
        self.blocks -= 1
        share.held -= released_ms is None or wanted
        share.unread -= self.unread(block)
        others = share.blocks
        if block.handle.offset + block.handle.length == share.bytes:
            handles = (state.blocks[other].handle for other in others)
            left = max((handle.offset + handle.length for handle in handles), default=0)
            self.bytes -= share.bytes - left
            share.bytes = left
        if released_ms == share.released_ms and not any(state.released.get(o) == released_ms for o in others):
            share.released_ms = max((state.released.get(other, 0) for other in others), default=0)
        if not others:
            del self.segments[path]
        elif not share.needed:
            insort(self.free, (share.released_ms, path))
        self._put(moved)
        if released_ms is not None:
            self.release(moved, released_ms)
            if wanted:
                self.hold(moved)
        if not moved.local:
            self.clean((block,))

    def drop(self, path: str, blocks: Mapping[str, Block]) -> tuple[str, ...]:
        """The segment is deleted; returns the ids of its blocks, which ``blocks`` still has."""
        share = self.segments.pop(path, None)
        if share is None:
            return ()
        if not share.needed:
            self._not_free(share, path)
        self.bytes -= share.bytes
        self.blocks -= len(share.blocks)
        if self.incarnations is not None:
            for block_id in share.blocks:
                for r in blocks[block_id].meta.ranges:
                    key = f"{r.topic}/{r.partition}"
                    incarnation = self.incarnations[key][r.incarnation]
                    incarnation.remove(r.from_offset)
                    if not incarnation.block_ids:
                        del self.incarnations[key][r.incarnation]
                    if not self.incarnations[key]:
                        del self.incarnations[key]
        return tuple(share.blocks)

    def read_to(self, key: str, place: Place | None, blocks: Mapping[str, Block]) -> None:
        """Every cursor that reads the partition ``key`` has finished what lies before ``place``, which may be further back than
        until now; None: none reads it any more."""
        before = self.lowest.get(key)
        if place == before:
            return
        if place is None:
            del self.lowest[key]
        else:
            self.lowest[key] = place
        more = before is None or (place is not None and place < before)
        first, last = (place, before) if more else (before, place)
        assert first is not None
        for block_id in _ids(self.by_offset(blocks).get(key, {}), first, last):
            path = blocks[block_id].handle.path
            share = self.segments[path]
            if not share.needed:
                self._not_free(share, path)
            share.unread += 1 if more else -1
            if not share.needed:
                insort(self.free, (share.released_ms, path))

    def finish(self, blocks: Iterable[Block]) -> None:
        """Nothing needs the local copies of ``blocks`` any more."""
        for block in blocks:
            for host in block.hosts:
                self.spare.setdefault(host, {})[block.id] = None

    def clean(self, blocks: Iterable[Block], at: str = "") -> None:
        """The local copies of ``blocks`` are to be deleted, or are needed again: those at one host, or all."""
        for block in blocks:
            for host in (at,) if at else (block.meta.host, *block.other_hosts):
                spare = self.spare.get(host)
                if spare is not None and spare.pop(block.id, True) is None and not spare:
                    del self.spare[host]

    def oldest(self) -> Iterator[ReleasedSegment]:
        """Segments that nothing holds, those first whose batches were completed first."""
        for released_ms, path in self.free:
            share = self.segments[path]
            yield ReleasedSegment(path, share.bytes, released_ms, len(share.blocks))

    def due(self, limits: Limits, now_ms: int) -> Iterator[tuple[ReleasedSegment, Due]]:
        """Those that go now (``wal.decisions.retention.due``); what is going already counts as gone."""
        return due(self.oldest(), self.bytes, self.blocks, limits, now_ms)

    def is_due(self, path: str, limits: Limits, now_ms: int) -> bool:
        share = self.segments.get(path)
        if share is None or share.needed:
            return False
        if now_ms - share.released_ms >= limits.retention_ms:
            return True
        return any(segment.path == path for segment, _ in self.due(limits, now_ms))

    def _not_free(self, share: SegmentShare, path: str) -> None:
        place = (share.released_ms, path)
        at = bisect_left(self.free, place)
        assert self.free[at] == place
        del self.free[at]


def _ids(incarnations: Mapping[int, IncarnationBlocks], after: Place, upto: Place | None) -> Iterator[str]:
    """Blocks of a partition whose ranges end after the one place, and not after the other."""
    for incarnation, held in incarnations.items():
        if incarnation < after[0] or (upto is not None and incarnation > upto[0]):
            continue
        begin = bisect_right(held.until_offsets, after[1]) if incarnation == after[0] else 0
        end = bisect_right(held.until_offsets, upto[1]) if upto is not None and incarnation == upto[0] else None
        yield from held.block_ids[begin:end]
