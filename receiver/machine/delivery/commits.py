"""Commits accepted positions to the consumer group asynchronously. Pure.

The journal decides about positions. Those in the group only show progress, so a failed commit is replaced by the next one, or
repeated if none follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay.model.values import TopicPartition
from forebay.settings.schema import ReceiverSettings
from receiver import actions as act
from receiver import inputs as inp
from receiver.machine.exchange.delays import retry_delay
from receiver.machine.exchange.outbox import Outbox
from receiver.machine.membership.partition import TAKING, Partition
from receiver.machine.membership.partitions import Partitions
from receiver.machine.membership.registration import Registration
from receiver.sources.source import CommitPoint

#: a rebalance makes one or two commits fail, which needs no attention; so many since the last claim are logged
COMMITS_FAILED_LOGGED = 3


@dataclass(kw_only=True, slots=True, eq=False)
class CommitRetries:
    """Repeats failed commits after a delay that grows until a synchronous commit succeeds."""

    settings: ReceiverSettings
    outbox: Outbox
    registration: Registration
    partitions: Partitions
    _repeat: set[TopicPartition] = field(default_factory=set)  # those whose last commit failed
    _repeat_at: float = 0.0
    _failures: int = 0

    def point(self, partition: Partition) -> CommitPoint:
        """Return the commit of the partition's durable position."""
        return CommitPoint(partition.accepted, partition.accepted_leader_epoch, self.metadata(partition.incarnation))

    def metadata(self, incarnation: int) -> str:
        return f"forebay:{self.registration.timeline}:{incarnation}"

    def commit(self, positions: Mapping[TopicPartition, CommitPoint]) -> None:
        if positions:
            self._repeat -= positions.keys()
            self.outbox.do(act.CommitAsync(dict(positions)))

    def failed(self, event: inp.CommitFailed, now: float) -> None:
        self.outbox.counters["commits_failed"] += len(event.errors)
        self._failures += 1
        self._repeat.update(tp for tp in event.errors if tp in self.partitions)
        self._repeat_at = now + retry_delay(self.settings.reclaim_delay, self._failures)
        sample = next(iter(event.errors.items()), None)
        if sample is not None and self._failures == COMMITS_FAILED_LOGGED:
            self.outbox.note(f"{self.outbox.origin} refused a commit of {sample[0]}: {sample[1]}", warning=True)

    def advance(self, now: float) -> None:
        """Repeat the failed commits when the delay is over."""
        if not self._repeat or now < self._repeat_at:
            return
        again = {
            tp: self.point(partition)
            for tp in sorted(self._repeat)
            if (partition := self.partitions.get(tp)) is not None and partition.phase in TAKING
        }
        self._repeat.clear()
        self.commit(again)

    def reset_delay(self) -> None:
        """Note that a synchronous commit succeeded."""
        self._failures = 0

    def forget(self, tp: TopicPartition) -> None:
        self._repeat.discard(tp)
