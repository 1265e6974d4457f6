"""How much the receiver polls: the limits of memory and rates, and the pauses that enforce them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from forebay.model.values import TopicPartition
from forebay.settings.schema import ReceiverSettings
from receiver import actions as act
from receiver.machine.exchange.outbox import Outbox
from receiver.machine.limits.pausing import Pausing
from receiver.machine.limits.throttle import Throttle


@dataclass(kw_only=True, slots=True, eq=False)
class Flow:
    """Pauses and resumes partitions. ``throttle``: the rates of the settings and those that the driver set."""

    settings: ReceiverSettings
    outbox: Outbox
    throttle: Throttle
    pausing: Pausing

    @property
    def all_paused(self) -> bool:
        return self.pausing.all

    @property
    def memory_is_full(self) -> bool:
        """Whether memory has been full for ``PAUSE_SECONDS``, so that all partitions pause."""
        return self.pausing.memory_is_full

    def unpause(self, tp: TopicPartition) -> None:
        """Note that the partition is started again or no longer read. Both end a pause for its own rate."""
        self.pausing.forget(tp)

    def forget(self, tp: TopicPartition) -> None:
        """Drop the state of a partition that is no longer this receiver's."""
        self.pausing.forget(tp)
        self.throttle.forget(tp)

    def poll_records_max(
        self, reading: Callable[[], Iterable[TopicPartition]], buffered_bytes: int, record_bytes: float, now: float
    ) -> int:
        """Return how many records the next poll may return, 0 if none may be made now.

        ``reading``: the partitions that are read, asked only if there are limits. ``record_bytes``: memory that a usual
        record takes, 0.0 before the first one.
        """
        if not self.all_paused and (self.pausing.waits_for_memory or self.seconds_until_poll(now) > 0.0):
            return 0
        limit: float = self.settings.poll_records
        if self.throttle.limited and not self.all_paused:
            polled = [tp for tp in reading() if tp not in self.pausing.alone]
            limit = min(limit, self.throttle.records_max(polled, now))
        if record_bytes:
            room = self.settings.memory - buffered_bytes
            limit = min(limit, room / record_bytes)
        return max(1, int(limit))

    def seconds_until_poll(self, now: float) -> float:
        """Return how long the rate delays the next poll, unless all partitions are paused."""
        return self.throttle.seconds_until_poll(now)

    def balance(
        self, held_up: bool, reading: Callable[[], Collection[TopicPartition]], buffered_bytes: int, now: float
    ) -> None:
        """Pause or resume partitions. ``held_up``: the driver, a store or a drain stops the intake."""
        self.pausing.weigh(buffered_bytes, now)
        change = self.pausing.change(held_up, reading, self.throttle, now)
        if change.for_memory:
            self.outbox.counters["pauses_for_memory"] += 1
        if change.slowed:
            self.outbox.counters["pauses_for_rate"] += change.slowed
        if change.pause:
            self.outbox.do(act.Pause(tuple(sorted(change.pause))))
        if change.resume:
            self.outbox.do(act.Resume(tuple(sorted(change.resume))))
