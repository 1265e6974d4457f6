"""INV-3: each record is in one completed batch, and a batch that runs again is the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from driver.journal import history
from driver.journal.state import State
from driver.journal.state_parts import Partition
from forebay.kafka.client.group_offsets import Point
from forebay.model.identifiers import count_of, timeline_of
from forebay.model.values import Block, BlockRange, TopicPartition
from tests.simulation.invariants.record import Record
from tests.simulation.invariants.violation import InvariantViolation
from tests.simulation.kafka import RECORD

if TYPE_CHECKING:
    from tests.simulation.driver_process import DriverProcess
    from tests.simulation.world import Query, World


class Batches:
    """``runs``: batch → packing and rows that the job saw."""

    def __init__(self, world: World, record: Record) -> None:
        self._world = world
        self._record = record
        self._past: dict[int, int] = {}  # batches that were completed before a loss: id → number
        #: batch and replay → the batches before it in its window
        self._windows: dict[tuple[int, int], tuple[int, ...]] = {}
        self.runs: dict[int, tuple[Any, ...]] = {}

    def lose(self, before: State, finished: tuple[history.FinishedBatch, ...]) -> None:
        """Keep which batches were completed when the journal was lost."""
        self._past.update({batch.batch_id: batch.number for batch in finished})
        self._past.update(
            {b.batch_id: b.number for b in before.batches.values() if b.number <= before.completed_number}
        )

    def check(self, state: State) -> None:
        """INV-3: no batch is completed before its job has returned, nor shown as completed before all batches before it
        are, in whatever order the jobs end.
        """
        for partition in state.partitions.values():
            if not partition.incarnation.start <= partition.completed <= partition.position:
                raise InvariantViolation(
                    "INV-3", f"{partition.tp} is shown as completed to {partition.completed} of {partition.position}"
                )
        open_blocks = list(state.waiting)
        for batch in state.batches.values():
            if batch.completed_ms is None:
                open_blocks += batch.block_ids
            elif batch.batch_id not in self.runs:
                raise InvariantViolation("INV-3", f"batch {batch.batch_id} is completed, and no job returned for it")
        for held in (r for block_id in open_blocks for r in state.blocks[block_id].meta.ranges):
            partition = state.partitions[str(held.tp)]
            if held.incarnation == partition.incarnation.number and held.from_offset < partition.completed:
                raise InvariantViolation(
                    "INV-3", f"{partition.tp} is shown as completed beyond {held.label}, which is not"
                )

    def block_read(self, driver: DriverProcess, block: Block, rows: list[tuple[BlockRange, int, bytes]]) -> None:
        """INV-3: from whichever tier, the rows of a task are the records of the block, by offset and by content."""
        partitions = driver.tracker.state.partitions
        for held in block.meta.ranges:
            own = {offset: value for r, offset, value in rows if r == held}
            entries = self._world.kafka.log_of(held.tp, partitions[str(held.tp)].topic_id(held.incarnation)).entries
            other = [offset for offset, value in own.items() if entries[offset].value != value]
            if other or len(own) != held.records:
                raise InvariantViolation(
                    "INV-3", f"{driver.name} reads {len(own)} records of {held.label}, of other content at {other}"
                )

    def job_done(
        self, driver: DriverProcess, batch_id: int, replay: int, rows: tuple[Any, ...], past: tuple[int, ...]
    ) -> None:
        """INV-3: a rerun has the same blocks, rows, order, packing and window, and only durable batches are given to a
        job.
        """
        window = self._windows.setdefault((batch_id, replay), past)
        if window != past:
            raise InvariantViolation("INV-3", f"batch {batch_id} ran with window {window}, and again with {past}")
        if not replay:
            rebuilds = driver.tracker.state.rebuilds
            begun = next((r.batch_count for r in rebuilds if r.timeline == timeline_of(batch_id)), 0)
            reach = min(self._world.options.window_batches, count_of(batch_id) - begun - 1)
            if len(past) != reach:
                raise InvariantViolation(
                    "INV-8", f"the window of batch {batch_id} reaches {len(past)} batches back, not {reach}"
                )
        before = self.runs.setdefault(batch_id, rows)
        if before != rows:
            raise InvariantViolation("INV-3", f"batch {batch_id} ran again with other blocks, rows or packing")

    def published(self, driver: DriverProcess, positions: Mapping[TopicPartition, Point]) -> None:
        """INV-3: no offset is published as completed before the journal durably says so."""
        self._record.refresh()
        state = self._record.state
        if state is None or self._record.knows_no_loss(driver):
            return
        for tp, point in positions.items():
            partition = state.partition(tp)
            incarnation = int(point.metadata.rpartition(":")[2])
            if partition is None or incarnation > partition.incarnation.number:
                raise InvariantViolation(
                    "INV-3", f"{driver.name} publishes {tp}, incarnation {incarnation}: not durable"
                )
            if incarnation == partition.incarnation.number and point.offset > partition.completed:
                raise InvariantViolation(
                    "INV-3", f"{driver.name} publishes {tp} as completed to {point.offset} of {partition.completed}"
                )

    def query_read(self, query: Query, losses: Iterable[str], rows: list[str]) -> None:
        """INV-8: everything that a cursor still had to read was held.

        INV-3: a batch that runs again has the same rows. A lost journal may have lost the cursor too, until the query
        returned.
        """
        if query.losses == self._world.journal_loss.count:
            for loss in losses:
                raise InvariantViolation("INV-8", f"what a cursor has yet to read was deleted: {loss}")
            if query.read is not None and query.read != rows:
                raise InvariantViolation("INV-3", f"a query's batch had {query.read}, and run again {rows}")
        if query.read is None:
            query.read = rows
            query.rows += len(rows)

    def settled(self) -> bool:
        """Return whether every record that Kafka holds was taken in and completed."""
        state = self._record.state
        if state is None or not state.created or state.waiting or state.unfinished() or state.replaying:
            return False
        for tp in self._world.kafka.partitions():
            partition = state.partition(tp)
            if partition is None or partition.incarnation.topic_id != self._world.kafka.topic_id(tp.topic):
                return False
            if partition.position < self._world.kafka.log(tp).high:
                return False
        return True

    def unnoticed(self) -> list[TopicPartition]:
        """Return partitions of a recreated topic whose new log ends exactly where the old one was read to."""
        kafka = self._world.kafka
        return [
            p.tp
            for p in (self._record.state.partitions.values() if self._record.state is not None else ())
            if p.incarnation.topic_id != kafka.topic_id(p.topic) and p.position == kafka.log(p.tp).high
        ]

    def unsettled(self) -> str:
        """Describe what is missing."""
        state = self._record.state
        if state is None:
            return "there is no journal"
        where = [
            f"{tp} at {p.position if p else None} of {self._world.kafka.log(tp).high}, completed {p.completed if p else None}"
            for tp in self._world.kafka.partitions()
            for p in [state.partition(tp)]
        ]
        return f"{'; '.join(where)}; {len(state.waiting)} blocks wait, {len(state.unfinished())} batches are unfinished"

    def check_completed(self) -> None:
        """INV-3: the rows of completed batches are the records that Kafka held, each once."""
        state = self._record.state
        assert state is not None
        completed = {b.batch_id for b in self._record.finished}
        completed |= {b.batch_id for b in state.batches.values() if b.completed_ms is not None}
        completed |= self._past.keys()
        numbers = {**self._past, **{b.batch_id: b.number for b in self._record.finished}}
        completed -= {batch for batch in completed if batch in numbers and state.is_void(batch, numbers[batch])}
        seen: set[str] = set()
        for batch_id in sorted(completed):
            for _, rows in self.runs[batch_id]:
                for row in rows:
                    if row in seen:
                        raise InvariantViolation("INV-3", f"{row} is in two completed batches, one is {batch_id}")
                    seen.add(row)
        for partition in state.partitions.values():
            for incarnation in partition.incarnations:
                self._check_incarnation(
                    partition, incarnation.number, incarnation.start, incarnation.end, incarnation.topic_id, seen
                )
        if seen:
            raise InvariantViolation("INV-3", f"{min(seen)} was completed and is no record of its incarnation")

    def _check_incarnation(
        self, partition: Partition, incarnation: int, start: int, end: int | None, topic_id: str, seen: set[str]
    ) -> None:
        entries = self._world.kafka.log_of(partition.tp, topic_id).entries
        until = end if end is not None else partition.position
        gaps = [g.gap for g in partition.gaps if g.incarnation == incarnation]
        for offset in range(start, until):
            row = f"{partition.tp}/{incarnation}/{offset}"
            if row in seen:
                seen.remove(row)
                continue
            if any(g.from_offset <= offset < g.until_offset for g in gaps):
                continue
            entry = entries[offset]
            if entry.kind == RECORD and not entry.compacted:
                raise InvariantViolation("INV-3", f"{row} is in no completed batch")
