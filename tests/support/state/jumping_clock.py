"""A clock whose wall time can be set, while its monotonic time goes on."""

from __future__ import annotations

from forebay.process.clock import Clock, ManualClock, SystemClock


class JumpingClock(ManualClock):
    """A clock that only the test moves; a jump moves only the wall clock."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock
        self._ahead_ms = 0

    def wall_ms(self) -> int:
        return (super().wall_ms() if self._clock is None else self._clock.wall_ms()) + self._ahead_ms

    def monotonic(self) -> float:
        return super().monotonic() if self._clock is None else self._clock.monotonic()

    def jump(self, seconds: float) -> None:
        self._ahead_ms += round(seconds * 1000)


def jumping_system_clock() -> JumpingClock:
    """Goes as the machine's does."""
    return JumpingClock(SystemClock())
