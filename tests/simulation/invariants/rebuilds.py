"""A journal that was lost and rebuilt: no position goes back unnoticed, and each batch that runs again is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driver.journal import history
from driver.journal.state import State
from driver.journal.state_parts import Batch
from tests.simulation.invariants.record import Record
from tests.simulation.invariants.violation import InvariantViolation

if TYPE_CHECKING:
    from tests.simulation.world import World


class Rebuilds:
    """Compares a rebuilt journal with the one that was lost."""

    def __init__(self, world: World, record: Record) -> None:
        self._world = world
        self._record = record
        self._before: State | None = None  # what the journal durably said when it was lost
        self._finished_before: tuple[history.FinishedBatch, ...] = ()

    def lose(self, before: State, finished: tuple[history.FinishedBatch, ...]) -> None:
        """The journal is lost, or a rebuild has begun a timeline that has no state yet."""
        self._before, self._finished_before = before, finished

    def check(self, state: State) -> None:
        """Check that no position went back, except over a gap that no frame shows, and that every batch that runs again
        is named.
        """
        before = self._before
        assert before is not None
        if state.timeline <= before.timeline:
            raise InvariantViolation("INV-4", f"timeline {state.timeline} was opened after {before.timeline} was lost")
        unsure = self._unsure(before, state)
        for block_id in unsure:
            self._record.accepted.pop(block_id, None)
        for key, old in before.partitions.items():
            new = state.partitions.get(key)
            gap = old.preceding_gap
            least = old.position if gap is None else gap.from_offset
            for block_id in unsure:
                for held in before.blocks[block_id].meta.ranges:
                    if (str(held.tp), held.incarnation) == (key, old.incarnation.number):
                        least = min(least, held.from_offset)
            if new is None or (new.incarnation.number, new.position) < (old.incarnation.number, least):
                at = "is not there" if new is None else f"is at {new.position}"
                raise InvariantViolation("INV-1", f"{key} was at {old.position}, and {at} after the rebuild")
        record = state.rebuilds[-1]
        named = {batch.batch_id for batch in record.repeated}
        waiting = [r for b in state.waiting for r in state.blocks[b].meta.ranges]
        completed = [b for b in before.batches.values() if b.completed_ms is not None]
        done: list[history.FinishedBatch | Batch] = [*self._finished_before, *completed]
        for batch in done:
            if not any(batch.tasks):
                continue  # no block of it waits again
            if state.is_void(batch.batch_id, batch.number) and batch.batch_id not in named and 0 not in named:
                raise InvariantViolation("INV-3", f"batch {batch.batch_id} may run again, and is not named")
        for finished in self._finished_before:
            if state.is_void(finished.batch_id, finished.number):
                continue
            for r in finished.ranges:
                for held in waiting:
                    if (
                        (held.topic, held.partition, held.incarnation) == (r.topic, r.partition, r.incarnation)
                        and held.from_offset < r.until_offset
                        and r.from_offset < held.until_offset
                    ):
                        raise InvariantViolation("INV-3", f"{held.label} waits again, batch {finished.batch_id} counts")

    def _unsure(self, before: State, state: State) -> set[str]:
        """Return the blocks that a rebuild leaves out, because their topic is unknown, and those of their tokens after
        them.
        """
        topic_id = self._world.kafka.topic_id
        left_out = {block_id: block.meta for block_id, block in before.blocks.items() if block_id not in state.blocks}
        unsure = {
            block_id
            for block_id, meta in left_out.items()
            if meta.checked is not True
            and any(topic_id(r.topic) != before.partitions[str(r.tp)].topic_id(r.incarnation) for r in meta.ranges)
        }
        begins = {
            (r.tp, r.incarnation, r.token): r.from_offset for block_id in unsure for r in left_out[block_id].ranges
        }
        behind = {
            block_id
            for block_id, meta in left_out.items()
            if any(r.from_offset > begins.get((r.tp, r.incarnation, r.token), 1 << 63) for r in meta.ranges)
        }
        return unsure | behind
