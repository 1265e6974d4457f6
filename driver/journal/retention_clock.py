"""The clock by which completed batches age: a wall clock that jumps lets nothing go early.

Decisions of retention compare the time of a batch's completion with now, so both come from here. This clock never jumps ahead
by more than ``AHEAD_MS_MAX`` and never runs ahead of the wall clock. A driver that starts begins where the journal's newest
completion left it, unless little time can have passed since: a driver cannot tell a long pause from a jump.

So after a jump forward, or a long pause, it is behind the wall clock. It then catches up slowly, by ``CATCH_UP`` of the time
that passes: a step would age all batches that were completed meanwhile at once.
"""

from __future__ import annotations

import logging
import threading

from driver.journal.state import State
from forebay.process.clock import Clock

log = logging.getLogger(__name__)

#: a wall clock that is ahead by no more was set right, and is believed
AHEAD_MS_MAX = 60_000
#: of the retention, how much a pause before a driver's start may be and is still believed
PAUSE_SHARE = 0.1
#: how much faster than time passes a clock that is behind goes: batches stay at least retention / (1 + CATCH_UP)
CATCH_UP = 0.1


class RetentionClock:
    """A ``Clock``. From any thread. ``newest_ms``: of the journal's completions, None if it names none."""

    def __init__(self, clock: Clock, retention_seconds: float, newest_ms: int | None) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_at = clock.monotonic()
        self._is_behind = False
        wall_ms = clock.wall_ms()
        pause_ms = wall_ms - newest_ms if newest_ms is not None else 0
        believed = not retention_seconds or pause_ms <= max(AHEAD_MS_MAX, retention_seconds * 1000 * PAUSE_SHARE)
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
        """Join the wall clock if it is near; else say once that this clock is behind."""
        behind_ms = wall_ms - self._now_ms
        if behind_ms <= AHEAD_MS_MAX:
            self._is_behind = False
            self._now_ms = wall_ms
        elif not self._is_behind:
            self._is_behind = True
            log.warning(
                "the clock is %.0f s ahead of the time that is known to have passed: it was set, or no batch was completed for "
                "long; clean-up counts only time that passes, and may keep segments longer than wal.retention",
                behind_ms / 1000,
            )


def newest_completion_ms(state: State) -> int | None:
    """Of the batches whose blocks the journal names; None if it names none."""
    archived = max(state.released.values(), default=None)
    named = [batch.completed_ms for batch in state.batches.values() if batch.completed_ms is not None]
    return max([*named, *([archived] if archived is not None else [])], default=None)
