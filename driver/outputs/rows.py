"""The rows that a job passes to an output, as record batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from forebay.model.errors import UsageError


def is_frame(data: Any) -> bool:
    """Whether ``data`` is a Spark DataFrame. Does not import PySpark."""
    return hasattr(data, "sparkSession") and hasattr(data, "toLocalIterator")


def record_batches(data: Any) -> Iterator[pa.RecordBatch]:
    """Return the rows of a Spark DataFrame (with one of its partitions in memory at a time), a table, a record batch, a
    reader, or an iterable of record batches such as ``batch.read()``. Raises UsageError for anything else."""
    if is_frame(data):
        from driver.spark import frames as spark_frames

        yield from spark_frames.record_batches(data)
    elif isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.Table):
        yield from data.to_batches()
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes, dict)):
        for rows in data:
            if not isinstance(rows, pa.RecordBatch):
                raise _not_rows(rows)
            yield rows
    else:
        raise _not_rows(data)


def pieces(data: Any, rows_max: int) -> Iterator[pa.RecordBatch]:
    """Return :func:`record_batches` in pieces of at most ``rows_max`` rows, without empty pieces."""
    for rows in record_batches(data):
        for start in range(0, rows.num_rows, rows_max):
            yield rows.slice(start, rows_max)


def _not_rows(data: Any) -> UsageError:
    return UsageError(
        f"an output writes a Spark DataFrame, a pyarrow Table, RecordBatch or RecordBatchReader, or record batches "
        f"(batch.read()); it was given {type(data).__name__}"
    )
