"""Batches as observers see them: entries of unfinished and of completed batches, and their ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from driver.journal.events import ReplayedBatch
from driver.journal.history import FinishedBatch
from driver.journal.state import State
from driver.journal.state_parts import Batch, ReplayedRun
from driver.journal.statistics import BatchStatistics
from forebay.messages import BatchEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBatch:
    """What the thread that runs a batch shows of it.

    ``state``, ``detail``, ``place`` and the statistics: as in ``messages.BatchEntry``. ``attempts``: those of all drivers.
    """

    state: str
    attempts: int = 0
    detail: str = ""
    place: str = ""
    bytes: int | None = None
    scheduling_delay_ms: int | None = None
    rerun: bool = False
    replay: int = 0


#: a batch that no thread runs yet
QUEUED = RunningBatch(state="queued")
#: maximum number of batches of a replay that are listed; all are counted
REPLAYED_SHOWN = 10


def unfinished_entries(state: State, running: Mapping[int, RunningBatch]) -> tuple[BatchEntry, ...]:
    """Return the next batches of a replay, and all batches that are not completed, in order. ``running``: batch id → the batch in
    work. A batch is listed until its thread knows that its completion is durable. Called in the decision loop."""
    replay = state.replays[-1].replay if state.replaying else 0
    ending = [batch_id for batch_id, run in running.items() if not run.replay and batch_id in state.batches]
    unfinished = {
        **{batch_id: state.batches[batch_id] for batch_id in ending},
        **{b.batch_id: b for b in state.unfinished()},
    }
    return (
        *(
            _unfinished(state, batch, running.get(batch.batch_id, QUEUED), replay)
            for batch in islice(state.replaying.values(), REPLAYED_SHOWN)
        ),
        *(_unfinished(state, batch, running.get(batch_id, QUEUED)) for batch_id, batch in sorted(unfinished.items())),
    )


def _unfinished(state: State, batch: Batch | ReplayedBatch, run: RunningBatch, replay: int = 0) -> BatchEntry:
    records = state.index.records.get(batch.batch_id)
    if records is None:  # of a replay
        records = sum(state.blocks[block_id].meta.records for task in batch.tasks for block_id in task)
        records += sum(span.size for span in batch.spans)
    return BatchEntry(
        batch_id=batch.batch_id,
        number=batch.number,
        time_ms=batch.time_ms,
        state=run.state,
        blocks=sum(map(len, batch.tasks)),
        records=records,
        bytes=run.bytes,
        attempts=run.attempts,
        scheduling_delay_ms=run.scheduling_delay_ms,
        outputs=batch.outputs,
        replay=replay,
        rerun=run.rerun,
        detail=run.detail,
        place=run.place,
    )


def completed_entry(
    statistics: BatchStatistics | None,
    *,
    batch_id: int,
    number: int,
    time_ms: int,
    completed_ms: int,
    attempts: int,
    blocks: int,
    records: int,
    replay: int = 0,
    written: tuple[str, ...] = (),
    detail: str = "",
) -> BatchEntry:
    """Return the entry of a completed batch.

    ``statistics``: None if an older release completed it, or if an operator skipped it. ``detail``: default: the error in
    ``statistics``.
    """
    return BatchEntry(
        batch_id=batch_id,
        number=number,
        time_ms=time_ms,
        state="completed",
        blocks=blocks,
        records=records,
        bytes=statistics.bytes if statistics is not None else None,
        attempts=attempts,
        scheduling_delay_ms=statistics.scheduling_delay_ms if statistics is not None else None,
        processing_ms=statistics.processing_ms if statistics is not None else None,
        total_delay_ms=statistics.total_delay_ms if statistics is not None else None,
        end_to_end_ms=statistics.end_to_end_ms if statistics is not None else None,
        tiers=dict(statistics.tiers) if statistics is not None else {},
        written=written,
        replay=replay,
        rerun=statistics.rerun if statistics is not None else replay > 0,
        detail=detail or (_failure(statistics) if statistics is not None else ""),
        place=statistics.place if statistics is not None else "",
        completed_ms=completed_ms,
    )


def _failure(statistics: BatchStatistics) -> str:
    return f"{statistics.error} at {statistics.place}" if statistics.place else statistics.error


def entry_of_finished(batch: FinishedBatch) -> BatchEntry:
    """Return the entry of a batch as the history has it."""
    return completed_entry(
        batch.statistics,
        batch_id=batch.batch_id,
        number=batch.number,
        time_ms=batch.time_ms,
        completed_ms=batch.completed_ms,
        attempts=batch.attempts,
        blocks=sum(map(len, batch.tasks)),
        records=batch.records,
        detail=skipped_detail(batch.skipped),
    )


def skipped_detail(cause: str) -> str:
    """Return the detail of a batch that an operator skipped; "" if ``cause`` is ""."""
    return f"skipped by {cause}" if cause else ""


def entry_of_replayed(run: ReplayedRun) -> BatchEntry:
    """Return the entry of a batch that a replay has completed."""
    return completed_entry(
        run.statistics,
        batch_id=run.batch_id,
        number=run.number,
        time_ms=run.time_ms,
        completed_ms=run.completed_ms,
        attempts=run.attempts,
        blocks=run.blocks,
        records=run.records,
        replay=run.replay,
        detail=skipped_detail(run.skipped),
    )
