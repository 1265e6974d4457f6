"""The partitions of this receiver: which ones, in which phase, and the generations under which the source reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from forebay.model.columns import Start
from forebay.model.values import TopicPartition
from forebay.settings.schema import ReceiverSettings
from receiver import actions as act
from receiver.machine.exchange.delays import retry_delay
from receiver.machine.exchange.outbox import Outbox
from receiver.machine.limits.flow import Flow
from receiver.machine.membership.partition import Partition, Phase
from receiver.machine.membership.shutdown import Shutdown


@dataclass(kw_only=True, slots=True, eq=False)
class Partitions:
    """The partitions in order of assignment.

    A partition is *unsettled* in this module while its phase is not simply active, so that a part has to act on it. Rule 3:
    each start has a new generation, so records fetched under an older generation are recognized and dropped.
    """

    settings: ReceiverSettings
    outbox: Outbox
    flow: Flow
    shutdown: Shutdown
    _partitions: dict[TopicPartition, Partition] = field(default_factory=dict)
    _unsettled: set[TopicPartition] = field(default_factory=set)
    _generations: int = 0  # given so far

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._partitions

    def __getitem__(self, tp: TopicPartition) -> Partition:
        return self._partitions[tp]

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def __len__(self) -> int:
        return len(self._partitions)

    def get(self, tp: TopicPartition) -> Partition | None:
        return self._partitions.get(tp)

    def reading(self) -> tuple[TopicPartition, ...]:
        """Return the partitions that the source reads, paused or not."""
        return tuple(partition.tp for partition in self if partition.generation)

    def due(self, now: float) -> list[Partition]:
        """Return the unsettled partitions that wait for no answer and whose delay is over, in order."""
        unsettled = (self._partitions[tp] for tp in sorted(self._unsettled))
        return [partition for partition in unsettled if not partition.request and now >= partition.due]

    def waiting_for(self, request: int) -> list[Partition]:
        """Return the partitions that wait for the answer to ``request``, without those revoked or assigned again since."""
        return [self._partitions[tp] for tp in sorted(self._unsettled) if self._partitions[tp].request == request]

    def add(self, tp: TopicPartition, now: float) -> None:
        """The group assigned it: a claim is due."""
        self._partitions[tp] = Partition(tp, due=now)
        self._unsettled.add(tp)

    def remove(self, tp: TopicPartition) -> None:
        self._partitions.pop(tp, None)
        self._unsettled.discard(tp)

    def start(self, partitions: Iterable[Partition], now: float) -> None:
        """Have the source read from the expected positions, each under a new generation. In a drain nothing is read."""
        starts = []
        for partition in partitions:
            partition.request = 0
            partition.refusals = 0
            if self.shutdown.draining:  # only what was held had to be cut again
                partition.phase = Phase.WAITING
                partition.due = now
                continue
            self._generations += 1
            partition.generation = self._generations
            partition.phase = Phase.ACTIVE
            partition.at_start = True
            self._unsettled.discard(partition.tp)
            starts.append(Start(partition.tp, partition.expected, partition.leader_epoch, partition.generation))
        if starts:
            self.outbox.do(act.StartPartitions(tuple(starts)))
            if self.flow.all_paused:
                self.outbox.do(act.Pause(tuple(start.tp for start in starts)))

    def leave(self, partition: Partition, phase: Phase, due: float) -> None:
        """Leave ``ACTIVE``, or change to another waiting phase. Records polled under the old generation are dropped."""
        if partition.generation:
            self.outbox.do(act.Pause((partition.tp,)))
            self.flow.unpause(partition.tp)
        partition.generation = 0
        partition.phase = phase
        partition.request = 0
        partition.due = due
        self._unsettled.add(partition.tp)

    def put_off(self, partition: Partition, reason: str, now: float) -> None:
        """Start the claim again after a delay, with a new lookup. The delay grows until the partition is active."""
        partition.refusals += 1
        partition.detail = reason
        self.leave(partition, Phase.WAITING, now + retry_delay(self.settings.reclaim_delay, partition.refusals))
