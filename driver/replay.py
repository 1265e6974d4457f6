"""Which batches a replay would run again, and whether their bytes are still held: a decision on values alone.

A replay rewinds the stream's cursor to a batch: that batch and all completed ones after it run again, in order, from the WAL.
It never moves a position, so it needs nothing of Kafka and reads nothing in twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from driver.history import FinishedBatch, finished
from driver.state import State
from forebay.errors import RefusedError

#: blocks that one replay may hold: its beginning is one event of the journal
REPLAY_BLOCKS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class RewindTo:
    """To the batch with this id, or this number in its sequence; or to the first one at or after ``time_ms``."""

    batch: int = 0
    time_ms: int = 0

    def __str__(self) -> str:
        return f"batch {self.batch}" if self.batch else f"time {self.time_ms} ms"


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """``batches``: in the order in which they would run. ``lacking``: those of them whose bytes are gone or about to go.
    ``possible_from``: the oldest batch from which on all are held, None if not even the newest is. ``window``: the batches
    before the first, in order, that its window can reach back to."""

    batches: tuple[FinishedBatch, ...]
    lacking: tuple[FinishedBatch, ...]
    possible_from: FinishedBatch | None
    window: tuple[FinishedBatch, ...] = ()

    @property
    def possible(self) -> bool:
        return bool(self.batches) and not self.lacking


def completed(state: State, archived: Iterable[FinishedBatch]) -> list[FinishedBatch]:
    """All completed batches, each once, in order: of the history, and those that have yet to move there."""
    found = {batch.batch_id: batch for batch in archived}
    for batch in finished(state, limit=len(state.batches), windows=False):
        found.setdefault(batch.batch_id, batch)
    return sorted(found.values(), key=lambda batch: batch.batch_id)


def plan(state: State, archived: Iterable[FinishedBatch], to: RewindTo) -> ReplayPlan:
    """Raises RefusedError if no completed batch is there to rewind to."""
    batches = completed(state, archived)
    if not batches:
        raise RefusedError("no batch is completed yet: there is nothing to replay", "not-found")
    begin = _begin(batches, to)
    held = [_held(state, batch) for batch in batches]
    possible_from = None
    for batch, whole in zip(reversed(batches), reversed(held), strict=True):
        if not whole:
            break
        possible_from = batch
    lacking = tuple(batch for batch, whole in zip(batches[begin:], held[begin:], strict=True) if not whole)
    reach = begin
    while reach > max(0, begin - state.window_batches) and held[reach - 1]:
        reach -= 1
    return ReplayPlan(tuple(batches[begin:]), lacking, possible_from, tuple(batches[reach:begin]))


def _begin(batches: list[FinishedBatch], to: RewindTo) -> int:
    for index in reversed(range(len(batches))) if to.batch else range(len(batches)):
        batch = batches[index]
        if to.batch in (batch.batch_id, batch.number) if to.batch else batch.time_ms >= to.time_ms:
            return index
    first, last = batches[0], batches[-1]
    raise RefusedError(
        f"no completed batch is {'at or after ' if not to.batch else ''}{to}: there are those from {first.batch_id} (number "
        f"{first.number}, {first.time_ms} ms) to {last.batch_id} (number {last.number}, {last.time_ms} ms)",
        "not-found",
    )


def _held(state: State, batch: FinishedBatch) -> bool:
    """Whether the journal still names every block of it, and no deletion of one is intended (INV-8)."""
    blocks = [state.blocks.get(block_id) for task in batch.tasks for block_id in task]
    return all(block is not None and block.handle.path not in state.cleaning_segments for block in blocks)


def refuse(found: ReplayPlan) -> str:
    """In words why ``found`` is not possible, and what is."""
    first = found.lacking[0]
    words = f"the WAL no longer holds all blocks of {len(found.lacking)} of these batches, the first of them {first.batch_id}"
    if found.possible_from is None:
        return f"{words}; no completed batch can be replayed: the rewind horizon is wal.retention"
    oldest = found.possible_from
    return f"{words}; a replay is possible from batch {oldest.batch_id} (number {oldest.number}) on"
