"""The seam that jobs write through: one protocol, which your own outputs can follow too."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from driver.batches.batch import Batch, Written

log = logging.getLogger(__name__)


class Output(Protocol):
    """Writes the rows of a batch so that each run of it counts once, whatever is killed.

    ``write`` is called in the job, from its thread. ``data``: a Spark DataFrame, a pyarrow Table, RecordBatch or
    RecordBatchReader, or an iterable of record batches. On return the rows are in the output, as durable as it makes them,
    together with a marker that names the run (``batch.key``); a run that the marker names is skipped, with the reason in the
    answer, the log and ``forebay status``.

    Raises UsageError for what can't be (a table that is missing, ``driver.concurrent_jobs`` above 1), FencedError if a newer
    driver has written there (INV-4), StoreError or UnreachableError if the output failed: the job then fails, and its retry
    finds out from the marker whether the rows got in. What reading ``data`` raises passes through.
    """

    @property
    def name(self) -> str:
        """Names the output within the stream: its marker is found by it, so it must stay, and no other may have it."""

    def write(self, batch: Batch, data: Any) -> Written: ...


def noted(batch: Batch, written: Written) -> Written:
    """Logs ``written``, and shows it with the batch."""
    (log.warning if written.skipped else log.info)("batch %d: %s", batch.id, written)
    batch.note(written)
    return written
