"""Which partitions pause: all of them while something holds the intake up, one alone while it is over its rate. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from forebay.model.values import TopicPartition
from receiver.throttle import Throttle

#: full memory that lasts so long pauses the partitions. Until then nothing is polled: pausing makes Kafka's client throw
#: away what it has fetched, and it takes half a second to begin again; a rebalance waits so long at most
PAUSE_SECONDS = 1.0
#: paused for lack of memory, receiving goes on when so much of the bound is free again
RESUME_FRACTION = 0.5


@dataclass(frozen=True, slots=True)
class Change:
    """What pauses and what goes on. ``for_memory``: all pause, because memory is full; ``slowed``: those that pause alone."""

    pause: Collection[TopicPartition] = ()
    resume: Collection[TopicPartition] = ()
    for_memory: bool = False
    slowed: int = 0


class Pausing:
    """INV-6: when memory is full nothing is polled, and when that lasts the partitions pause, and polling goes on so that the
    group keeps the receiver.

    ``all``: all are paused. ``alone``: those paused by themselves. ``memory_is_full``: so long that polling is paused.
    """

    def __init__(self, memory_bytes: int) -> None:
        self.all = False
        self.alone: frozenset[TopicPartition] = frozenset()
        self.memory_is_full = False
        self._memory_bytes = memory_bytes
        self._full_at: float | None = None  # since when memory is full

    @property
    def waits_for_memory(self) -> bool:
        """Whether memory is full, if only for a moment: nothing is polled then."""
        return self._full_at is not None

    def forget(self, tp: TopicPartition) -> None:
        """It is not paused by itself any more: it has gone, or begins anew."""
        self.alone -= {tp}

    def weigh(self, held_bytes: int, now: float) -> None:
        if held_bytes < self._memory_bytes:
            self._full_at = None
        elif self._full_at is None:
            self._full_at = now
        lasting = self._full_at is not None and now - self._full_at >= PAUSE_SECONDS
        self.memory_is_full = lasting or (self.memory_is_full and held_bytes >= self._memory_bytes * RESUME_FRACTION)

    def change(
        self, held_up: bool, reading: Callable[[], Collection[TopicPartition]], throttle: Throttle, now: float
    ) -> Change:
        """``held_up``: something other than memory and rates stops the intake. ``reading``: which partitions are read, asked
        only where it matters."""
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
