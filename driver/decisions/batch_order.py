"""The order of batches: which one begins next, and which batches its window contains. Decision logic, without I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from driver.journal.events import ReplayedBatch
from driver.journal.state import State
from driver.journal.state_parts import Batch
from forebay.model.identifiers import numbered, timeline_of

#: names one run of a batch: (replay, batch id); replay 0: its first run
RunKey = tuple[int, int]


def following(state: State, in_work: Collection[RunKey]) -> tuple[Batch | ReplayedBatch, int] | None:
    """Return the batch that begins next and the number of its replay (0: none); None if no batch can begin now.

    Batches begin in order, and several may be in work. Batches of a replay come before batches that never ran, and run one at a
    time: while one is in work, no other batch is.
    """
    if state.replay is not None:
        return None if in_work else (next(iter(state.replaying.values())), state.replay.replay)
    if any(replay for replay, _ in in_work):
        return None
    return next(((batch, 0) for batch in state.unfinished() if (0, batch.batch_id) not in in_work), None)


def window(
    state: State, batch: Batch | ReplayedBatch, replay: bool, most: int | None = None
) -> tuple[Batch | ReplayedBatch, ...]:
    """Return the batches that a window of ``batch`` can contain besides it, in order.

    These are the batches just before it in its timeline, as far as they are held without a gap. They are the same on every rerun,
    because they stay until ``batch`` is completed (``State.is_past``). ``replay``: whether a replay runs the
    batch. ``most``: maximum number of batches; None: no limit.
    """
    held: Mapping[int, Batch | ReplayedBatch] = state.replay_window if replay else state.batches
    reach = state.replay_reach if replay else state.window_batches
    reach = reach if most is None else min(most, reach)
    found: list[Batch | ReplayedBatch] = []
    first = max(numbered(timeline_of(batch.batch_id), 0), batch.batch_id - 1 - reach)
    for batch_id in range(batch.batch_id - 1, first, -1):
        before = held.get(batch_id)
        if before is None:
            break
        found.append(before)
    return tuple(reversed(found))
