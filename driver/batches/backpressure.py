"""Backpressure: learns a rate from completed batches. The tracker journals the rate and distributes it to the receivers."""

from __future__ import annotations

import logging
import threading

from driver.batches.job.work import BatchWork
from driver.decision_loop.loop import DriverLoop
from driver.decisions.rate import TARGET_MS, Gains, RateEstimator, RateSample
from driver.journal.state_parts import LearnedRate
from driver.journal.statistics import BatchStatistics
from driver.tracker.requests import LearnRate

log = logging.getLogger(__name__)


class Backpressure:
    """Learns the stream's rate. ``batch_interval_seconds``: 0: there is no interval (:class:`driver.decisions.rate.RateSample`).
    ``learned``: the rate that an earlier driver learned, or None. ``begun_ms``: when this driver began to run batches."""

    def __init__(
        self,
        loop: DriverLoop,
        *,
        gains: Gains,
        batch_interval_seconds: float,
        learned: LearnedRate | None,
        begun_ms: int,
    ) -> None:
        self._loop = loop
        # the clock of the driver that learned it may have been ahead of this one
        rate, time_ms = (learned.rate, min(learned.time_ms, begun_ms)) if learned is not None else (0.0, 0)
        self._continuous = batch_interval_seconds <= 0
        self._estimator = RateEstimator(
            gains, batch_interval_ms=batch_interval_seconds * 1000.0 or TARGET_MS, learned=rate, learned_ms=time_ms
        )
        self._begun_ms = begun_ms
        self._lock = threading.Lock()

    def completed(self, work: BatchWork, statistics: BatchStatistics, ended_ms: int) -> None:
        """Learn from a batch that ended at ``ended_ms``.

        Called after the completion is durable, by the thread that ran the batch. On return a new rate is durable too. Replays are
        ignored, because their batches were taken in long ago. Failed attempts count as waiting. The time in which no driver ran
        does not.
        """
        if work.replay:
            return
        processing_ms = statistics.processing_ms
        waited_ms = ended_ms - processing_ms - max(work.due_ms, self._begun_ms)
        sample = (
            RateSample.of(statistics.records, processing_ms)
            if self._continuous
            else RateSample(statistics.records, waited_ms)
        )
        with self._lock:
            rate = self._estimator.learn(ended_ms, sample.records, processing_ms, sample.waited_ms)
        if rate is None:
            return
        log.debug(
            "rate learned: batch %d, %d records in %d ms, rate %.0f",
            work.batch_id,
            statistics.records,
            statistics.processing_ms,
            rate,
        )
        self._loop.ask(LearnRate(rate, ended_ms))
