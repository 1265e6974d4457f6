"""Delays before an ended process is restarted: one policy, for `forebay up` and for managed receivers.

Not tenacity, which repeats one call in a loop of its own: the loops here watch several processes and only need the next delay.
"""

from __future__ import annotations

from dataclasses import dataclass

#: kind of the driver's command that has a receiver drain and exit, to be started again
RESTART = "restart"
#: the exit code of a receiver that a supervisor is to start again
RESTART_EXIT_CODE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Delays between restarts of one child. Each is ``factor`` times the last, until the child runs for ``stable_seconds``."""

    first_delay_seconds: float = 0.5
    factor: float = 2.0
    max_delay_seconds: float = 30.0
    stable_seconds: float = 60.0

    def delay_seconds(self, failures: int) -> float:
        """Return the delay before the restart after quick end number ``failures`` in a row, from 1."""
        # a bounded exponent: a child that fails for days must not overflow a float
        return min(self.max_delay_seconds, self.first_delay_seconds * self.factor ** min(failures - 1, 64))

    def failures_after(self, failures: int, ran_seconds: float) -> int:
        """Return the number of quick ends in a row after a run of ``ran_seconds``."""
        return 1 if ran_seconds >= self.stable_seconds else failures + 1
