"""Time as an argument: decisions take ``now`` as a number, code that does I/O takes a Clock. The linter bans ``time``."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time and monotonic time."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 UTC. For display and batch times, never for measuring."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back. For delays, deadlines and leases."""


class SystemClock:
    """The clocks of the operating system."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only by :meth:`advance`; for tests and the simulation."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._ms = float(start_ms)
        self._start = float(start_ms)

    def wall_ms(self) -> int:
        return int(self._ms)

    def monotonic(self) -> float:
        return (self._ms - self._start) / 1000.0

    def advance(self, seconds: float) -> None:
        self._ms += seconds * 1000.0
