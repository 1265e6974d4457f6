"""Converts the records that a custom source returns into the columns that blocks are made of. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.model.arrow_columns import bytes_column, numbers_column
from forebay.model.columns import Columns
from forebay.model.records import SOURCE_SCHEMA, extent
from forebay.model.values import TopicPartition
from forebay.sources.receiving import Record, Records

#: upper bound of offsets, so that a partition's position, an int64 too, never overflows
_OFFSET_MAX = 2**62


def source_batch(given: Records, headers: bool, first_offset: int | None = None) -> pa.RecordBatch:
    """Return ``given`` as a batch of ``SOURCE_SCHEMA(headers)``.

    ``first_offset``: number the rows from here on and ignore their own offsets; None to keep these. Raises ValueError, with a
    message for the author of the source, if ``given`` is neither records nor a batch of their columns.
    """
    try:
        if isinstance(given, pa.RecordBatch):
            return _own(_of_columns(given, headers, first_offset))
        return _of_records(given, headers, first_offset)
    except (TypeError, OverflowError, AttributeError, pa.ArrowException) as error:
        raise ValueError(f"it returned neither a list of Record nor a RecordBatch of its columns: {error}") from None


def rows_of(given: object) -> int:
    """Return the number of records in ``given``. Raises ValueError if it is neither a list nor a batch."""
    if isinstance(given, pa.RecordBatch):
        return int(given.num_rows)
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        raise ValueError(f"it returned a {type(given).__name__}, neither a list of Record nor a RecordBatch")
    return len(given)


def columns_of(tp: TopicPartition, generation: int, batch: pa.RecordBatch) -> Columns:
    """Return ``batch``, of ``SOURCE_SCHEMA`` and at least one row, as consecutive records of ``tp``."""
    offsets: Any = batch.column("offset")
    size, newest = extent([batch])
    first, last = offsets[0].as_py(), offsets[batch.num_rows - 1].as_py()
    return Columns(tp, generation, first, last, batch.num_rows, size, newest, -1, batch)


def refuse_order(batch: pa.RecordBatch, position: int) -> None:
    """Raise ValueError unless the offsets ascend and none is below ``position``.

    Otherwise, if a source restarts its numbering or goes back, new records would be taken for old ones (INV-5).
    """
    offsets = _numbers(batch.column("offset"))
    if len(offsets) and int(offsets[0]) < position:
        raise ValueError(f"it returned offset {offsets[0]}, which is below the next offset {position}")
    if len(offsets) > 1 and not bool((np.diff(offsets) > 0).all()):
        place = int(np.argmin(np.diff(offsets) > 0))
        raise ValueError(f"it returned offset {offsets[place + 1]} after {offsets[place]}; offsets must ascend")
    if len(offsets) and int(offsets[-1]) >= _OFFSET_MAX:
        raise ValueError(f"it returned offset {offsets[-1]}, which is above the limit {_OFFSET_MAX}")


def _numbers(column: Any) -> Any:
    return column.to_numpy(zero_copy_only=False)


def _of_records(given: Sequence[Record], headers: bool, first_offset: int | None) -> pa.RecordBatch:
    strange = next((record for record in given if not isinstance(record, Record)), None)
    if strange is not None:
        raise ValueError(f"it returned a {type(strange).__name__} where a Record belongs")
    count = len(given)
    offsets = np.fromiter((record.offset for record in given), np.int64, count)
    times = np.fromiter((record.timestamp_ms for record in given), np.int64, count)
    columns = [
        bytes_column([record.key for record in given]),
        bytes_column([record.value for record in given]),
        *_number_columns(offsets, times, first_offset),
    ]
    if headers:
        lists = [[{"key": k, "value": v} for k, v in record.headers] or None for record in given]
        columns.append(pa.array(lists, SOURCE_SCHEMA(True).field("headers").type))
    return pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA(headers))


def _number_columns(offsets: Any, times: Any, first_offset: int | None) -> list[Any]:
    count = len(times)
    if first_offset is not None:
        offsets = np.arange(first_offset, first_offset + count, dtype=np.int64)
    kinds = np.where(times >= 0, 0, -1).astype(np.int32)
    return [numbers_column(offsets, pa.int64()), numbers_column(times, pa.int64()), numbers_column(kinds, pa.int32())]


def _own(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a copy: a source may fill its buffers again before the block, which shares memory with its records, is written."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def _of_columns(given: pa.RecordBatch, headers: bool, first_offset: int | None) -> pa.RecordBatch:
    count = given.num_rows
    names = given.schema.names
    needed = ["value"] if first_offset is not None else ["value", "offset"]
    if missing := [name for name in needed if name not in names]:
        raise ValueError(f"its RecordBatch has no column {' and '.join(missing)}; it has {', '.join(names) or 'none'}")
    nothing = np.full(count, -1, np.int64)
    offsets = _column(given, "offset", pa.int64()) if first_offset is None else nothing
    times = _column(given, "timestamp", pa.int64()) if "timestamp" in names else nothing
    key = given.column("key").cast(pa.binary()) if "key" in names else bytes_column([None] * count)
    columns = [key, given.column("value").cast(pa.binary()), *_number_columns(offsets, times, first_offset)]
    if headers:
        wanted = SOURCE_SCHEMA(True).field("headers").type
        columns.append(given.column("headers").cast(wanted) if "headers" in names else pa.nulls(count, wanted))
    return pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA(headers))


def _column(given: pa.RecordBatch, name: str, type_: Any) -> Any:
    column: Any = given.column(name)
    if column.null_count:
        raise ValueError(f"its column {name} holds a null")
    return np.ascontiguousarray(_numbers(column.cast(type_)))
