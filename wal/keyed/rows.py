"""Rows of a keyed state as tables: the newest row of each key, what has timed out, what a write adds. Decisions without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.model.errors import UsageError
from wal.keyed.schema import DELETED, UPDATED, StateSchema

_ROW = "__row"
_LAST = f"{_ROW}_max"

#: a shard's deltas are merged into a new base when there are this many, or when they have this fraction of the base's rows
DELTAS_MAX = 8
DELTA_FRACTION = 0.5


def newest(tables: Sequence[pa.Table], key: Sequence[str]) -> pa.Table:
    """Return the last row of each key, of ``tables`` one after the other. The first table has each key once."""
    if len(tables) == 1:
        return tables[0]
    table = pa.concat_tables(tables)
    return table.take(last_rows(table, key))


def last_rows(table: pa.Table, key: Sequence[str]) -> pa.Array[Any]:
    """Return the index of the last row of each key, ascending."""
    indexed = table.select(key).append_column(_ROW, pa.array(np.arange(table.num_rows, dtype=np.int64)))
    last = indexed.group_by(list(key), use_threads=False).aggregate([(_ROW, "max")]).column(_LAST)
    return pc.take(last, pc.sort_indices(last)).combine_chunks()


def without_keys(table: pa.Table, others: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the rows of ``table`` whose key is not in ``others``. ``table`` has each key once."""
    if not table.num_rows or not others.num_rows:
        return table
    last = last_rows(pa.concat_tables([table.select(key), others.select(key)]), key)
    return table.take(last.filter(pc.less(last, pa.scalar(table.num_rows))))


def present(table: pa.Table, after_ms: int) -> pa.Table:
    """Return the rows that are not deleted and were updated after ``after_ms``."""
    return table.filter(
        pc.and_(pc.invert(table.column(DELETED)), pc.greater(table.column(UPDATED), pa.scalar(after_ms)))
    )


def timed_out(table: pa.Table, after_ms: int, until_ms: int) -> pa.Table:
    """Return the rows that are not deleted and were last updated in ``(after_ms, until_ms]``."""
    found = present(table, after_ms)
    return found.filter(pc.less_equal(found.column(UPDATED), pa.scalar(until_ms)))


def delta(schema: StateSchema, rows: pa.Table, deleted: pa.Table, time_ms: int) -> pa.Table:
    """Return what a write adds to a shard's files: ``rows`` and the keys ``deleted``. Raises UsageError if a key occurs twice."""
    wanted = schema.of_files
    removed = [
        deleted.column(f.name) if f.name in schema.key else pa.nulls(deleted.num_rows, f.type) for f in schema.columns
    ]
    table = pa.concat_tables(
        [
            _marked(rows.columns, rows.num_rows, time_ms, False, wanted),
            _marked(removed, deleted.num_rows, time_ms, True, wanted),
        ]
    )
    if len(last_rows(table, schema.key)) != table.num_rows:
        raise UsageError(
            f"state {schema.name!r}: a write has a key more than once: aggregate the rows by {', '.join(schema.key)} before"
        )
    return table


def _marked(
    columns: Sequence[pa.ChunkedArray[Any]], rows: int, time_ms: int, deleted: bool, wanted: pa.Schema
) -> pa.Table:
    times = pa.array(np.full(rows, time_ms, dtype=np.int64))
    marks = pa.array(np.full(rows, deleted, dtype=np.bool_))
    return pa.table([*columns, times, marks], schema=wanted)


def is_due(base_rows: int, delta_rows: Sequence[int]) -> bool:
    """Whether a shard with these deltas, the new one included, gets a new base."""
    return len(delta_rows) >= DELTAS_MAX or sum(delta_rows) >= base_rows * DELTA_FRACTION
