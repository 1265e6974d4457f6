"""Batches of an intake: their allocation from blocks, and the completion of all batches."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from operator import attrgetter
from types import MappingProxyType

from driver.decisions.allocation import UNLIMITED, BatchLimits, longest_prefix
from driver.decisions.joint_batches import joint_needs
from driver.decisions.pace import Pace
from driver.decisions.packing import pack
from driver.decisions.window_reach import WindowReach
from driver.journal import events as ev
from driver.journal.state_parts import Batch
from driver.tracker.decision import Recorder
from driver.tracker.requests import (
    Allocate,
    AllocateJoint,
    AllocateNext,
    Archived,
    Complete,
    CompleteOutput,
    FailJob,
    FoundPartitions,
    KeepWindow,
    NextAllocated,
    SkipBatch,
    said_by,
)
from forebay.model.errors import AfterReplayError, RefusedError

NO_PARTNERS: Mapping[str, int] = MappingProxyType({})


class Batches:
    """Allocates and completes batches.

    ``max_queued``: maximum number of batches beyond the completed prefix; no further batch is allocated. ``limits``: the limits
    of one batch. ``pace``: learns when batches begin and end.
    """

    def __init__(self, *, recorder: Recorder, max_queued: int, limits: BatchLimits, pace: Pace) -> None:
        self._recorder = recorder
        self._max_queued = max_queued
        self._limits = limits
        self._pace = pace
        self._reach = WindowReach(recorder.state.window_batches, 0)
        #: time of the newest batch (ms), so that batches without an interval have different times
        self._newest_ms = (
            max(recorder.state.batches.values(), key=attrgetter("batch_id")).time_ms if recorder.state.batches else 0
        )

    @property
    def window_ms(self) -> int:
        """The length of the longest window by time; 0: there are none."""
        return self._reach.length_ms

    # ---- what batches are made of ------------------------------------------------------------------------------------

    def add_partitions(self, request: FoundPartitions) -> bool:
        """Journal the partitions that are new, and with the first ones the stream. Return whether the journal changed."""
        state = self._recorder.state
        new = tuple(s for s in request.starts if f"{s.topic}/{s.partition}" not in state.partitions)
        if not state.created:
            self._recorder.apply(ev.StreamCreated(new, request.time_ms, request.cause))
            return True
        if new:
            self._recorder.apply(ev.PartitionsAdded(new, request.time_ms, request.cause))
        return bool(new)

    def allocate(self, request: Allocate) -> int | None:
        """Make a batch of all waiting blocks, or several batches if the limits of one are exceeded. Return the id of the first
        one.

        While ``max_queued`` batches are queued, no batch is made and the answer is None. The blocks wait, and later batches are
        larger.
        """
        first: int | None = None
        state = self._recorder.state
        while not self._is_full() and (state.waiting or (request.empty and state.created and first is None)):
            batch_id = self._allocate(request.time_ms, request.tasks)
            first = first or batch_id
        return first

    def allocate_next(self, request: AllocateNext, now_ms: int) -> NextAllocated:
        """Make one batch, which its worker begins now. A batch that could not begin is not made: its blocks wait, and later ones
        join them."""
        state = self._recorder.state
        if state.pause is not None or state.replay is not None or self._is_full():
            return NextAllocated(None, left=True)
        if not state.waiting:
            return NextAllocated(None, left=False)
        time_ms = request.time_ms
        if time_ms is None:
            time_ms = now_ms if self._reach.is_set_back(self._newest_ms, now_ms) else max(now_ms, self._newest_ms + 1)
        batch_id = self._allocate(time_ms, request.tasks)
        self._pace.begin(batch_id, now_ms)
        return NextAllocated(batch_id, bool(state.waiting))

    def allocate_joint(self, request: AllocateJoint, now_ms: int) -> NextAllocated:
        """Make this stream's batch of a joint batch, or return the one that an interrupted allocation has made before."""
        state = self._recorder.state
        needs = joint_needs(state, request.leader, request.named)
        if not needs.ready:
            return NextAllocated(None, left=True)
        batch_id = needs.batch_id
        if batch_id is None:
            time_ms = now_ms if request.time_ms is None else request.time_ms
            batch_id = self._allocate(time_ms, request.tasks, request.leader, request.partners)
            self._pace.begin(batch_id, now_ms)
        return NextAllocated(batch_id, bool(state.waiting))

    def _allocate(self, time_ms: int, tasks: int, leader: str = "", partners: Mapping[str, int] = NO_PARTNERS) -> int:
        """Make a batch of as many waiting blocks as its limits allow. Return its id. ``leader``, ``partners``: as in
        ``BatchAllocated``.

        With windows by time, its time is not before that of the batch before it, unless the clock was set back by more than the
        longest window: else a window would end twice.
        """
        state = self._recorder.state
        if self._reach.length_ms and not self._reach.is_set_back(self._newest_ms, time_ms):
            time_ms = max(time_ms, self._newest_ms)
        count = len(state.waiting)
        if self._limits != UNLIMITED:
            waiting = (state.blocks[block_id] for block_id in state.waiting)
            count = longest_prefix(((b.meta.records, b.handle.length) for b in waiting), self._limits)
        blocks = list(map(state.blocks.__getitem__, itertools.islice(state.waiting, count)))
        allocated = ev.BatchAllocated(
            batch_id=state.next_batch_id(),
            number=state.batch_count + 1,
            time_ms=time_ms,
            tasks=pack(blocks, max(1, tasks)),
            leader=leader,
            partners=dict(partners),
        )
        self._recorder.apply(allocated)
        self._keep_batches(time_ms)
        self._newest_ms = time_ms if self._reach.length_ms else max(self._newest_ms, time_ms)
        return allocated.batch_id

    def _keep_batches(self, time_ms: int) -> None:
        """Journal how many batches stay readable, if the newest batch changes that. No batch that is needed has left the state,
        since each batch needs at most one more than the one before it."""
        state = self._recorder.state
        needed = self._reach.add(time_ms)
        all_completed = state.completed_number == state.batch_count - 1
        self._keep(self._reach.kept(state.window_batches, needed, all_completed))

    def _keep(self, batches: int) -> None:
        if batches != self._recorder.state.window_batches:
            self._recorder.apply(ev.WindowChanged(batches))

    def _is_full(self) -> bool:
        state = self._recorder.state
        return state.batch_count - state.completed_number >= self._max_queued

    # ---- completion --------------------------------------------------------------------------------------------------

    def complete(self, request: Complete, now_ms: int) -> None:
        """Complete the batch. Raises RefusedError if it is completed."""
        if request.replay:
            self._complete_replayed(request)
            return
        batch = self._recorder.state.batches.get(request.batch_id)
        if batch is None or batch.completed_ms is not None:
            raise RefusedError(f"batch {request.batch_id} is completed already", "conflict")
        self._refuse_during_replay(request)
        self._recorder.apply(
            ev.BatchCompleted(request.batch_id, request.time_ms, request.attempts, request.statistics, request.states)
        )
        self._pace.end(request.batch_id, now_ms, usual=request.attempts == 1)

    def _refuse_during_replay(self, request: Complete | CompleteOutput) -> None:
        """Raise AfterReplayError for a batch that was in work when the replay began, if it changes a keyed state (INV-3)."""
        replay = self._recorder.state.replay
        if replay is not None and not request.replay and request.states:
            raise AfterReplayError(f"batch {request.batch_id} runs again after replay {replay.replay}", "conflict")

    def _complete_replayed(self, request: Complete) -> None:
        state = self._recorder.state
        replay = state.replay
        if replay is None or replay.replay != request.replay or request.batch_id not in state.replaying:
            raise RefusedError(f"batch {request.batch_id} of replay {request.replay} is completed already", "conflict")
        self._recorder.apply(
            ev.ReplayCompleted(
                request.replay, request.batch_id, request.time_ms, request.attempts, request.statistics, request.states
            )
        )

    def complete_output(self, request: CompleteOutput) -> None:
        """Complete one output of the batch. Raises RefusedError if it or the batch is completed."""
        state = self._recorder.state
        again = state.replaying.get(request.batch_id) if request.replay else None
        batch = again if request.replay else state.batches.get(request.batch_id)
        replay = state.replay.replay if again is not None and state.replay is not None else 0
        if batch is None or replay != request.replay or request.output in batch.outputs:
            raise RefusedError(f"output {request.output} of batch {request.batch_id} is completed already", "conflict")
        if isinstance(batch, Batch) and batch.completed_ms is not None:
            raise RefusedError(f"batch {request.batch_id} is completed already", "conflict")
        self._refuse_during_replay(request)
        self._recorder.apply(
            ev.OutputCompleted(request.batch_id, request.output, request.time_ms, request.replay, request.states)
        )

    def fail_job(self, request: FailJob) -> None:
        """Journal a failed attempt, unless the batch is completed by now."""
        state, batch_id = self._recorder.state, request.failure.batch_id
        batch = state.batches.get(batch_id)
        if batch_id in state.replaying or (batch is not None and batch.completed_ms is None):
            self._recorder.apply(request.failure)

    def skip(self, request: SkipBatch, now_ms: int) -> None:
        """End a batch without its job. Raises RefusedError if it is completed."""
        state, batch_id = self._recorder.state, request.batch_id
        if request.replay:
            is_open = state.replay is not None and state.replay.replay == request.replay and batch_id in state.replaying
        else:
            is_open = batch_id in state.batches and state.batches[batch_id].completed_ms is None
        if not is_open:
            raise RefusedError(f"batch {batch_id} is completed already", "conflict")
        cause = said_by(request.cause)
        self._recorder.apply(ev.BatchSkipped(batch_id, request.time_ms, request.attempts, cause, request.replay))
        self._pace.end(batch_id, now_ms, usual=False)

    def keep_window(self, request: KeepWindow) -> None:
        """Journal how many batches before an unfinished one stay readable."""
        state = self._recorder.state
        self._reach = WindowReach(request.batches, request.length_ms)
        held = sorted(state.batches.values(), key=attrgetter("batch_id"))
        self._keep(
            self._reach.begun(state.window_batches, ((b.time_ms, b.number >= state.completed_number) for b in held))
        )

    def archive(self, request: Archived) -> None:
        """Journal that the history durably holds the batches.

        If a window became longer while the history was written, it can contain some of these batches. They stay in the state,
        and a later request archives them again.
        """
        state = self._recorder.state
        gone = itertools.takewhile(lambda batch_id: state.is_past(state.batches[batch_id].number), request.batch_ids)
        if batch_ids := tuple(gone):
            self._recorder.apply(ev.BatchesArchived(batch_ids))
