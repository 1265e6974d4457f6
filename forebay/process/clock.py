"""Time, as an argument. Decisions take ``now`` as a number; shells take a Clock. Direct calls of ``time`` are banned by lint."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC. For what people read and for batch times; never for measuring."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back. For delays, deadlines and leases."""


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to: tests and the simulation."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._ms = float(start_ms)
        self._start = float(start_ms)

    def wall_ms(self) -> int:
        return int(self._ms)

    def monotonic(self) -> float:
        return (self._ms - self._start) / 1000.0

    def advance(self, seconds: float) -> None:
        self._ms += seconds * 1000.0
