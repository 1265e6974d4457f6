"""Requests of the scheduler to the decision loop: read the uncompleted batches, get the next batch to run, read a running batch
again."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from driver.batches.batch_run import BatchRun
from driver.batches.progress import Progress
from driver.decisions.batch_order import RunKey, following, window
from driver.journal.events import PauseChanged, ReplayedBatch
from driver.journal.state import Batch, State
from driver.tracker.requests import Read
from forebay.model.errors import RefusedError


@dataclass(frozen=True, slots=True)
class ReadUnfinished(Read[tuple[int, ...]]):
    """Reads the ids of all batches that are not completed."""

    def read(self, state: State) -> tuple[int, ...]:
        return tuple(batch.batch_id for batch in state.unfinished())


@dataclass(frozen=True, slots=True)
class ReadPause(Read["PauseChanged | None"]):
    """Reads the pause; None: the batches are not paused.

    ``progress`` gets the answer in the decision loop, so that a change in the same group of requests comes after it.
    """

    progress: Progress

    def read(self, state: State) -> PauseChanged | None:
        self.progress.pause(state.pause is not None)
        return state.pause


@dataclass(frozen=True, slots=True)
class NextBatch(Read["BatchRun | None"]):
    """Reads the next batch to run; None: there is none, a batch blocks the others, or an operator has paused them.

    The batch is added to the batches in work of ``progress`` in the decision loop, so that no two workers get the same batch.
    ``reruns``: batches that may have run before. ``window_batches``: how many earlier batches the job can read.
    """

    progress: Progress
    reruns: Set[RunKey]
    window_batches: int

    def read(self, state: State) -> BatchRun | None:
        progress = self.progress
        may_begin = not progress.held_up and state.pause is None
        found = following(state, frozenset(progress.in_work)) if may_begin else None
        if found is None:
            return None
        batch, replay = found
        progress.in_work.add((replay, batch.batch_id))
        return _run_of(state, batch, replay, self.reruns, self.window_batches)


@dataclass(frozen=True, slots=True)
class SameBatch(Read[BatchRun]):
    """Reads a running batch again, because an operator may have accepted a loss or begun a replay since."""

    batch_id: int
    replay: int
    reruns: Set[RunKey]
    window_batches: int

    def read(self, state: State) -> BatchRun:
        batch = state.replaying[self.batch_id] if self.replay else state.batches[self.batch_id]
        return _run_of(state, batch, self.replay, self.reruns, self.window_batches)


@dataclass(frozen=True, slots=True)
class EarlierBatches(Read[BatchRun]):
    """Reads the batches before a running batch that its windows by time can contain, with the batch itself as the last one. They
    are the same on every rerun, because they stay until the batch is completed. Raises RefusedError if it is completed."""

    batch_id: int
    replay: int

    def read(self, state: State) -> BatchRun:
        batch: Batch | ReplayedBatch | None
        if self.replay:
            runs = state.replay is not None and state.replay.replay == self.replay
            batch = state.replaying.get(self.batch_id) if runs else None
        else:
            batch = state.batches.get(self.batch_id)
        if batch is None or (isinstance(batch, Batch) and batch.completed_ms is not None):
            raise RefusedError(f"batch {self.batch_id} is completed: its earlier batches may have left", "conflict")
        return BatchRun.of(state, (*window(state, batch, self.replay > 0), batch), self.replay, False)


def _run_of(
    state: State, batch: Batch | ReplayedBatch, replay: int, reruns: Set[RunKey], window_batches: int
) -> BatchRun:
    past = window(state, batch, replay > 0, window_batches)
    return BatchRun.of(state, (*past, batch), replay, replay > 0 or (replay, batch.batch_id) in reruns)
