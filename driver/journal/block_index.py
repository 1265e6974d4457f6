"""The block index: lookup tables over all blocks, so that the decision loop does not read all blocks for one decision.

It is derived from :class:`driver.journal.state.State` alone and never stored. ``apply`` changes it together with the state. A
state that is read from a snapshot builds it again (``State.build_index``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sortedcontainers import SortedList

from forebay.model.values import Block, BlockRange
from wal.decisions.retention import DueReason, ReleasedSegment, RetentionLimits, due


@dataclass(slots=True)
class SegmentShare:
    """The blocks of one WAL segment that the journal names.

    ``bytes``: from the segment's start to the end of its last block. ``held``: number of blocks that wait, that belong to a
    batch outside the history, or that a replay reads again. ``unread``: number of ranges that a cursor has not read yet.
    ``released_ms``: when the last batch of the released blocks was completed.
    """

    blocks: dict[str, None] = field(default_factory=dict)
    bytes: int = 0
    held: int = 0
    unread: int = 0
    released_ms: int = 0

    @property
    def needed(self) -> bool:
        """Whether a batch, a replay or a cursor needs one of the blocks."""
        return self.held > 0 or self.unread > 0


#: values of ``IncarnationBlocks.newest_ms`` in place of a time
NO_RECORDS, ANY_TIME = -1, 2**63 - 1


@dataclass(slots=True)
class IncarnationBlocks:
    """The blocks of one partition in one incarnation, as parallel lists in offset order: both ends of each range, block ids.

    ``begins``: start offsets of the ranges that no other range touches from below. ``newest_ms``: the latest record time of
    each range; ``NO_RECORDS`` if the range is empty, ``ANY_TIME`` if the block does not name the time.
    """

    from_offsets: list[int] = field(
        default_factory=list
    )  # lists, not a SortedList: adding at the end is 4 times as fast
    until_offsets: list[int] = field(default_factory=list)
    block_ids: list[str] = field(default_factory=list)
    begins: SortedList[int] = field(default_factory=SortedList)
    newest_ms: list[int] = field(default_factory=list)

    def add(self, r: BlockRange, block_id: str) -> None:
        """Add a range of a block."""
        from_offset, until_offset = r.from_offset, r.until_offset
        at = len(self.from_offsets)
        if at and from_offset < self.from_offsets[-1]:
            at = bisect_left(self.from_offsets, from_offset)
        if not at or self.until_offsets[at - 1] != from_offset:
            self.begins.add(from_offset)
        if at < len(self.from_offsets) and self.from_offsets[at] == until_offset:
            self.begins.remove(until_offset)
        self.from_offsets.insert(at, from_offset)
        self.until_offsets.insert(at, until_offset)
        self.block_ids.insert(at, block_id)
        self.newest_ms.insert(
            at, NO_RECORDS if not r.records else r.max_timestamp_ms if r.max_timestamp_ms >= 0 else ANY_TIME
        )

    def remove(self, from_offset: int) -> None:
        """Remove the range that begins at ``from_offset``."""
        at = bisect_left(self.from_offsets, from_offset)
        if not at or self.until_offsets[at - 1] != from_offset:
            self.begins.remove(from_offset)
        if at + 1 < len(self.from_offsets) and self.from_offsets[at + 1] == self.until_offsets[at]:
            self.begins.add(self.until_offsets[at])
        del self.from_offsets[at], self.until_offsets[at], self.block_ids[at], self.newest_ms[at]

    def reaches_back(self, until_offset: int) -> int:
        """Return the start of the unbroken run of blocks that ends at ``until_offset``; if none ends there, ``until_offset``."""
        at = bisect_left(self.until_offsets, until_offset)
        if at == len(self.until_offsets) or self.until_offsets[at] != until_offset:
            return until_offset
        begin: int = self.begins[self.begins.bisect_left(until_offset) - 1]
        return begin


#: incarnation and offset: a place in a partition; a later place of the same partition compares greater
Place = tuple[int, int]
#: topic, partition and incarnation → the highest end of a range
Reached = dict[tuple[str, int, int], int]


def reached_by(blocks: Iterable[Block]) -> Reached:
    """Return the highest end of the blocks' ranges in each incarnation of a partition. Reads every range."""
    found: Reached = {}
    for block in blocks:
        for r in block.meta.ranges:
            key = (r.topic, r.partition, r.incarnation)
            found[key] = max(r.until_offset, found.get(key, 0))
    return found


@dataclass(slots=True)
class BlockIndex:
    """Lookup tables over all blocks of a state.

    ``free``: (released_ms, path) of the segments that nothing needs, oldest first. ``bytes``, ``blocks``: totals over all
    segments that the journal names. ``superfluous``: host → ids of local copies that nothing needs and no clean-up names.
    ``waiting_records``: records in waiting blocks; ``records``: batch id → records, of each unfinished batch.
    ``waiting_reached``: where the waiting blocks end; ``reached``: batch id → where its blocks end, of each batch beyond the
    completed prefix. ``lowest``: ``topic/partition`` → place of the slowest cursor that reads the partition. ``incarnations``:
    as :meth:`by_offset`; None before its first call.
    """

    segments: dict[str, SegmentShare] = field(default_factory=dict)
    free: SortedList[tuple[int, str]] = field(default_factory=SortedList)
    bytes: int = 0
    blocks: int = 0
    superfluous: dict[str, dict[str, None]] = field(default_factory=dict)
    waiting_records: int = 0
    records: dict[int, int] = field(default_factory=dict)
    waiting_reached: Reached = field(default_factory=dict)
    reached: dict[int, Reached] = field(default_factory=dict)
    lowest: dict[str, Place] = field(default_factory=dict)
    incarnations: dict[str, dict[int, IncarnationBlocks]] | None = field(default=None, compare=False)

    def add(self, block: Block) -> None:
        """Add ``block``, which the journal names from now on, as held."""
        if not block.in_wal:
            return
        if self.incarnations is not None:
            self._enter(self.incarnations, block)
        self._put(block)

    def by_offset(self, blocks: Mapping[str, Block]) -> dict[str, dict[int, IncarnationBlocks]]:
        """Return ``topic/partition`` → incarnation → its blocks in the WAL. The first call reads all ``blocks``; from then on the
        table is kept up to date."""
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

    def wait(self, block: Block) -> None:
        """Add ``block``, which begins to wait. Its ranges end above those of all earlier blocks (INV-2)."""
        self.waiting_records += block.meta.records
        for r in block.meta.ranges:
            self.waiting_reached[r.topic, r.partition, r.incarnation] = r.until_offset

    def take_all(self, batch_id: int) -> None:
        """Give all waiting blocks to a batch. Does not read them."""
        self.records[batch_id], self.waiting_records = self.waiting_records, 0
        self.reached[batch_id], self.waiting_reached = self.waiting_reached, {}

    def take(self, batch_id: int, blocks: Sequence[Block]) -> None:
        """Give the oldest waiting blocks to a batch."""
        self.records[batch_id] = records = sum(block.meta.records for block in blocks)
        self.reached[batch_id] = reached = reached_by(blocks)
        self.waiting_records -= records
        for key in [key for key, until in reached.items() if self.waiting_reached.get(key) == until]:
            del self.waiting_reached[key]  # no later block has a range there

    def _put(self, block: Block) -> None:
        """Add ``block``, as held, to the share of its segment."""
        share = self.segments.get(block.handle.path)
        if share is None:
            share = self.segments[block.handle.path] = SegmentShare()
        elif share.blocks and not share.needed:
            self.free.remove((share.released_ms, block.handle.path))
        share.blocks[block.id] = None
        self.blocks += 1
        share.held += 1
        share.unread += self.unread(block)
        grown = max(0, block.handle.offset + block.handle.length - share.bytes)
        share.bytes += grown
        self.bytes += grown

    def unread(self, block: Block) -> int:
        """Return how many ranges of ``block`` a cursor has not read yet."""
        if not self.lowest:
            return 0
        lows = ((r, self.lowest.get(f"{r.topic}/{r.partition}")) for r in block.meta.ranges)
        return sum(low is not None and (r.incarnation, r.until_offset) > low for r, low in lows)

    def hold(self, block: Block) -> None:
        """Mark a released block as needed again."""
        if not block.in_wal:
            return
        share = self.segments[block.handle.path]
        if not share.needed:
            self.free.remove((share.released_ms, block.handle.path))
        share.held += 1

    def release(self, blocks: Iterable[Block], completed_ms: int) -> None:
        """Mark ``blocks`` as no longer needed: their batch, completed at ``completed_ms``, has moved to the history, or its
        replay is done."""
        for path, count in Counter(block.handle.path for block in blocks).items():
            if not path:
                continue  # the blocks are not in the WAL
            share = self.segments[path]
            share.held -= count
            share.released_ms = max(share.released_ms, completed_ms)
            if not share.needed:
                self.free.add((share.released_ms, path))

    def move(
        self, block: Block, blocks: Mapping[str, Block], released: Mapping[str, int], replay_blocks: Mapping[str, None]
    ) -> None:
        """Move ``block`` from its handle to the handle that ``blocks`` names for it. ``released`` and ``replay_blocks``: as
        ``State.released`` and ``State.replay_blocks``."""
        path, moved, released_ms = block.handle.path, blocks[block.id], released.get(block.id)
        wanted = released_ms is not None and block.id in replay_blocks
        share = self.segments[path]
        if not share.needed:
            self.free.remove((share.released_ms, path))
        del share.blocks[block.id]
        self.blocks -= 1
        share.held -= released_ms is None or wanted
        share.unread -= self.unread(block)
        others = share.blocks
        if block.handle.offset + block.handle.length == share.bytes:
            handles = (blocks[other].handle for other in others)
            left = max((handle.offset + handle.length for handle in handles), default=0)
            self.bytes -= share.bytes - left
            share.bytes = left
        if released_ms == share.released_ms and not any(released.get(other) == released_ms for other in others):
            share.released_ms = max((released.get(other, 0) for other in others), default=0)
        if not others:
            del self.segments[path]
        elif not share.needed:
            self.free.add((share.released_ms, path))
        self._put(moved)
        if released_ms is not None:
            self.release((moved,), released_ms)
            if wanted:
                self.hold(moved)
        for host in set(block.hosts).difference(moved.hosts):
            self.clean((block,), host)

    def drop(self, path: str, blocks: Mapping[str, Block]) -> tuple[str, ...]:
        """Remove a deleted segment and return the ids of its blocks, which ``blocks`` must still contain."""
        share = self.segments.pop(path, None)
        if share is None:
            return ()
        if not share.needed:
            self.free.remove((share.released_ms, path))
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
        """Set the place before which every cursor that reads the partition ``key`` has finished. None: no cursor reads it any
        more. ``place`` may be before the last one."""
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
                self.free.remove((share.released_ms, path))
            share.unread += 1 if more else -1
            if not share.needed:
                self.free.add((share.released_ms, path))

    def finish(self, blocks: Iterable[Block]) -> None:
        """Mark the local copies of ``blocks`` as superfluous, so that the next clean-up of their hosts deletes them."""
        copies: defaultdict[str, list[str]] = defaultdict(
            list
        )  # filled without a property: a batch may have 100,000 blocks
        for block in blocks:
            meta = block.meta
            if block.local:
                copies[meta.host].append(meta.id)
            for host in block.other_hosts:
                copies[host].append(meta.id)
        for host, ids in copies.items():
            self.superfluous.setdefault(host, {}).update(dict.fromkeys(ids))

    def clean(self, blocks: Iterable[Block], at: str = "") -> None:
        """Remove the local copies of ``blocks``, at one host or at all (``at`` empty), from the superfluous ones: an open
        clean-up names them, or something needs them again."""
        for block in blocks:
            for host in (at,) if at else (block.meta.host, *block.other_hosts):
                superfluous = self.superfluous.get(host)
                if superfluous is not None and superfluous.pop(block.id, True) is None and not superfluous:
                    del self.superfluous[host]

    def oldest(self) -> Iterator[ReleasedSegment]:
        """Return the segments that nothing needs, in the order in which their batches were completed."""
        for released_ms, path in self.free:
            share = self.segments[path]
            yield ReleasedSegment(path, share.bytes, released_ms, len(share.blocks))

    def due(self, limits: RetentionLimits, now_ms: int) -> Iterator[tuple[ReleasedSegment, DueReason]]:
        """Return the segments to delete now (``wal.decisions.retention.due``). Those being deleted count as deleted."""
        return due(self.oldest(), self.bytes, self.blocks, limits, now_ms)

    def is_due(self, path: str, limits: RetentionLimits, now_ms: int) -> bool:
        """Return whether the segment at ``path`` must be deleted now."""
        share = self.segments.get(path)
        if share is None or share.needed:
            return False
        if now_ms - share.released_ms >= limits.retention_ms:
            return True
        return any(segment.path == path for segment, _ in self.due(limits, now_ms))


def _ids(incarnations: Mapping[int, IncarnationBlocks], after: Place, upto: Place | None) -> Iterator[str]:
    """The ids of a partition's blocks whose ranges end after ``after`` and not after ``upto``."""
    for incarnation, held in incarnations.items():
        if incarnation < after[0] or (upto is not None and incarnation > upto[0]):
            continue
        begin = bisect_right(held.until_offsets, after[1]) if incarnation == after[0] else 0
        end = bisect_right(held.until_offsets, upto[1]) if upto is not None and incarnation == upto[0] else None
        yield from held.block_ids[begin:end]
