"""How the delay before a retry grows. Pure."""

from __future__ import annotations

#: delays double from ``reclaim_delay`` up to this many times it
DELAY_GROWTH_MAX = 16


def retry_delay(first_seconds: float, failures: int) -> float:
    """Return the seconds to wait after ``failures`` in a row: ``first_seconds``, doubled by each failure but the first."""
    growth: int = min(1 << min(max(0, failures - 1), 16), DELAY_GROWTH_MAX)
    return first_seconds * growth
