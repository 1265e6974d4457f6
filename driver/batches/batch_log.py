"""The newest completed batches, for observers. Their number is bounded; the history keeps all of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from driver.decisions.batch_order import RunKey
from forebay.messages import BatchEntry


class BatchLog:
    """The last ``limit`` completed runs of batches, in the order of their completion. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: deque[BatchEntry] = deque(maxlen=limit)

    def add(self, entry: BatchEntry) -> None:
        """Add a run that was completed now. It replaces the oldest one if the log is full."""
        with self._lock:
            self._entries.append(entry)

    def add_older(self, entries: Iterable[BatchEntry]) -> bool:
        """Add runs that were completed before all runs of the log, the newest first, as far as there is room. Runs that the log
        has are omitted. Return whether there is room for more."""
        with self._lock:
            known = set(map(_key, self._entries))
            for entry in entries:
                if len(self._entries) == self._limit:
                    return False
                if _key(entry) not in known:
                    self._entries.appendleft(entry)
                    known.add(_key(entry))
            return len(self._entries) < self._limit

    def entries(self) -> tuple[BatchEntry, ...]:
        """Return all runs, the one that was completed last first."""
        with self._lock:
            return tuple(reversed(self._entries))

    def last(self, count: int) -> tuple[BatchEntry, ...]:
        """Return the ``count`` runs that were completed last, in the order of their completion."""
        return self.entries()[:count][::-1]

    @property
    def newest(self) -> BatchEntry | None:
        """The run that was completed last; None if there is none."""
        with self._lock:
            return self._entries[-1] if self._entries else None


def _key(entry: BatchEntry) -> RunKey:
    return (entry.replay, entry.batch_id)
