"""Reads the newest completed batches of earlier drivers from the history, for observers, in a thread of its own.

The number of requests to the store grows with the number of batches that are listed. So the driver's start does not wait for
them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from driver.batches.batch_log import BatchLog
from driver.batches.entries import entry_of_finished, entry_of_replayed
from driver.journal import history
from driver.journal.state import State, is_void
from driver.journal.state_parts import Rebuild
from forebay.messages import BatchEntry
from forebay.model.errors import CorruptionError, NewerVersionError, StoreError
from wal.storage import Storage

log = logging.getLogger(__name__)

#: pause before a store that does not answer is read again
RETRY_SECONDS = 5.0


def newest_first(entries: Iterable[BatchEntry]) -> list[BatchEntry]:
    """Return entries in the order in which a log adds older ones."""
    return sorted(entries, key=lambda entry: (entry.completed_ms or 0, entry.batch_id), reverse=True)


def fill_from_state(batches: BatchLog, state: State, limit: int) -> None:
    """Add the completed batches that the journal's state names: those that are not in the history yet, and those of replays. At
    most ``limit`` of each."""
    done = sorted((b for b in state.batches.values() if b.completed_ms is not None), key=lambda b: b.number)[-limit:]
    finished = (history.Leaving(b, tuple(map(state.blocks.__getitem__, b.block_ids))).finished() for b in done)
    replayed = map(entry_of_replayed, state.replayed[-limit:])
    batches.add_older(newest_first((*map(entry_of_finished, finished), *replayed)))


class BatchHistory:
    """Adds the batches of the history to ``batches``, the newest first, until these are full.

    ``epoch``: the journal epoch of this driver; only segments of older ones are read, because this driver adds its own batches
    itself. ``rebuilds``: those of the journal; the batches that they dissolved are omitted.
    """

    def __init__(
        self, batches: BatchLog, storage: Storage, stream: str, *, epoch: int, rebuilds: Iterable[Rebuild]
    ) -> None:
        self._batches = batches
        self._storage = storage
        self._stream = stream
        self._epoch = epoch
        self._rebuilds = tuple(rebuilds)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="batch-history", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the segment that it reads."""
        self._stopping.set()
        self._thread.join()

    def join(self) -> None:
        """Wait until all is read."""
        self._thread.join()

    def _run(self) -> None:
        warned = False
        while not self._stopping.is_set():
            try:
                self.read()
                return
            except (CorruptionError, NewerVersionError) as error:
                log.error("older batches are not listed: %s; `forebay audit` examines the history", error)
                return
            except StoreError as error:
                if not warned:
                    log.warning("older batches are not listed until the journal's store answers: %s", error)
                warned = True
                self._stopping.wait(RETRY_SECONDS)

    def read(self) -> None:
        """Read segments until the log is full. Raises CorruptionError, NewerVersionError, StoreError."""
        for segment in history.read_back(self._storage, self._stream, before_epoch=self._epoch):
            known = [b for b in segment if not is_void(self._rebuilds, b.batch_id, b.number)]
            if not self._batches.add_older(newest_first(map(entry_of_finished, known))) or self._stopping.is_set():
                return
