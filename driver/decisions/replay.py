"""Which batches a replay would run again, and whether their bytes are still held: a decision on values alone.

A replay rewinds the stream's cursor to a batch: that batch and all completed ones after it run again, in order, from the WAL.
It never moves a position, so it needs nothing of Kafka and reads nothing in twice. A direct stream's batches run again from
Kafka, as far as that still holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import TypeAlias

from driver.journal.history import FinishedBatch, finished
from driver.journal.state import Rebuild, State, is_void
from forebay.kafka.consume.spans import Span, without
from forebay.model.errors import RefusedError
from forebay.model.values import Block, count_of

#: blocks that one replay may hold: its beginning is one event of the journal
REPLAY_BLOCKS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class RewindTo:
    """To the batch with this id, or this number in its sequence; or to the first one at or after ``time_ms``."""

    batch: int = 0
    time_ms: int = 0

    @property
    def number(self) -> int:
        """Of the batch that is named, 0 if none is: the low part of its id."""
        return count_of(self.batch)

    def __str__(self) -> str:
        return f"batch {self.batch}" if self.batch else f"time {self.time_ms} ms"


#: whether Kafka still holds all of a span of a direct stream
HeldInKafka: TypeAlias = Callable[[Span], bool]


def no_spans(span: Span) -> bool:
    """An intake's batches have blocks, and no spans."""
    return False


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


@dataclass(frozen=True, slots=True)
class Horizon:
    """What of the journal's state decides how far back the history is read, as it was at one moment. ``held``: ids of the
    blocks whose bytes are there, and not about to go. ``window_batches``: how many before the first one its window may need."""

    archived_number: int
    window_batches: int
    rebuilds: tuple[Rebuild, ...]
    held: Set[str]
    held_in_kafka: HeldInKafka

    @classmethod
    def of(cls, state: State, held_in_kafka: HeldInKafka = no_spans) -> Horizon:
        """Goes over all blocks of the state once."""
        held = frozenset(b.id for b in state.blocks.values() if _is_kept(state, b))
        return cls(state.archived_number, state.window_batches, tuple(state.rebuilds), held, held_in_kafka)

    def holds(self, batch: FinishedBatch) -> bool:
        return all(block_id in self.held for task in batch.tasks for block_id in task) and _in_kafka(
            batch, self.held_in_kafka
        )

    def dissolved(self, number: int) -> bool:
        """Whether no batch has this number, because of a rebuild."""
        return any(r.known_number < number <= r.batch_count for r in self.rebuilds)


def needed(segments: Iterable[Iterable[FinishedBatch]], horizon: Horizon, to: RewindTo) -> tuple[FinishedBatch, ...]:
    """What :func:`plan` needs of the history. ``segments``: its batches, the newest segment first; so many are taken that no
    number is left out from the newest batch back to the one that is named and its window, or to the first whose bytes are gone:
    what lies before that can't be replayed. By time, or if ``to`` names nothing, it is always the latter. Raises RefusedError
    if the history has lost one that would run."""
    found: dict[int, FinishedBatch] = {}
    number = horizon.archived_number
    newest_first = iter(segments)
    window = horizon.window_batches
    while number > 0 and (number >= to.number or window > 0):
        if horizon.dissolved(number):
            number -= 1
        elif number in found:
            if not horizon.holds(found[number]):
                break
            window -= number < to.number
            number -= 1
        elif (segment := next(newest_first, None)) is not None:
            for batch in segment:
                if not is_void(horizon.rebuilds, batch.batch_id, batch.number):
                    found.setdefault(batch.number, batch)
        else:
            return _without_lost(found, number, to)
    return tuple(found.values())


def _without_lost(found: dict[int, FinishedBatch], lost: int, to: RewindTo) -> tuple[FinishedBatch, ...]:
    """The batches after number ``lost``, which the history has lost. Raises RefusedError if it would run too, or may have to:
    a replay that leaves one out says nothing of it (INV-5)."""
    after = tuple(batch for number, batch in found.items() if number > lost)
    if lost >= to.number > 0 or (to.time_ms and all(batch.time_ms >= to.time_ms for batch in after)):
        raise RefusedError(
            f"the history beside the journal has lost batch number {lost}, which would run too: a segment of it was deleted, "
            f"cut or left out of the store's listing; a replay is possible from number {lost + 1} on",
            "conflict",
        )
    return after


def completed(state: State, archived: Iterable[FinishedBatch]) -> list[FinishedBatch]:
    """All completed batches, each once, in order: of the history, and those that have yet to move there."""
    found = {batch.batch_id: batch for batch in archived if not state.is_void(batch.batch_id, batch.number)}
    for batch in finished(state, limit=len(state.batches), windows=False):
        found.setdefault(batch.batch_id, batch)
    return sorted(found.values(), key=lambda batch: batch.batch_id)


def plan(
    state: State, archived: Iterable[FinishedBatch], to: RewindTo, held_in_kafka: HeldInKafka = no_spans
) -> ReplayPlan:
    """``archived``: as :func:`needed` gives it, or all. Raises RefusedError if no completed batch is there to rewind to."""
    batches = completed(state, archived)
    if not batches:
        newest = state.completed_number  # of what lies behind it in the history nothing was needed
        words = (
            f"no completed batch is {to}: the newest one has number {newest}" if newest else "no batch is completed yet"
        )
        raise RefusedError(words, "not-found")
    held = [_held(state, batch) and _in_kafka(batch, held_in_kafka) for batch in batches]
    # before the first one whose bytes are gone nothing need have been read: a rewind to there is one to it
    begin = 0 if not held[0] and 0 < to.number < batches[0].number else _begin(batches, to)
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
    newest = batches[-1]
    raise RefusedError(
        f"no completed batch is {'at or after ' if not to.batch else ''}{to}: the newest one is {newest.batch_id} (number "
        f"{newest.number}, {newest.time_ms} ms)",
        "not-found",
    )


def _held(state: State, batch: FinishedBatch) -> bool:
    """Whether the journal still names every block of it, and no deletion of one is intended (INV-8)."""
    blocks = [state.blocks.get(block_id) for task in batch.tasks for block_id in task]
    return all(block is not None and _is_kept(state, block) for block in blocks)


def _in_kafka(batch: FinishedBatch, held_in_kafka: HeldInKafka) -> bool:
    """Of a direct stream's batch, but for what it ran without."""
    return all(map(held_in_kafka, without(batch.spans, batch.lost)))


def _is_kept(state: State, block: Block) -> bool:
    """Without a WAL nothing is: the hosts' copies go when their batch is in the history."""
    return block.in_wal and block.handle.path not in state.cleaning_segments


def refuse(found: ReplayPlan) -> str:
    """In words why ``found`` is not possible, and what is."""
    newest = found.lacking[-1]
    lacking = "Kafka no longer holds all offsets" if newest.spans else "the WAL no longer holds all blocks"
    horizon = (
        "the retention of Kafka's topics"
        if newest.spans
        else "wal.retention with its limits retention_size, retention_blocks and retention_free"
    )
    words = f"{lacking} of batch {newest.batch_id} (number {newest.number}), which would run too"
    if found.possible_from is None:
        return f"{words}; no completed batch can be replayed: the rewind horizon is {horizon}"
    oldest = found.possible_from
    return f"{words}; a replay is possible from batch {oldest.batch_id} (number {oldest.number}) on"
