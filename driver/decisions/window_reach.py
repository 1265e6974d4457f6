"""How many batches before an uncompleted one are kept, so that windows by time find theirs. Decision logic, without I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

#: a larger or smaller number than needed is journalled by this fraction above the needed one, so not with each batch
MARGIN = 0.25


class WindowReach:
    """The number of batches that windows of ``length_ms`` reach back, from the times of the batches.

    A batch runs the windows that end after the batch before it. So the batches before batch ``n + 1`` that it may read are those
    later than the time of batch ``n`` less ``length_ms``. ``least``: number of batches that are kept in every case.
    """

    def __init__(self, least: int, length_ms: int) -> None:
        self._least = least
        self.length_ms = length_ms
        self._newest_ms = 0
        self._by_newest = least  # how many batches before it the newest batch needs
        self._times: deque[int] = deque()  # of the batches that the next one may read

    def add(self, time_ms: int) -> int:
        """Add the next batch. Return how many batches before the one after it are needed."""
        if not self.length_ms:
            return self._least
        self._by_newest = max(self._least, len(self._times))
        if self.is_set_back(self._newest_ms, time_ms):
            self._times.clear()  # no window contains batches of before and after: they would stay until the clock is there again
            self._newest_ms = time_ms
        self._newest_ms = max(self._newest_ms, time_ms)
        self._times.append(self._newest_ms)
        while self._times[0] <= self._newest_ms - self.length_ms:
            self._times.popleft()
        return max(self._least, len(self._times))

    def is_set_back(self, newest_ms: int, time_ms: int) -> bool:
        """Whether the clock was set back by more than ``length_ms`` between two batches."""
        return 0 < self.length_ms < newest_ms - time_ms

    def kept(self, now: int, needed: int, all_completed: bool) -> int:
        """Return how many batches are kept from now on. ``now``: how many are kept; ``needed``: what :meth:`add` returned;
        ``all_completed``: whether all batches before the newest one are completed, so that only the newest one may need more."""
        if not self.length_ms:
            return self._least
        most = max(needed, self._by_newest)
        wanted = most + int(most * MARGIN)
        return wanted if needed > now or (all_completed and wanted * 2 < now) else now

    def begun(self, now: int, held: Iterable[tuple[int, bool]]) -> int:
        """Add the batches that a new driver finds: their times in order, and whether each may be the one before an uncompleted
        batch. Return how many are kept from now on."""
        needed = max(
            (count for time_ms, counts in held if (count := self.add(time_ms)) and counts), default=self._least
        )
        return needed if not self.length_ms else max(needed, self.kept(now, needed, True))
