"""Joins small record batches, because each batch that a task passes on costs Spark, Arrow and the job a fixed time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from forebay.model.arrow_columns import one_batch

#: a batch of as many rows, or bytes, is passed on as it is, without a copy
LARGE_ROWS, LARGE_BYTES = 4_096, 1 << 20


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the same rows in the same order, with successive small batches of one schema joined until they are large.

    At most ``LARGE_BYTES`` and one further small batch wait for the next batch.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        own_bytes = batch.nbytes
        large = batch.num_rows >= LARGE_ROWS or own_bytes >= LARGE_BYTES
        if waiting and (large or rows >= LARGE_ROWS or size >= LARGE_BYTES or batch.schema != waiting[0].schema):
            yield one_batch(waiting)
            waiting, rows, size = [], 0, 0
        if large:
            yield batch
        else:
            waiting.append(batch)
            rows += batch.num_rows
            size += own_bytes
    if waiting:
        yield one_batch(waiting)
