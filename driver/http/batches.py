"""Answers about batches: the list with its filters and pages, and one batch with its offsets and blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from driver.batches.batch_log import BatchLog
from driver.batches.entries import RunningBatch, unfinished_entries
from driver.journal import history
from driver.journal.state import State
from driver.listeners.offsets import batch_ranges
from driver.tracker.requests import Ask, Read
from forebay import messages as m
from forebay.kafka.consume.spans import OffsetRange, with_incarnations
from forebay.model.errors import RefusedError, UsageError
from forebay.model.numbers import whole_number
from forebay.model.values import Block
from wal.storage import Storage

#: maximum entries of a page, and of the lists of one batch
PAGE_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQuery:
    """Which batches to list.

    ``limit``: entries of a page, 1 to ``PAGE_MAX``. ``after``: the ``next`` of the page before; "" for the first page. ``state``:
    only batches in this state. ``failed``: only batches with a failed attempt. ``since_ms``: only batches of this time or later.
    ``text``: only batches with this text in their id, number, error or output, in any case. Raises UsageError for an invalid
    value.
    """

    limit: int = 100
    after: str = ""
    state: str = ""
    failed: bool = False
    since_ms: int = 0
    text: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= PAGE_MAX:
            raise UsageError(f"limit {self.limit}: a page has 1 to {PAGE_MAX} entries")
        if self.state and self.state not in m.BATCH_STATES:
            raise UsageError(f"state {self.state!r}: the states of a batch are {', '.join(m.BATCH_STATES)}")
        _place(self.after)

    def selects(self, batch: m.BatchEntry) -> bool:
        """Return whether the list contains ``batch``."""
        return (
            (not self.state or batch.state == self.state)
            and (not self.failed or batch.state in m.FAILED_STATES or batch.attempts > 1)
            and batch.time_ms >= self.since_ms
            and (not self.text or any(self.text.lower() in shown.lower() for shown in _searched(batch)))
        )


def _searched(batch: m.BatchEntry) -> Iterable[str]:
    return (str(batch.batch_id), str(batch.number), batch.detail, batch.place, *batch.outputs, *batch.written)


def _place(after: str) -> tuple[int, int] | None:
    """Return batch id and replay of the last entry of a page; None before the first page."""
    if not after:
        return None
    batch_id, replay = map(whole_number, after.partition(".")[::2])
    if batch_id is None or replay is None:
        raise UsageError(f"after {after!r}: write the answer's `next`")
    return batch_id, replay


def _order(batch: m.BatchEntry) -> tuple[int, int]:
    """Return the place of a run in the list, which never changes: the newest batch first, and its newest run first."""
    return (batch.batch_id, batch.replay)


def list_batches(batches: Iterable[m.BatchEntry], query: BatchQuery) -> m.BatchesAnswer:
    """Return the page of ``batches`` that ``query`` asks for. A batch that begins meanwhile changes no later page."""
    after = _place(query.after)
    found = sorted(filter(query.selects, batches), key=_order, reverse=True)
    following = [batch for batch in found if after is None or _order(batch) < after]
    page = following[: query.limit]
    is_last = len(page) == len(following)
    return m.BatchesAnswer(
        total=len(found),
        next="" if is_last else "{}.{}".format(*_order(page[-1])),
        batches=tuple(page),
    )


@dataclass(frozen=True, slots=True)
class ReadUnfinishedBatches(Read[tuple[m.BatchEntry, ...]]):
    """Reads the batches that are not completed. ``running``: batch id → the batch in work."""

    running: Mapping[int, RunningBatch]

    def read(self, state: State) -> tuple[m.BatchEntry, ...]:
        return unfinished_entries(state, dict(self.running))


def with_completed(unfinished: Iterable[m.BatchEntry], completed: Sequence[m.BatchEntry]) -> tuple[m.BatchEntry, ...]:
    """Return all batches, the newest first. ``completed``: read after ``unfinished``, so a batch may be in both."""
    known = set(map(_order, completed))
    batches = (*(batch for batch in unfinished if _order(batch) not in known), *completed)
    return tuple(sorted(batches, key=_order, reverse=True))


@dataclass(frozen=True, slots=True)
class BatchContent:
    """What a batch consists of. ``tasks``: for each task its block ids. ``ranges``: touching ones joined, if the history has
    it."""

    tasks: tuple[tuple[str, ...], ...]
    blocks: tuple[Block, ...] = ()
    spans: tuple[tuple[OffsetRange, int], ...] = ()
    ranges: tuple[history.FinishedRange, ...] = ()

    def detail(self, batch: m.BatchEntry) -> m.BatchDetail:
        """Return the answer for ``batch``. Slow for many blocks: do not call it in the decision loop."""
        blocks = (r for block in self.blocks for r in block.meta.ranges)
        ranges = self.ranges or history.merge(chain(blocks, history.ranges_of_spans(self.spans)))
        return m.BatchDetail(
            batch=batch,
            ranges=batch_ranges(ranges[:PAGE_MAX]),
            tasks=tuple(map(len, self.tasks[:PAGE_MAX])),
            block_ids=tuple(islice(chain.from_iterable(self.tasks), PAGE_MAX)),
        )


@dataclass(frozen=True, slots=True)
class ReadContent(Read["BatchContent | None"]):
    """Reads what a batch consists of; None if it is only in the history. Copies references to its blocks."""

    batch_id: int

    def read(self, state: State) -> BatchContent | None:
        replayed = state.replaying.get(self.batch_id) or state.replay_window.get(self.batch_id)
        batch = state.batches.get(self.batch_id) or replayed
        if batch is None:
            return None
        return BatchContent(
            tasks=batch.tasks,
            blocks=tuple(state.blocks[block_id] for task in batch.tasks for block_id in task),
            spans=tuple(with_incarnations(batch.spans, batch.incarnations)),
        )


def archived_content(storage: Storage, stream: str, batch_id: int) -> BatchContent | None:
    """Read what a batch consists of from the history, the newest segment first; None if it is not there. Raises CorruptionError,
    NewerVersionError, StoreError."""
    for segment in history.read_back(storage, stream):
        for batch in segment:
            if batch.batch_id == batch_id:
                return BatchContent(tasks=batch.tasks, ranges=batch.ranges)
        if segment and segment[-1].batch_id < batch_id:
            return None
    return None


@dataclass(frozen=True, slots=True)
class BatchAnswers:
    """Answers questions about batches. Its methods wait for the decision loop, so that it must not call them.

    ``running``, ``completed``: those of the scheduler. ``storage``: the journal's.
    """

    ask: Ask
    running: Mapping[int, RunningBatch]
    completed: BatchLog
    storage: Storage
    stream: str

    def all(self) -> Sequence[m.BatchEntry]:
        """Return the unfinished batches, and the newest completed ones, the newest first."""
        unfinished = self.ask(ReadUnfinishedBatches(self.running))
        return with_completed(unfinished, self.completed.entries())

    def list(self, query: BatchQuery) -> m.BatchesAnswer:
        """Return a page of the unfinished and the newest completed batches."""
        return list_batches(self.all(), query)

    def detail(self, named: int) -> m.BatchDetail:
        """Return the newest run of the batch with this id or number, and what it consists of.

        Raises RefusedError if it is not among the batches that are listed; CorruptionError, NewerVersionError, StoreError.
        """
        runs = [batch for batch in self.all() if named in (batch.batch_id, batch.number)]
        if not runs:
            raise RefusedError(
                f"batch {named} is not unfinished, nor among the newest completed ones that the driver lists "
                "(driver.batch_history)",
                "not-found",
            )
        batch = runs[0]
        content = self.ask(ReadContent(batch.batch_id)) or archived_content(self.storage, self.stream, batch.batch_id)
        if (
            content is None
        ):  # it moved to the history between the two reads, and the store's listing does not show it yet
            raise RefusedError(f"batch {named} is moving to the history: try again", "not-ready")
        return content.detail(batch)
