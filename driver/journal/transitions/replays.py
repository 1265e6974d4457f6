"""Events of replays: completed batches run again."""

from __future__ import annotations

from driver.journal import events as ev
from driver.journal.state import BrokenInvariant, State
from driver.journal.state_parts import Replay, ReplayedRun
from driver.journal.transitions.keyed_states import states_committed, states_replayed, states_rewound
from forebay.kafka.consume.planning import sizes
from forebay.model.values import Block

#: replays that the state keeps; older ones have ended, and the audit only counts them
REPLAYS_KEPT = 1_000
#: completed batches of replays that the state keeps
REPLAYED_KEPT = 1_000


def replay_begun(state: State, event: ev.ReplayBegun) -> None:
    if state.replaying or event.replay != state.next_replay() or not event.batches:
        raise BrokenInvariant(f"replay {event.replay} began out of order")
    for batch in (*event.window, *event.batches):
        known = state.batches.get(batch.batch_id)
        if known is not None and known.completed_ms is None:
            raise BrokenInvariant(f"replay {event.replay}: batch {batch.batch_id} is not completed (INV-3)")
        for block in _blocks_of(state, batch):
            if block.handle.path in state.cleaning_segments:
                raise BrokenInvariant(f"replay {event.replay} needs block {block.id}, which is being deleted (INV-8)")
            if block.id in state.released:
                state.index.hold(block)
            state.index.clean((block,))
    states_rewound(state, event.batches[0].batch_id)
    state.replaying = {batch.batch_id: batch for batch in event.batches}
    state.replay_window = {batch.batch_id: batch for batch in event.window}
    state.replays.append(
        Replay(
            replay=event.replay,
            first_id=event.batches[0].batch_id,
            last_id=event.batches[-1].batch_id,
            batches=len(event.batches),
            begun_ms=event.time_ms,
            cause=event.cause,
            reach=event.reach,
        )
    )
    del state.replays[:-REPLAYS_KEPT]


def replay_completed(state: State, event: ev.ReplayCompleted) -> None:
    following = next(iter(state.replaying), None)
    if following != event.batch_id or state.replays[-1].replay != event.replay:
        raise BrokenInvariant(f"batch {event.batch_id} is not the next one of replay {event.replay} (INV-3)")
    batch = state.replay_window[event.batch_id] = state.replaying.pop(event.batch_id)
    _remember(state, batch, event)
    states_committed(state, event.batch_id, event.states)
    state.failures.pop(event.batch_id, None)
    while len(state.replay_window) > (state.replay_reach if state.replaying else 0):
        _replayed(state, state.replay_window.pop(next(iter(state.replay_window))))
    replay = state.replays[-1]
    replay.completed += 1
    replay.attempts += event.attempts
    if not state.replaying:
        replay.completed_ms = event.time_ms
        if state.keyed:
            state.shaped = state.events + 1  # a rebuild from an older copy would take the replaced versions
        states_replayed(state)


def _remember(state: State, batch: ev.ReplayedBatch, event: ev.ReplayCompleted) -> None:
    """Keep the statistics of a batch that a replay has completed, which no other place in the journal keeps."""
    state.replayed.append(
        ReplayedRun(
            replay=event.replay,
            batch_id=event.batch_id,
            number=batch.number,
            time_ms=batch.time_ms,
            completed_ms=event.time_ms,
            attempts=event.attempts,
            blocks=sum(map(len, batch.tasks)),
            records=sum(block.meta.records for block in _blocks_of(state, batch)) + sizes(batch.spans),
            statistics=event.statistics,
        )
    )
    del state.replayed[:-REPLAYED_KEPT]


def _replayed(state: State, batch: ev.ReplayedBatch) -> None:
    """Release the blocks of a batch that neither the replay nor the window of one of its remaining batches needs."""
    for block in _blocks_of(state, batch):
        if block.id in state.released:
            state.uncovered[block.id] = state.events  # a copy made during the replay still names it as running
            state.index.release((block,), state.released[block.id])
        if (
            batch.batch_id not in state.batches or state.is_past(batch.number)
        ) and block.id not in state.cleaning_blocks:
            state.index.finish((block,))


def _blocks_of(state: State, batch: ev.ReplayedBatch) -> list[Block]:
    try:
        return [state.blocks[block_id] for task in batch.tasks for block_id in task]
    except KeyError as missing:
        raise BrokenInvariant(
            f"batch {batch.batch_id} of a replay needs block {missing}, which was deleted (INV-8)"
        ) from None
