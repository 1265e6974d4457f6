"""Decides which partitions pause: all while the receiver can take in nothing, or a single one while it exceeds its rate. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from forebay.model.values import TopicPartition
from receiver.machine.limits.throttle import Throttle

#: how long memory must be full before the partitions pause. Until then nothing is polled, so a rebalance waits at most this
#: long. Pausing makes Kafka's client drop what it has fetched, and fetching again takes half a second.
PAUSE_SECONDS = 1.0
#: fraction of the memory limit that must be free before partitions paused for lack of memory resume
RESUME_FRACTION = 0.5


@dataclass(frozen=True, slots=True)
class Change:
    """The partitions to pause and to resume.

    ``for_memory``: all pause because memory is full. ``slowed``: how many more pause because each exceeds its own rate.
    """

    pause: Collection[TopicPartition] = ()
    resume: Collection[TopicPartition] = ()
    for_memory: bool = False
    slowed: int = 0


class Pausing:
    """Decides which partitions pause.

    INV-6: while memory is full, the receiver does not poll. After ``PAUSE_SECONDS`` it pauses all partitions and polls again,
    because the group removes a member that does not poll.

    ``all``: whether all partitions are paused. ``alone``: the partitions that are paused because each exceeds its own rate.
    ``memory_is_full``: whether partitions pause for memory. True once memory was full for ``PAUSE_SECONDS``; False again when
    ``RESUME_FRACTION`` of it is free.
    """

    def __init__(self, memory_bytes: int) -> None:
        self.all = False
        self.alone: frozenset[TopicPartition] = frozenset()
        self.memory_is_full = False
        self._memory_bytes = memory_bytes
        self._full_at: float | None = None  # since when memory is full

    @property
    def waits_for_memory(self) -> bool:
        """Whether memory is full, even for a moment: nothing is polled then."""
        return self._full_at is not None

    def forget(self, tp: TopicPartition) -> None:
        """Note that the partition was revoked or started again. Both end a pause for its own rate."""
        self.alone -= {tp}

    def weigh(self, held_bytes: int, now: float) -> None:
        """Note how much memory the records take at ``now``."""
        if held_bytes < self._memory_bytes:
            self._full_at = None
        elif self._full_at is None:
            self._full_at = now
        lasting = self._full_at is not None and now - self._full_at >= PAUSE_SECONDS
        self.memory_is_full = lasting or (self.memory_is_full and held_bytes >= self._memory_bytes * RESUME_FRACTION)

    def change(
        self, held_up: bool, reading: Callable[[], Collection[TopicPartition]], throttle: Throttle, now: float
    ) -> Change:
        """Return what to pause and to resume.

        ``held_up``: the driver, a store or a drain stops the receiver. ``reading``: returns the partitions that are read,
        called only if needed.
        """
        paused = self.memory_is_full or held_up or throttle.all_over(now)
        if paused == self.all and not throttle.limited and not self.alone:
            return Change()
        active = reading()
        before, slowed = self.alone, throttle.over(active, now)
        was, self.all, self.alone = self.all, paused, slowed
        newly = len(slowed - before)
        if paused and not was:
            return Change(pause=active, for_memory=self.memory_is_full, slowed=newly)
        if was and not paused:
            return Change(resume=[tp for tp in active if tp not in slowed], slowed=newly)
        if not paused:
            return Change(pause=slowed - before, resume=before - slowed, slowed=newly)
        return Change(slowed=newly)
