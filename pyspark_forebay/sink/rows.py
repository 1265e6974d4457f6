"""The rows that a query writes: the check of their columns, and their form on the way from a task to the query's process."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from forebay.kafka.produce.rows import check_topics
from forebay.model.errors import UsageError

_TYPES: dict[str, tuple[DataType, ...]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (ArrayType(StructType().add("key", StringType()).add("value", BinaryType())),),
    "partition": (IntegerType(),),
}


def pack_rows(batches: Iterable[pa.RecordBatch], topic: str | None) -> bytes:
    """Return the columns that are written as an Arrow stream; b"" if there are no rows.

    ``topic``: the topic of all rows, None if each row names its topic. Raises UsageError for a row without a topic.
    """
    buffer = io.BytesIO()
    stream: pa.RecordBatchStreamWriter | None = None
    for batch in batches:
        columns = batch.select([name for name in batch.schema.names if name in _TYPES])
        check_topics(columns, topic)
        if stream is None:
            stream = pa.ipc.new_stream(buffer, columns.schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))
        if columns.num_rows:
            stream.write_batch(columns)
    if stream is not None:
        stream.close()
    return buffer.getvalue()


def unpack_rows(rows: bytes) -> Sequence[pa.RecordBatch]:
    """Return the rows of :func:`pack_rows`."""
    with pa.ipc.open_stream(rows) as stream:
        return list(stream)


def check_columns(columns: Mapping[str, Any], topic: str | None) -> None:
    """Raise UsageError unless ``columns`` include those that a record needs. Columns of other names are not written."""
    if topic is None and "topic" not in columns:
        raise UsageError("set the option topic, or add a column topic that names the topic of each row")
    if "value" not in columns:
        raise UsageError("the column value is missing")
    for name, allowed in _TYPES.items():
        if name in columns and not any(_is(columns[name], type_) for type_ in allowed):
            raise UsageError(
                f"column {name} is {columns[name].simpleString()}: allowed are "
                f"{' or '.join(type_.simpleString() for type_ in allowed)}"
            )


def _is(found: Any, wanted: DataType) -> bool:
    """Return whether the types are equal, except for which parts may be null."""
    return bool(found.simpleString() == wanted.simpleString())
