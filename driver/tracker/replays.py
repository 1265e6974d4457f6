"""Replays: completed batches run again."""

from __future__ import annotations

import msgspec

from driver.decisions.replay import REPLAY_BLOCKS_MAX, plan, refuse
from driver.journal import events as ev
from driver.journal.history import FinishedBatch
from driver.tracker.decision import Recorder
from driver.tracker.requests import BeginReplay, said_by
from forebay import messages as m
from forebay.model.errors import RefusedError


class Replays:
    """Begins replays."""

    def __init__(self, *, recorder: Recorder) -> None:
        self._recorder = recorder

    def begin(self, request: BeginReplay, now_ms: int, window_ms: int) -> m.OperatorAnswer:
        """Run completed batches again, from ``request.to`` on. ``window_ms``: length of the longest window by time. Raises
        RefusedError."""
        state = self._recorder.state
        running = state.replay
        if running is not None:
            raise RefusedError(
                f"replay {running.replay} is under way ({running.completed} of {running.batches} batches done): wait for it",
                "conflict",
            )
        if request.archived_number != state.archived_number:
            raise RefusedError("batches moved to the history during this request: try again", "stale")
        for batch in state.unfinished():
            if batch.states:  # the version of its completed output would be dropped, and the output never runs again
                raise RefusedError(
                    f"outputs of batch {batch.batch_id} have changed a keyed state, and the batch is not completed: wait until "
                    "it is, or skip it",
                    "conflict",
                )
        found = plan(state, request.archived, request.to, request.held_in_kafka, window_ms)
        if not found.possible:
            raise RefusedError(refuse(found), "conflict")
        if sum(_pieces(batch) for batch in (*found.window, *found.batches)) > REPLAY_BLOCKS_MAX:
            raise RefusedError(
                f"a replay may hold {REPLAY_BLOCKS_MAX} blocks or ranges: begin with a later batch", "conflict"
            )
        begun = ev.ReplayBegun(
            replay=state.next_replay(),
            batches=tuple(map(_again, found.batches)),
            time_ms=now_ms,
            cause=said_by(request.cause),
            window=tuple(map(_before, found.window)),
            reach=found.reach,
        )
        self._recorder.apply(begun)
        return m.OperatorAnswer(
            message=f"replay {begun.replay}: {len(begun.batches)} batches run again, from {begun.batches[0].batch_id} to "
            f"{begun.batches[-1].batch_id}; `forebay status` shows how far it is"
        )


def _before(batch: FinishedBatch) -> ev.ReplayedBatch:
    """Return a batch of a replay's window: unlike the batches that run again, it stays skipped."""
    return msgspec.structs.replace(_again(batch), skipped=bool(batch.skipped))


def _again(batch: FinishedBatch) -> ev.ReplayedBatch:
    return ev.ReplayedBatch(
        batch.batch_id,
        batch.number,
        batch.time_ms,
        batch.tasks,
        batch.lost,
        spans=batch.spans,
        incarnations=batch.incarnations,
    )


def _pieces(batch: FinishedBatch) -> int:
    """Return how many blocks and spans the batch has."""
    return sum(map(len, batch.tasks)) + len(batch.spans)
