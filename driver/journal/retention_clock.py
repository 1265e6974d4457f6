"""The clock by which completed batches age. A jump of the wall clock deletes nothing early.

Retention compares the time of a batch's completion with the present time, and both come from this clock. It never jumps ahead by
more than ``AHEAD_MS_MAX`` and never runs ahead of the wall clock. When a driver starts, the clock starts at the journal's newest
completion, unless the wall clock is only little ahead of it: a driver cannot distinguish a long pause from a jump.

So after a jump forward, or a long pause, this clock is behind the wall clock. It then catches up slowly, by ``CATCH_UP`` of the
time that passes. A jump would age all batches that were completed meanwhile in one step.
"""

from __future__ import annotations

import logging
import threading

from driver.journal.state import State
from forebay.process.clock import Clock

log = logging.getLogger(__name__)

#: a wall clock that is ahead by no more than this was corrected, and is trusted
AHEAD_MS_MAX = 60_000
#: longest pause before a driver's start that is trusted, as a share of the retention
PAUSE_SHARE = 0.1
#: by which share of the passing time a clock that is behind catches up: batches stay at least retention / (1 + CATCH_UP)
CATCH_UP = 0.1


class RetentionClock:
    """A ``Clock``, for use from any thread. ``newest_ms``: time of the journal's newest completion; None if there is none."""

    def __init__(self, clock: Clock, retention_seconds: float, newest_ms: int | None) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_at = clock.monotonic()
        self._is_behind = False
        wall_ms = clock.wall_ms()
        pause_ms = wall_ms - newest_ms if newest_ms is not None else 0
        # also if no batch is kept: barriers are (BARRIER_KEPT_MS)
        believed = pause_ms <= max(AHEAD_MS_MAX, retention_seconds * 1000 * PAUSE_SHARE)
        self._now_ms = float(wall_ms if believed or newest_ms is None else newest_ms)
        self._compare(wall_ms)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wall_ms(self) -> int:
        with self._lock:
            wall_ms, looked_at = self._clock.wall_ms(), self._clock.monotonic()
            passed_ms = (looked_at - self._looked_at) * 1000
            self._looked_at = looked_at
            self._now_ms = min(self._now_ms + passed_ms * (1 + CATCH_UP * self._is_behind), wall_ms)
            self._compare(wall_ms)
            return int(self._now_ms)

    def _compare(self, wall_ms: int) -> None:
        """Follow the wall clock if it is near; if not, log once that this clock is behind."""
        behind_ms = wall_ms - self._now_ms
        if behind_ms <= AHEAD_MS_MAX:
            self._is_behind = False
            self._now_ms = wall_ms
        elif not self._is_behind:
            self._is_behind = True
            log.warning(
                "wall clock is %.0f s ahead of the time that is known to have passed: it was set, or no batch was completed for "
                "long; clean-up counts only the time that passes, and may keep segments longer than wal.retention",
                behind_ms / 1000,
            )


def newest_completion_ms(state: State) -> int | None:
    """Return the time of the newest completion among the batches whose blocks the journal names; None if there is none.

    The newest is that of the highest number, and not the one with the latest time: after the wall clock was set back, later
    batches have earlier times, and a clock that started at the latest time would make them old.
    """
    named = [(batch.number, batch.completed_ms) for batch in state.batches.values() if batch.completed_ms is not None]
    if named:
        return max(named)[1]
    return next(reversed(state.released.values()), None)  # in the order in which batches moved to the history
