"""Replays: which batches a replay runs, and whether the bytes of these batches still exist. Decision logic, without I/O.

A replay rewinds the stream to a batch: this batch and all completed batches after it run again, in order, from the WAL. It
moves no position, so it needs nothing from Kafka and takes nothing in twice. The batches of a direct stream run again from
Kafka, as far as Kafka still has their offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import TypeAlias

from driver.decisions.window_reach import WindowReach
from driver.journal.history import FinishedBatch, finished
from driver.journal.state import State, is_void
from driver.journal.state_parts import Rebuild
from driver.journal.transitions.keyed_states import is_readable_before
from forebay.kafka.consume.spans import OffsetRange, with_incarnations, without_lost
from forebay.model.errors import RefusedError
from forebay.model.identifiers import count_of
from forebay.model.values import Block

#: maximum number of blocks of one replay, because its start is one event of the journal
REPLAY_BLOCKS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class RewindTo:
    """The target of a rewind: the batch with this id or this number, or the first batch at or after ``time_ms``."""

    batch: int = 0
    time_ms: int = 0

    @property
    def number(self) -> int:
        """The number of the named batch (the low part of its id); 0 if no batch is named."""
        return count_of(self.batch)

    def __str__(self) -> str:
        return f"batch {self.batch}" if self.batch else f"time {self.time_ms} ms"


#: whether Kafka still holds all of a span of a direct stream
HeldInKafka: TypeAlias = Callable[[OffsetRange], bool]


def no_spans(span: OffsetRange) -> bool:
    """For an intake: its batches have blocks, and no spans."""
    return False


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What a replay would run.

    ``batches``: in the order in which they would run. ``lacking``: those of them whose bytes are deleted or being deleted.
    ``possible_from``: the oldest batch from which a replay is possible; None if not even the newest batch can be replayed.
    ``window``: the batches before the first one that its window contains, in order. ``state``: a keyed state whose version
    before the first batch is no longer kept; "": there is none. ``reach``: how many batches before one of them its windows by
    time contain at most.
    """

    batches: tuple[FinishedBatch, ...]
    lacking: tuple[FinishedBatch, ...]
    possible_from: FinishedBatch | None
    window: tuple[FinishedBatch, ...] = ()
    state: str = ""
    reach: int = 0

    @property
    def possible(self) -> bool:
        return bool(self.batches) and not self.lacking and not self.state


@dataclass(frozen=True, slots=True)
class Horizon:
    """A copy of the parts of the state that decide how far back the history is read.

    ``held``: ids of the blocks whose bytes exist and are not being deleted. ``window_batches``: how many batches before the
    first one its window may need. ``window_ms``: the longest window by time.
    """

    archived_number: int
    window_batches: int
    rebuilds: tuple[Rebuild, ...]
    held: Set[str]
    held_in_kafka: HeldInKafka
    window_ms: int = 0

    @classmethod
    def of(cls, state: State, held_in_kafka: HeldInKafka = no_spans, window_ms: int = 0) -> Horizon:
        """Return the horizon of ``state``. Reads all blocks once."""
        held = frozenset(b.id for b in state.blocks.values() if _is_kept(state, b))
        return cls(state.archived_number, state.window_batches, tuple(state.rebuilds), held, held_in_kafka, window_ms)

    def holds(self, batch: FinishedBatch) -> bool:
        """Whether all bytes of the batch exist."""
        return all(block_id in self.held for task in batch.tasks for block_id in task) and _in_kafka(
            batch, self.held_in_kafka
        )

    def dissolved(self, number: int) -> bool:
        """Whether a rebuild dissolved the batch with this number."""
        return any(r.known_number < number <= r.batch_count for r in self.rebuilds)


def needed(segments: Iterable[Iterable[FinishedBatch]], horizon: Horizon, to: RewindTo) -> tuple[FinishedBatch, ...]:
    """Return the part of the history that :func:`plan` needs. ``segments``: the batches of each segment, the newest segment
    first.

    Reads segments until it has every batch from the newest one back to the named batch and its window, or back to the first batch
    whose bytes are deleted: batches before that one can't be replayed. If ``to`` names a time or nothing, it reads back to that
    batch. Raises RefusedError if the history has lost a batch that would run.
    """
    found: dict[int, FinishedBatch] = {}
    number = horizon.archived_number
    newest_first = iter(segments)
    window = horizon.window_batches
    before_ms: int | None = None  # the time of the batch before the first one
    in_windows = horizon.window_ms > 0  # whether the windows by time of the first batch may contain the next one
    while number > 0 and (number >= to.number or window > 0 or in_windows):
        if horizon.dissolved(number):
            number -= 1
        elif number in found:
            if not horizon.holds(found[number]):
                break
            if number < to.number:
                window -= 1
                before_ms = found[number].time_ms if before_ms is None else before_ms
                in_windows = found[number].time_ms > before_ms - horizon.window_ms
            number -= 1
        elif (segment := next(newest_first, None)) is not None:
            for batch in segment:
                if not is_void(horizon.rebuilds, batch.batch_id, batch.number):
                    found.setdefault(batch.number, batch)
        else:
            return _without_lost(found, number, to)
    return tuple(found.values())


def _without_lost(found: dict[int, FinishedBatch], lost: int, to: RewindTo) -> tuple[FinishedBatch, ...]:
    """Return the batches after number ``lost``, which the history has lost. Raises RefusedError if the lost batch would run,
    or could have to run: a replay must not omit a batch silently (INV-5)."""
    after = tuple(batch for number, batch in found.items() if number > lost)
    if lost >= to.number > 0 or (to.time_ms and all(batch.time_ms >= to.time_ms for batch in after)):
        raise RefusedError(
            f"the history beside the journal has lost batch number {lost}, which would run too: a segment of it was deleted or "
            f"cut, or the store's listing omits it; a replay is possible from number {lost + 1} on",
            "conflict",
        )
    return after


def completed(state: State, archived: Iterable[FinishedBatch]) -> list[FinishedBatch]:
    """Return all completed batches, each once, in order: those of the history and those that have not moved there yet."""
    found = {batch.batch_id: batch for batch in archived if not state.is_void(batch.batch_id, batch.number)}
    for batch in finished(state, limit=len(state.batches), windows=False):
        found.setdefault(batch.batch_id, batch)
    return sorted(found.values(), key=lambda batch: batch.batch_id)


def plan(
    state: State,
    archived: Iterable[FinishedBatch],
    to: RewindTo,
    held_in_kafka: HeldInKafka = no_spans,
    window_ms: int = 0,
) -> ReplayPlan:
    """Return what a replay to ``to`` would run. ``archived``: what :func:`needed` returns, or the whole history. ``window_ms``:
    the longest window by time. Raises RefusedError if there is no completed batch to rewind to."""
    batches = completed(state, archived)
    if not batches:
        newest = state.completed_number  # older batches of the history were not read
        message = (
            f"no completed batch is {to}: the newest one has number {newest}" if newest else "no batch is completed yet"
        )
        raise RefusedError(message, "not-found")
    held = [_held(state, batch) and _in_kafka(batch, held_in_kafka) for batch in batches]
    # batches before the first one whose bytes are deleted may not have been read: a rewind to one of them is one to it
    begin = 0 if not held[0] and 0 < to.number < batches[0].number else _begin(batches, to)
    possible_from = None
    for batch, whole in zip(reversed(batches), reversed(held), strict=True):
        if not whole or _unreadable_state(state, batch.batch_id):
            break
        possible_from = batch
    lacking = tuple(batch for batch, whole in zip(batches[begin:], held[begin:], strict=True) if not whole)
    by_time = WindowReach(0, window_ms)  # not as many as now: these batches may be closer together than the newest ones
    reaches = [0, *(by_time.add(batch.time_ms) for batch in batches[:-1])]  # of each batch
    reach = begin
    while reach > max(0, begin - max(state.window_batches, reaches[begin])) and held[reach - 1]:
        reach -= 1
    return ReplayPlan(
        tuple(batches[begin:]),
        lacking,
        possible_from,
        tuple(batches[reach:begin]),
        _unreadable_state(state, batches[begin].batch_id),
        max(reaches[begin:]),
    )


def _unreadable_state(state: State, batch_id: int) -> str:
    """Return the name of a keyed state whose version before the batch is no longer kept; "": there is none."""
    return next((name for name, known in state.keyed.items() if not is_readable_before(known, batch_id)), "")


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
    """Whether the journal still names every block of the batch, and intends the deletion of none (INV-8)."""
    blocks = [state.blocks.get(block_id) for task in batch.tasks for block_id in task]
    return all(block is not None and _is_kept(state, block) for block in blocks)


def _in_kafka(batch: FinishedBatch, held_in_kafka: HeldInKafka) -> bool:
    """Whether Kafka still has all spans of a direct stream's batch, except those accepted as lost."""
    spans = without_lost(with_incarnations(batch.spans, batch.incarnations), batch.lost)
    return all(held_in_kafka(span) for span, _ in spans)


def _is_kept(state: State, block: Block) -> bool:
    """Whether the WAL has the block and keeps it. Without a WAL this is never so: the hosts' copies are deleted when their
    batch is in the history."""
    return block.in_wal and block.handle.path not in state.cleaning_segments


def refuse(found: ReplayPlan) -> str:
    """Return a sentence that says why the replay is not possible, and which one is."""
    if found.state and not found.lacking:
        return (
            f"state {found.state!r} no longer has the version that batch {found.batches[0].batch_id} read: begin with a later "
            "batch; batch.state(versions=…) says how many earlier versions are kept"
        )
    newest = found.lacking[-1]
    lacking = "Kafka no longer holds all offsets" if newest.spans else "the WAL no longer holds all blocks"
    horizon = (
        "the retention of Kafka's topics"
        if newest.spans
        else "wal.retention with its limits retention_size, retention_blocks and retention_free"
    )
    message = f"{lacking} of batch {newest.batch_id} (number {newest.number}), which would run too"
    if found.possible_from is None:
        return f"{message}; no completed batch can be replayed: the rewind horizon is {horizon}"
    oldest = found.possible_from
    return f"{message}; a replay is possible from batch {oldest.batch_id} (number {oldest.number}) on"
