"""The interface of outputs, which a user's own outputs can implement too."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from driver.batches.job.batch import Batch
from driver.batches.job.work import Written

log = logging.getLogger(__name__)


class Output(Protocol):
    """Writes the rows of a batch so that each run of the batch counts once, even if processes are killed.

    The job calls ``write``, from its thread. ``data``: a Spark DataFrame, a pyarrow Table, RecordBatch or RecordBatchReader,
    or an iterable of record batches. On return the rows are in the output, as durable as the output makes them, together with
    a marker that names the run (``batch.key``). A run that the marker names is skipped; the answer, the log and ``forebay
    status`` show the reason.

    Raises UsageError if the write is impossible (a missing table, ``driver.concurrent_jobs`` above 1), FencedError if a newer
    driver has written there (INV-4), StoreError or UnreachableError if the output failed. The job then fails, and its retry
    learns from the marker whether the rows are in the output. Errors from reading ``data`` are raised unchanged.
    """

    @property
    def name(self) -> str:
        """The output's name, unique in the stream. The output finds its marker by it, so it must not change."""

    def write(self, batch: Batch, data: Any) -> Written:
        """Write ``data`` as the rows of ``batch``, and return what was written or why it was skipped."""
        ...


def noted(batch: Batch, written: Written) -> Written:
    """Log ``written``, show it with the batch in ``forebay status``, and return it."""
    (log.warning if written.skipped else log.info)("batch %d: %s", batch.id, written)
    batch.note(written)
    return written
