"""The trigger of a stream's batches: when a worker that is free makes the next batch of the waiting blocks."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DueBatch:
    """A batch that is due.

    ``time_ms``: the end of the newest interval; None: the time of its allocation. ``since_ms``: since when it is due, the end of
    the oldest interval without a batch; 0: since its time. ``seen``: how many intervals had ended by then.
    """

    time_ms: int | None
    since_ms: int = 0
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
        self._since_ms: int | None = None
        self._newest_ms = 0

    def end_interval(self, time_ms: int) -> None:
        """Make a batch due, because an interval ended at ``time_ms``."""
        with self._lock:
            self._ended += 1
            self._newest_ms = time_ms
            if self._since_ms is None:
                self._since_ms = time_ms

    def due(self) -> DueBatch | None:
        """Return the batch that is due; None if none is."""
        if self.continuous:
            return DueBatch(None)
        with self._lock:
            return DueBatch(self._newest_ms, self._since_ms, self._ended) if self._since_ms is not None else None

    def finish_due(self, due: DueBatch, left: bool) -> None:
        """Note the answer to the request for ``due``. ``left``: whether blocks are left, because batches have limits or none may
        begin now. If so, or if an interval has ended since then, the next batch is due from the newest interval on."""
        with self._lock:
            self._since_ms = self._newest_ms if left or self._ended > due.seen else None
