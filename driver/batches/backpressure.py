"""Completed batches become a learned rate, which the tracker journals and shares out to the receivers."""

from __future__ import annotations

import logging
import threading

from driver.batches.batch import BatchWork
from driver.decision_loop.loop import DriverLoop
from driver.decisions.rate import Gains, RateEstimator
from driver.journal.state import LearnedRate
from driver.tracker.requests import LearnRate

log = logging.getLogger(__name__)


class Backpressure:
    """``learned``: what an earlier driver learned, None: nothing. ``begun_ms``: when this driver began to run batches."""

    def __init__(
        self, loop: DriverLoop, gains: Gains, batch_interval_seconds: float, learned: LearnedRate | None, begun_ms: int
    ) -> None:
        self._loop = loop
        # whoever learned it may have had a clock that went ahead of ours
        rate, time_ms = (learned.rate, min(learned.time_ms, begun_ms)) if learned is not None else (0.0, 0)
        self._estimator = RateEstimator(gains, batch_interval_seconds * 1000.0, rate, time_ms)
        self._begun_ms = begun_ms
        self._lock = threading.Lock()

    def completed(self, work: BatchWork, submitted_ms: int, started_ms: int, ended_ms: int, records: int) -> None:
        """A batch that was due at ``submitted_ms`` ran from ``started_ms`` to ``ended_ms``. Called after its completion is
        durable, by whatever thread ran it; returns when what was learned is durable too. A replay says nothing: its
        batches were taken in long ago. Nor does the time for which no driver ran."""
        if work.replay:
            return
        with self._lock:
            waited_ms = started_ms - max(submitted_ms, self._begun_ms)
            rate = self._estimator.learn(ended_ms, records, ended_ms - started_ms, waited_ms)
        if rate is None:
            return
        log.debug("batch %d: %d records in %d ms, rate %.0f", work.batch_id, records, ended_ms - started_ms, rate)
        self._loop.ask(LearnRate(rate, ended_ms))
