"""The partitions that a group's member reads now, each from the position of its start.

In the assignment callback librdkafka receives an **empty** assignment: that keeps the membership (librdkafka keeps the group's
list separately) and requests nothing from the broker. A start then adds exactly the named partitions. A cooperative group's
assignment changes by additions and removals. An eager group refuses that outside a callback: there the whole list is assigned
again, each other partition at its own position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.client.log_cuts import SEEK_TOO_EARLY
from forebay.model.columns import Start
from forebay.model.values import TopicPartition


@dataclass(slots=True)
class StartedPartition:
    """A partition that is read.

    ``position``: the next offset to return. ``unconfirmed``: no record was returned since the start. ``first_seen``: the first
    offset that the last read found, if it was not the start's. ``reads``: how many reads found another first offset than the
    start's. ``compared``: whether librdkafka compares its position with the leader's log before it reads.
    """

    start: Start
    position: int
    leader_epoch: int
    paused: bool = False
    unconfirmed: bool = True
    first_seen: int = -1
    reads: int = 0
    compared: bool = True


class Assignment:
    """Partitions that are read, by name. For the polling thread."""

    def __init__(
        self,
        consumer: Callable[[], Consumer],
        cooperative: bool,
        assigning: Callable[[Collection[TopicPartition], Collection[TopicPartition]], None],
    ) -> None:
        """``cooperative``: whether the group's protocol is. ``assigning``: called before partitions are assigned or no longer
        read, with all that are read from then on and those that librdkafka assigns: messages that were polled of these before
        would be returned twice."""
        self._consumer = consumer
        self._cooperative = cooperative
        self._assigning = assigning
        self.partitions: dict[TopicPartition, StartedPartition] = {}

    def assigned(self) -> None:
        """Acknowledge the group's assignment without reading its partitions yet. Raises KafkaException."""
        if self._cooperative:
            self._consumer().incremental_assign([])
        else:
            self.forget(list(self.partitions))
            self._consumer().assign([])

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Answer a revocation. Raises KafkaException."""
        gone = self.forget(partitions)
        if self._cooperative:
            self._consumer().incremental_unassign([_wire(tp) for tp in gone])
        else:
            self._consumer().unassign()

    def start(self, starts: Sequence[Start]) -> None:
        """Read these partitions from now on, each at its start's offset, not paused."""
        # librdkafka may keep the pause over a quick unassign and assign: resumed while the old assignment is in effect
        self.set_paused([start.tp for start in starts], False)
        again = [start.tp for start in starts if start.tp in self.partitions]
        for start in starts:
            self.partitions[start.tp] = StartedPartition(start, start.offset, start.leader_epoch)
        self._assign([start.tp for start in starts], again)

    def read_again(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions again from their positions."""
        self._assign(partitions, partitions)

    def stop(self, tp: TopicPartition) -> None:
        """Read ``tp`` no more until its next start; the group still assigns it to this member."""
        self.forget([tp])
        if self._cooperative:
            self._consumer().incremental_unassign([_wire(tp)])
        else:
            self._assign(list(self.partitions), [])
            if not self.partitions:
                self._consumer().assign([])

    def forget(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Remove and return those of ``partitions`` that are read.

        They are resumed first: librdkafka keeps a pause until the partition's next assignment, however much later, and would
        then never fetch.
        """
        gone = [tp for tp in partitions if tp in self.partitions]
        self.set_paused(gone, False)
        for tp in gone:
            del self.partitions[tp]
        self._assigning(self.partitions, [])
        return gone

    def set_paused(self, partitions: Sequence[TopicPartition], paused: bool) -> None:
        """Pause or resume those of ``partitions`` that are read."""
        changed = [tp for tp in partitions if tp in self.partitions and self.partitions[tp].paused != paused]
        for tp in changed:
            self.partitions[tp].paused = paused
        if changed:
            wire = [_wire(tp) for tp in changed]
            (self._consumer().pause if paused else self._consumer().resume)(wire)

    def compare(self) -> None:
        """Let librdkafka compare the positions of new starts with the leader's log, as far as it reads these partitions already.

        A seek does it (KIP-320), an assignment does not: a log that was cut back and has grown beyond the position since would
        not be noticed. The caller must drop what was read of a partition before, see :attr:`StartedPartition.compared`.
        """
        for tp, started in self.partitions.items():
            if started.compared:
                continue
            self._assigning(self.partitions, [tp])
            try:
                self._consumer().seek(self._wire_at(tp))
            except KafkaException as error:
                if error.args[0].code() not in SEEK_TOO_EARLY:
                    raise
            else:
                started.compared = True

    def _assign(self, partitions: Sequence[TopicPartition], again: Sequence[TopicPartition]) -> None:
        """``again``: those of ``partitions`` that librdkafka has assigned already."""
        if not partitions:
            return
        self._assigning(self.partitions, partitions if self._cooperative else self.partitions)
        if self._cooperative:
            if again:
                self._consumer().incremental_unassign([_wire(tp) for tp in again])
            self._consumer().incremental_assign([self._wire_at(tp) for tp in partitions])
        else:
            self._consumer().assign([self._wire_at(tp) for tp in self.partitions])
            paused = [_wire(tp) for tp, started in self.partitions.items() if started.paused]
            if paused:
                self._consumer().pause(paused)
        for tp in partitions if self._cooperative else self.partitions:
            started = self.partitions[tp]
            started.compared = started.leader_epoch < 0 or started.position <= 0
        self.compare()

    def _wire_at(self, tp: TopicPartition) -> WirePartition:
        started = self.partitions[tp]
        if started.leader_epoch >= 0:
            return WirePartition(tp.topic, tp.partition, started.position, leader_epoch=started.leader_epoch)
        return WirePartition(tp.topic, tp.partition, started.position)


def _wire(tp: TopicPartition) -> WirePartition:
    return WirePartition(tp.topic, tp.partition)
