"""Events of batches: allocation, attempts, outputs, completion, accepted losses."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import msgspec

from driver.journal import events as ev
from driver.journal.history import merge
from driver.journal.state import BrokenInvariant, State
from driver.journal.state_parts import Batch, JointBatch, LearnedRate
from driver.journal.transitions.direct import direct_partition
from driver.journal.transitions.keyed_states import states_committed
from driver.journal.transitions.partition import complete_gaps, partition_of
from driver.journal.transitions.replays import replay_completed
from driver.journal.versions import StateCommit


def batch_allocated(state: State, event: ev.BatchAllocated) -> None:
    if event.batch_id != state.next_batch_id():
        raise BrokenInvariant(f"batch {event.batch_id} is not the next one")
    state.batch_count += 1
    block_ids = list(chain.from_iterable(event.tasks))
    taken = dict.fromkeys(block_ids, event.batch_id)
    if len(taken) != len(block_ids) or not taken.keys() <= state.waiting.keys():
        wrong = next((block_id for block_id in block_ids if block_id not in state.waiting), "one that is named twice")
        raise BrokenInvariant(f"batch {event.batch_id}: block {wrong} was not waiting (INV-3)")
    state.batch_of.update(taken)
    if len(taken) == len(state.waiting):  # always, unless batches are limited
        state.waiting.clear()
        state.index.take_all(event.batch_id)
    else:
        for block_id in block_ids:
            del state.waiting[block_id]
        state.index.take(event.batch_id, list(map(state.blocks.__getitem__, block_ids)))
    state.batches[event.batch_id] = Batch(
        batch_id=event.batch_id, number=event.number, time_ms=event.time_ms, tasks=event.tasks
    )
    if event.leader:
        state.joint = JointBatch(event.batch_id, event.leader, event.partners)


def output_completed(state: State, event: ev.OutputCompleted) -> None:
    if event.replay:
        again = state.replaying[event.batch_id]
        outputs = (*again.outputs, event.output)
        if state.replays[-1].replay != event.replay or event.output in again.outputs:
            raise BrokenInvariant(f"output {event.output} of batch {event.batch_id} was completed twice (INV-3)")
        state.replaying[event.batch_id] = msgspec.structs.replace(again, outputs=outputs)
        states_committed(state, event.batch_id, event.states)
        state.failures.pop(event.batch_id, None)
        return
    batch = state.batches[event.batch_id]
    if batch.completed_ms is not None or event.output in batch.outputs:
        raise BrokenInvariant(f"output {event.output} of batch {event.batch_id} was completed twice (INV-3)")
    batch.outputs = (*batch.outputs, event.output)
    _states_changed(state, batch, event.states)
    state.failures.pop(event.batch_id, None)


def batch_completed(state: State, event: ev.BatchCompleted) -> None:
    batch = state.batches.get(event.batch_id)
    if batch is None or batch.completed_ms is not None:
        raise BrokenInvariant(f"batch {event.batch_id} was completed twice or never allocated (INV-3)")
    batch.completed_ms = event.time_ms
    batch.attempts = event.attempts
    batch.statistics = event.statistics
    _states_changed(state, batch, event.states)
    state.failures.pop(event.batch_id, None)
    state.batches_completed += 1
    state.records_completed += state.index.records.pop(event.batch_id)
    _advance_completed_prefix(state)


def _states_changed(state: State, batch: Batch, commits: tuple[StateCommit, ...]) -> None:
    batch.states = (*batch.states, *commits)
    states_committed(state, batch.batch_id, commits)


def batch_skipped(state: State, event: ev.BatchSkipped) -> None:
    if event.replay:
        again = state.replaying[event.batch_id]
        blocks = (state.blocks[block_id] for task in again.tasks for block_id in task)
        losses = [r.label for r in merge(r for block in blocks for r in block.meta.ranges)]
        state.replaying[event.batch_id] = msgspec.structs.replace(again, skipped=True)
        replay_completed(state, ev.ReplayCompleted(event.replay, event.batch_id, event.time_ms, event.attempts))
        state.replays[-1].lost.update(dict.fromkeys(losses, event.cause))
        state.replayed[-1] = msgspec.structs.replace(state.replayed[-1], skipped=event.cause)
        return
    batch_completed(state, ev.BatchCompleted(event.batch_id, event.time_ms, event.attempts))
    state.batches[event.batch_id].skipped = event.cause
    if state.joint is not None and state.joint.batch_id == event.batch_id:
        state.joint = msgspec.structs.replace(state.joint, skipped=event.cause)


def pause_changed(state: State, event: ev.PauseChanged) -> None:
    state.pause = event if event.paused else None


def _advance_completed_prefix(state: State) -> None:
    """Move the completed prefix, on which the completed positions, the clean-up and the published positions depend."""
    while True:
        following = state.batch(state.completed_number + 1)
        if following is None or following.completed_ms is None:
            return
        state.completed_number += 1
        _unneeded_copies(state, state.completed_number - state.window_batches)
        reached = state.index.reached.pop(following.batch_id)
        for span, incarnation in following.spans_with_incarnations:
            direct_partition(state, str(span.tp), span.from_offset)  # an older release may have begun it
            reached[span.topic, span.partition, incarnation] = span.until_offset
        for (topic, number, incarnation_number), until in reached.items():
            partition = partition_of(state, topic, number)
            if incarnation_number == partition.incarnation.number:
                partition.completed = max(partition.completed, until)
                complete_gaps(partition)


def _unneeded_copies(state: State, number: int) -> None:
    """Mark the local copies of a batch as superfluous if no window contains it any more and no replay runs it."""
    batch = state.batch(number) if number > 0 else None
    if batch is not None and batch.batch_id not in state.replaying and batch.batch_id not in state.replay_window:
        ids: Iterable[str] = batch.block_ids
        if state.cleaning_blocks:
            ids = (block_id for block_id in ids if block_id not in state.cleaning_blocks)
        state.index.finish(block for block in map(state.blocks.__getitem__, ids) if block.handle.path)


def window_changed(state: State, event: ev.WindowChanged) -> None:
    if event.batches < 0:
        raise BrokenInvariant(f"a window can't reach back {event.batches} batches")
    before, state.window_batches = state.window_batches, event.batches
    for number in range(state.completed_number - before + 1, state.completed_number - event.batches + 1):
        _unneeded_copies(state, number)
    for number in range(max(1, state.completed_number - event.batches + 1), state.completed_number - before + 1):
        batch = state.batch(number)
        state.index.clean(state.blocks[block_id] for block_id in (batch.block_ids if batch is not None else ()))


def job_failed(state: State, event: ev.JobFailed) -> None:
    batch = state.batches.get(event.batch_id)
    if event.batch_id not in state.replaying and (batch is None or batch.completed_ms is not None):
        raise BrokenInvariant(
            f"an attempt at batch {event.batch_id} failed, which was completed or never allocated (INV-3)"
        )
    if event.attempts:
        state.failures[event.batch_id] = event
    else:
        state.failures.pop(event.batch_id, None)


def rate_learned(state: State, event: ev.RateLearned) -> None:
    state.learned = LearnedRate(event.rate, event.time_ms)


def loss_accepted(state: State, event: ev.LossAccepted) -> None:
    causes = dict.fromkeys(event.ranges, event.cause)
    if not state.is_direct:
        state.lost.update(causes)
    again = state.replaying.get(event.batch_id)
    if again is not None:  # it was completed before, so its record stays unchanged
        lost = tuple(sorted({*again.lost, *event.ranges}))
        state.replaying[event.batch_id] = msgspec.structs.replace(again, lost=lost)
        state.replays[-1].lost.update(causes)
        return
    batch = state.batches[event.batch_id]
    batch.lost = tuple(sorted({*batch.lost, *event.ranges}))
    batch.loss_causes.update(causes)
