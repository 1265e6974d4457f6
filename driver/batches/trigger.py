"""The trigger of a stream's batches: when a worker that is free makes the next batch of the waiting blocks."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DueBatch:
    """A batch that is due. ``time_ms``: the interval that made it due, the oldest one if several did; None: the time of its
    allocation. ``seen``: how many intervals had ended by then."""

    time_ms: int | None
    seen: int = 0


class Trigger:
    """Whether a batch is due. Thread-safe.

    With an interval, a batch is due from the end of an interval until a worker has found no block left. Without one, a batch is
    always due, and workers wait for blocks.
    """

    def __init__(self, interval_seconds: float) -> None:
        self.continuous = interval_seconds <= 0
        self._lock = threading.Lock()
        self._ended = 0  # intervals
        self._oldest_ms: int | None = None
        self._newest_ms = 0

    def end_interval(self, time_ms: int) -> None:
        """Make a batch due, because an interval ended at ``time_ms``."""
        with self._lock:
            self._ended += 1
            self._newest_ms = time_ms
            if self._oldest_ms is None:
                self._oldest_ms = time_ms

    def due(self) -> DueBatch | None:
        """Return the batch that is due; None if none is."""
        if self.continuous:
            return DueBatch(None)
        with self._lock:
            return DueBatch(self._oldest_ms, self._ended) if self._oldest_ms is not None else None

    def settle(self, due: DueBatch) -> None:
        """Note that no block was left for ``due``. An interval that has ended since then makes the next batch due."""
        with self._lock:
            self._oldest_ms = self._newest_ms if self._ended > due.seen else None
