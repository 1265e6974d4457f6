"""Which batch begins next, and how far back its window reaches: decisions on values alone."""

from __future__ import annotations

from collections.abc import Collection

from driver.journal.events import ReplayedBatch
from driver.journal.state import Batch, State
from forebay.model.values import numbered, timeline_of

#: names one run of a batch: (replay, batch id); replay 0: its first run
Run = tuple[int, int]


def following(state: State, in_work: Collection[Run]) -> tuple[Batch | ReplayedBatch, int] | None:
    """The batch that begins next, with the number of its replay (0: none); None if none can begin now.

    Batches begin in order, and several may be in work. What a replay has yet to run comes before batches that never ran, and
    runs alone: none of it begins beside another batch, and no other beside it.
    """
    if state.replay is not None:
        return None if in_work else (next(iter(state.replaying.values())), state.replay.replay)
    if any(replay for replay, _ in in_work):
        return None
    return next(((batch, 0) for batch in state.unfinished() if (0, batch.batch_id) not in in_work), None)


def window(state: State, batch: Batch | ReplayedBatch, replay: bool) -> tuple[Batch | ReplayedBatch, ...]:
    """The batches before ``batch`` that its window can reach, in order: those just before it in its lineage, without a hole,
    as far as they are held. On every rerun the same, since they stay until it is completed (``State.is_past``). ``replay``:
    whether one runs it.
    """
    held: dict[int, Batch | ReplayedBatch] = {**state.replay_window} if replay else {**state.batches}
    found: list[Batch | ReplayedBatch] = []
    first = max(numbered(timeline_of(batch.batch_id), 0), batch.batch_id - 1 - state.window_batches)
    for batch_id in range(batch.batch_id - 1, first, -1):
        before = held.get(batch_id)
        if before is None:
            break
        found.append(before)
    return tuple(reversed(found))
