"""The blocks that the journal names: a list with filters, newest first, and one block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from driver.http.observation.lists import LIMIT, check_limit
from driver.journal.state import State
from driver.listeners.offsets import batch_ranges
from driver.tracker.requests import Read
from forebay import messages as m
from forebay.model.bounds import total_size
from forebay.model.values import Block
from wal.reading import incarnation_key

#: maximum number of blocks that one request looks at; a page ends there and can be continued
LOOKED_AT_MAX = 50_000
#: number of blocks that are looked at before the page's length is checked
TOGETHER = 1_000
#: maximum number of ranges of a block in a list
RANGES_MAX = 20
#: maximum number of ranges of a block that is shown alone
RANGES_ALONE_MAX = 1_000


@dataclass(frozen=True)
class BlockTable:
    """All blocks, newest first. ``waiting_ids``: of those in no batch; ``unfinished``: the tasks of the unfinished batches."""

    blocks: Sequence[Block]
    waiting_ids: Sequence[str]
    unfinished: Sequence[tuple[tuple[str, ...], ...]]

    @cached_property
    def _waiting(self) -> Set[str]:
        return frozenset(self.waiting_ids)

    @cached_property
    def _queued(self) -> Set[str]:
        return frozenset(block_id for tasks in self.unfinished for task in tasks for block_id in task)

    def state(self, block_id: str) -> str:
        """Return ``messages.BlockEntry.state``."""
        return "waiting" if block_id in self._waiting else "queued" if block_id in self._queued else "completed"


@dataclass(frozen=True, slots=True)
class ReadBlocks(Read[BlockTable]):
    """Copies the references to all blocks: some milliseconds for hundreds of thousands."""

    def read(self, state: State) -> BlockTable:
        return BlockTable(
            tuple(reversed(state.blocks.values())),
            tuple(state.waiting),
            tuple(batch.tasks for batch in state.unfinished()),
        )


@dataclass(frozen=True, slots=True)
class Membership:
    """The batches of some blocks. ``batch_ids``: of blocks whose batch is in the state. ``completed_ms``: of the others, when the
    batch was completed."""

    batch_ids: Mapping[str, int]
    completed_ms: Mapping[str, int]

    def named(self, completed: Iterable[m.BatchEntry]) -> Mapping[str, int]:
        """Return block id → batch id. A batch that is only in the history is found among ``completed`` by the time of its
        completion; blocks of batches that were completed in the same millisecond are left out."""
        by_ms: dict[int, int] = {}
        for batch in completed if self.completed_ms else ():
            if not batch.replay and batch.completed_ms is not None:
                by_ms[batch.completed_ms] = 0 if batch.completed_ms in by_ms else batch.batch_id
        found = {block_id: by_ms.get(ms, 0) for block_id, ms in self.completed_ms.items()}
        return {**{block_id: batch_id for block_id, batch_id in found.items() if batch_id}, **self.batch_ids}


@dataclass(frozen=True, slots=True)
class ReadMembership(Read[Membership]):
    """Reads the batches of a page of blocks."""

    block_ids: Sequence[str]

    def read(self, state: State) -> Membership:
        return Membership(
            {block_id: state.batch_of[block_id] for block_id in self.block_ids if block_id in state.batch_of},
            {block_id: state.released[block_id] for block_id in self.block_ids if block_id in state.released},
        )


@dataclass(frozen=True, slots=True)
class ReadableBlock:
    """A block with what reading it needs. ``topic_ids``: as ``wal.reading.ReadPlan.topic_ids``; ``lost``: accepted losses."""

    block: Block
    state: str
    batch_id: int
    topic_ids: Mapping[str, str]
    lost: frozenset[str]


@dataclass(frozen=True, slots=True)
class ReadBlock(Read["ReadableBlock | None"]):
    """Reads one block; None if the journal does not name it."""

    block_id: str

    def read(self, state: State) -> ReadableBlock | None:
        block = state.blocks.get(self.block_id)
        if block is None:
            return None
        batch_id = state.batch_of.get(block.id, 0)
        batch = state.batches.get(batch_id)
        waiting = block.id in state.waiting
        ids = {}
        for r in block.meta.ranges:
            partition = state.partitions.get(str(r.tp))
            ids[incarnation_key(r)] = partition.topic_id(r.incarnation) if partition is not None else ""
        return ReadableBlock(
            block,
            "waiting" if waiting else "queued" if batch is not None and batch.completed_ms is None else "completed",
            batch_id,
            ids,
            frozenset(r.label for r in block.meta.ranges if r.label in state.lost),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockQuery:
    """Which blocks a client wants. Unset: "", None, or batch 0. ``of_batch``: the ids of the batch's blocks."""

    limit: int = LIMIT
    after: str = ""
    state: str = ""
    text: str = ""
    batch_id: int = 0
    of_batch: Set[str] = frozenset()
    topic: str = ""
    partition: int | None = None
    offset: int | None = None

    @property
    def is_filter(self) -> bool:
        """Whether some blocks may not match."""
        return self != BlockQuery(limit=self.limit, after=self.after)

    def matches(self, block: Block, table: BlockTable) -> bool:
        """Return whether the block is wanted."""
        if self.batch_id and block.id not in self.of_batch:
            return False
        if self.text and self.text.lower() not in block.id.lower():
            return False
        if self.state and table.state(block.id) != self.state:
            return False
        if not self.topic and self.partition is None and self.offset is None:
            return True
        return any(
            (not self.topic or r.topic == self.topic)
            and (self.partition is None or r.partition == self.partition)
            and (self.offset is None or r.from_offset <= self.offset < r.until_offset)
            for r in block.meta.ranges
        )


def block_list(
    table: BlockTable, query: BlockQuery, batch_ids: Callable[[Sequence[str]], Mapping[str, int]]
) -> m.BlockListAnswer:
    """Return a page of blocks. ``batch_ids`` returns the batches of blocks, by their ids.

    A page may be short, even empty, because at most ``LOOKED_AT_MAX`` blocks are looked at. Raises UsageError.
    """
    check_limit(query.limit)
    blocks = table.blocks
    begin = 0
    if query.after:
        begin = next((at + 1 for at, block in enumerate(blocks) if block.id == query.after), len(blocks))
    end = min(len(blocks), begin + LOOKED_AT_MAX)
    found: list[Block] = []
    last = ""
    for at in range(begin, end, TOGETHER):
        part = blocks[at : min(at + TOGETHER, end)]
        found += [block for block in part if query.matches(block, table)][: query.limit - len(found)]
        if len(found) == query.limit:
            last = found[-1].id if found[-1] is not blocks[-1] else ""
            break
    else:
        last = blocks[end - 1].id if end < len(blocks) else ""
    batches = batch_ids([block.id for block in found])
    entries = [block_entry(b, table.state(b.id), query.batch_id or batches.get(b.id, 0)) for b in found]
    return m.BlockListAnswer(total=None if query.is_filter else len(blocks), next=last, blocks=tuple(entries))


def block_entry(block: Block, state: str, batch_id: int, ranges_max: int = RANGES_MAX) -> m.BlockEntry:
    """Return the block as observers see it, with at most ``ranges_max`` ranges."""
    meta, handle = block.meta, block.handle
    return m.BlockEntry(
        block_id=block.id,
        receiver_id=meta.receiver_id,
        host=meta.host,
        state=state,
        batch_id=batch_id,
        records=meta.records,
        bytes=total_size(r.bytes for r in meta.ranges),
        created_ms=meta.created_ms,
        range_count=len(meta.ranges),
        ranges=batch_ranges(meta.ranges[:ranges_max]),
        handle=f"{handle.path} at {handle.offset}, {handle.length} bytes" if block.in_wal else "",
        tiers=tuple(_tiers(block)),
    )


def _tiers(block: Block) -> Iterator[str]:
    if block.local:
        yield f"local {block.meta.host}"
    yield from (f"replica {host}" for host in block.other_hosts)
    if block.in_wal:
        yield "wal"
