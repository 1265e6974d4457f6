"""The learned rate: how many records per second the job processes. A PID controller over completed batches, without I/O.

The rules are those of Spark's ``PIDRateEstimator``. The *error* is the present rate minus the rate at which the batch was
processed. The *historical error* measures the backlog: the records that could have been processed while the batch waited for
its turn, divided by one batch interval.
"""

from __future__ import annotations

from dataclasses import dataclass

#: a change of the rate below this fraction is ignored: it is neither journalled nor sent to receivers
SIGNIFICANT = 0.05
#: an end this much before the last batch's means that the clock was set back; less happens if batches run at the same time
CLOCK_SET_BACK_MS = 60_000
#: without a batch interval: the processing time (ms) that backpressure allows a batch
TARGET_MS = 1_000
#: without a batch interval: maximum factor from the rate of a short batch to the learned one
GROWTH_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Gains:
    """The factors by which each error reduces the rate, and the minimum rate.

    ``proportional``: of the difference between the rate and what was processed. ``integral``: of the backlog. ``derivative``: of
    the change of the difference. ``min_rate``: the least rate, in records per second.
    """

    proportional: float = 1.0
    integral: float = 0.2
    derivative: float = 0.0
    min_rate: float = 100.0


class RateEstimator:
    """Computes the rate, batch by batch. ``learned``: the rate that an earlier driver learned, 0 if none. ``learned_ms``: when
    it learned it."""

    def __init__(self, gains: Gains, *, batch_interval_ms: float, learned: float = 0.0, learned_ms: int = 0) -> None:
        self._gains = gains
        self._interval_ms = batch_interval_ms
        self._rate = learned
        self._error = 0.0
        self._time_ms = learned_ms

    def learn(self, time_ms: int, records: int, processing_ms: int, scheduling_ms: int) -> float | None:
        """Return the rate (records/s) after a batch that ended at ``time_ms``, ran for ``processing_ms`` and had waited for
        its turn for ``scheduling_ms``.

        Returns None if nothing can be learned (no records, no processing time, older than the last batch), and for the first
        batch ever, which sets the initial rate.
        """
        if self._time_ms - time_ms > CLOCK_SET_BACK_MS:
            self._time_ms = time_ms  # otherwise nothing would be learned until the clock has caught up
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


@dataclass(frozen=True, slots=True)
class RateSample:
    """What a batch without an interval counts as, for the estimator: ``records`` that it could have processed, and the time for
    which it made others wait (ms)."""

    records: int
    waited_ms: int

    @classmethod
    def of(cls, records: int, processing_ms: int) -> RateSample:
        """Without an interval a batch has what arrived during the one before it, so its rate alone would keep batches as they
        are: small ones slow because of the fixed cost of a batch, large ones large. A batch below ``TARGET_MS`` counts as if it
        had time for up to ``GROWTH_MAX`` times its records; one above it made others wait for the rest.
        """
        growth = min(GROWTH_MAX, max(1.0, TARGET_MS / max(1, processing_ms)))
        return cls(round(records * growth), max(0, processing_ms - TARGET_MS))


def is_significant(old: float, new: float) -> bool:
    """Return whether ``new`` differs from ``old`` (0: none) by more than the fraction ``SIGNIFICANT``."""
    return abs(new - old) > SIGNIFICANT * old
