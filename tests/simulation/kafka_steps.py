"""What happens in Kafka and its consumer group: which of it may happen next, and what it does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from forebay.model.values import TopicPartition
from tests.simulation.options import TOPIC
from tests.simulation.scheduler import Step, as_fault

if TYPE_CHECKING:
    from tests.simulation.world import World

#: maximum number of records produced in one run
RECORDS_MAX = 400


class KafkaSteps:
    """Records, transactions, compaction, retention and the group. ``produced``: the number of records so far."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.produced = 0
        self._steps = [self._steps_of(number) for number in range(world.options.partitions)]

    def steps(self) -> Iterator[Step]:
        topic = self._world.kafka.topics[TOPIC]
        has_faults = "kafka" in self._world.options.faults
        for partition in range(topic.partitions):
            steps = self._steps[partition]
            log = topic.log(partition)
            if self.produced < RECORDS_MAX:
                yield steps["produce"]
            if not has_faults:
                continue
            if log.high and self.produced < RECORDS_MAX:
                yield steps["end-transaction"]
            if log.high - log.low > 2:
                yield steps["compact"]
                yield steps["retain"]
            if self._unread(partition):
                yield steps["outlive-orphan" if self._is_orphaned(partition) else "outlive"]
        if has_faults and topic.incarnation < 3 and not self._world.journal_loss.count:
            yield as_fault(Step("recreate", topic.recreate, 1))

    def _steps_of(self, partition: int) -> dict[str, Step]:
        """What may happen to a partition in Kafka, by name."""
        where = f"{TOPIC}/{partition}"
        outlive = partial(self._outlive, partition)
        return {
            "produce": Step(f"produce {where}", partial(self.produce, partition), 5, range(1, 7)),
            "end-transaction": as_fault(Step(f"end-transaction {where}", partial(self._end_transaction, partition), 4)),
            "compact": as_fault(Step(f"compact {where}", partial(self._compact, partition), 2, range(1000))),
            "retain": as_fault(Step(f"retain {where}", partial(self._retain, partition), 1, range(1, 100))),
            "outlive": as_fault(Step(f"outlive {where}", outlive, 2, range(1, 101))),
            "outlive-orphan": as_fault(
                Step(f"outlive {where}", outlive, 60 * self._world.options.quiet, range(1, 101))
            ),
        }

    def group_steps(self) -> Iterator[Step]:
        group = self._world.kafka.group
        alive = {process.member: process for process in self._world.processes() if process.member is not None}
        for member in sorted(group.members):
            process = alive.get(member)
            if process is None or process.paused:
                yield Step(f"expire {member}", partial(group.leave, member), 8)
            elif "kafka" in self._world.options.faults:
                yield as_fault(Step(f"expire {member}", partial(group.leave, member), 2))
        if "kafka" in self._world.options.faults and group.members and not group.rebalancing:
            yield as_fault(Step("rebalance", group.rebalance, 4))

    def calm_group_steps(self) -> Iterator[Step]:
        members = {process.member for process in self._world.processes()}
        for member in sorted(self._world.kafka.group.members):
            if member not in members:
                yield Step(f"expire {member}", partial(self._world.kafka.group.leave, member))

    def produce(self, partition: int, records: int) -> None:
        self.produced += records
        self._world.kafka.topics[TOPIC].produce(partition, records)

    def _end_transaction(self, partition: int) -> None:
        self._world.kafka.topics[TOPIC].end_transaction(partition)

    def _compact(self, partition: int, seed: int) -> None:
        topic = self._world.kafka.topics[TOPIC]
        log = topic.log(partition)
        random = Random(seed)
        topic.compact(partition, [at for at in range(log.low, log.high) if random.random() < 0.4])

    def _retain(self, partition: int, percent: int) -> None:
        topic = self._world.kafka.topics[TOPIC]
        log = topic.log(partition)
        topic.retain(partition, log.low + (log.high - log.low) * percent // 100)

    def _outlive(self, partition: int, percent: int) -> None:
        """Retention deletes records that were not taken in."""
        topic = self._world.kafka.topics[TOPIC]
        unread = self._unread(partition)
        topic.retain(partition, topic.log(partition).high - unread + -(-unread * percent // 100))

    def lose_orphans(self) -> bool:
        """Let retention delete all records that no process will report. Return whether there were any."""
        orphaned = [p for p in range(self._world.options.partitions) if self._unread(p) and self._is_orphaned(p)]
        for partition in orphaned:
            self._outlive(partition, 100)
        return bool(orphaned)

    def _unread(self, partition: int) -> int:
        """Return how many offsets Kafka holds, from the durable position on."""
        state = self._world.invariants.durable
        known = state.partitions.get(f"{TOPIC}/{partition}") if state is not None else None
        log = self._world.kafka.topics[TOPIC].log(partition)
        if known is None or known.incarnation.topic_id != log.topic_id:
            return 0
        return log.high - max(known.position, log.low)

    def _is_orphaned(self, partition: int) -> bool:
        """Return whether Kafka and the WAL hold records that were not taken in, and that no living process will report."""
        tp = TopicPartition(TOPIC, partition)
        known = self._world.invariants.durable.partition(tp) if self._world.invariants.durable is not None else None
        in_kafka = known is not None and self._world.kafka.log(tp).low <= known.position
        return (
            in_kafka
            and self._world.invariants.unreported(tp)
            and not any(p.has_unreported for p in self._world.processes())
        )
