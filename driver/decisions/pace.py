"""When the next batch is expected, so that receivers seal their blocks for it. Decision logic, without I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

#: a batch that takes longer than expected is expected to take this fraction of its time more
OVERTIME = 0.15
#: without an interval, receivers seal at least this often while a batch runs, as a fraction of its time: it may end early
SEALED = 1 / 3
#: number of batches from whose times the next one's is expected
BATCHES_SEEN = 8


@dataclass(frozen=True, slots=True)
class ExpectedBatch:
    """When the next batch is expected, in milliseconds from now, and how long after it the one that follows."""

    in_ms: int
    every_ms: int


@dataclass(slots=True, eq=False)
class Pace:
    """What the stream's batches take, as seen by the decision loop. It is an estimate: a wrong one costs time, no rule depends
    on it.

    ``interval_ms``: the batch interval; 0: the next batch begins as soon as blocks wait. ``jobs``: number of batches that may run
    at the same time.
    """

    interval_ms: int
    jobs: int = 1
    _begun: dict[int, int] = field(default_factory=dict)  # batch id → when it began, of the batches that run
    _durations_ms: deque[int] = field(default_factory=lambda: deque(maxlen=BATCHES_SEEN))

    def begin(self, batch_id: int, now_ms: int) -> None:
        """A worker begins a batch."""
        self._begun[batch_id] = now_ms

    def end(self, batch_id: int, now_ms: int, *, usual: bool = True) -> None:
        """A batch has ended; nothing happens if it is unknown. ``usual``: its first attempt succeeded, so its time says something
        about the next one."""
        begun_ms = self._begun.pop(batch_id, None)
        if begun_ms is not None and usual:
            self._durations_ms.append(max(0, now_ms - begun_ms))

    def next_batch(self, now_ms: int) -> ExpectedBatch | None:
        """Return when a block that a receiver seals from now on is expected to be in a batch; None: nothing is known yet."""
        interval = self.interval_ms
        if not interval and not self._begun and not self._durations_ms:
            return None
        until_due = interval - now_ms % interval if interval else 0
        return ExpectedBatch(round(max(until_due, self._until_free(now_ms))), max(interval, self._expected_ms))

    @property
    def _expected_ms(self) -> int:
        """The time that at least three quarters of the last batches took. A block that is sealed too soon costs little, since
        another one follows; one that is sealed too late waits for a whole batch more."""
        return sorted(self._durations_ms)[(len(self._durations_ms) - 1) // 4] if self._durations_ms else 0

    def _until_free(self, now_ms: int) -> float:
        """Return the time until a worker is free. Without an interval, a free one takes what was just accepted."""
        if len(self._begun) < self.jobs:
            return 0.0 if self.interval_ms else self._expected_ms
        elapsed = max(0, now_ms - min(self._begun.values()))
        left = max(self._expected_ms - elapsed, OVERTIME * elapsed)
        return left if self.interval_ms or not self._expected_ms else min(left, SEALED * self._expected_ms)
