"""How many records a second the job can take, learned from its batches: a PID controller. Pure.

The rules are those of Spark's ``PIDRateEstimator``. The desired rate is followed by what a batch was processed at: the
*error* is the rate at hand minus that. What has piled up is the *historical error*: the records that could have been
processed while the batch waited for its turn, spread over one batch interval.
"""

from __future__ import annotations

from dataclasses import dataclass

#: a rate that differs by less than this part is the same one: not journalled, not told to anybody
SIGNIFICANT = 0.05
#: batches that run side by side may end in any order; one that ends so much before the last one shows that the clock was set back
CLOCK_SET_BACK_MS = 60_000


@dataclass(frozen=True, slots=True)
class Gains:
    """How much of each error is taken off the rate, and the rate below which it never falls (records/s)."""

    proportional: float = 1.0
    integral: float = 0.2
    derivative: float = 0.0
    min_rate: float = 100.0


class RateEstimator:
    """Learns from one batch after the other. ``learned``: the rate that an earlier driver learned, and when (ms); 0: none."""

    def __init__(self, gains: Gains, batch_interval_ms: float, learned: float = 0.0, learned_ms: int = 0) -> None:
        self._gains = gains
        self._interval_ms = batch_interval_ms
        self._rate = learned
        self._error = 0.0
        self._time_ms = learned_ms

    def learn(self, time_ms: int, records: int, processing_ms: int, scheduling_ms: int) -> float | None:
        """The rate (records/s) after a batch that ended at ``time_ms``, was processed for ``processing_ms`` and had waited for
        its turn for ``scheduling_ms``. None if it says nothing (no records, no delay, older than the last one), or if it is
        the first one ever: that sets the rate from which the next goes on."""
        if self._time_ms - time_ms > CLOCK_SET_BACK_MS:
            self._time_ms = time_ms  # or nothing would be learned until the clock is where it was
            return None
        if records <= 0 or processing_ms <= 0 or time_ms <= self._time_ms:
            return None
        gains = self._gains
        processing_rate = records * 1000.0 / processing_ms
        since_seconds = (time_ms - self._time_ms) / 1000.0
        self._time_ms = time_ms
        if not self._rate:
            self._rate = processing_rate
            return None
        error = self._rate - processing_rate
        historical_error = max(0, scheduling_ms) * processing_rate / self._interval_ms
        change = (error - self._error) / since_seconds
        rate = self._rate - (gains.proportional * error + gains.integral * historical_error + gains.derivative * change)
        self._rate, self._error = max(rate, gains.min_rate), error
        return self._rate


def is_significant(old: float, new: float) -> bool:
    """Whether ``new`` is another rate than ``old`` (0: none)."""
    return abs(new - old) > SIGNIFICANT * old
