"""The schemas of records as Arrow columns, and the conversions between them.

There are three schemas, one for each stage of a record. With ``headers``, each has one more column at its end.

* ``SOURCE_SCHEMA``: what a source returns for one partition. Timestamps are Kafka's own milliseconds.
* ``BLOCK_SCHEMA``: what a block stores: the columns of Spark's Kafka source. The topic is dictionary-encoded, and the timestamp
  is in milliseconds, so that a value is stored exactly as Kafka returned it.
* ``DATAFRAME_SCHEMA``: what users see. Names and types are those of Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.model.arrow_columns import Column, bytes_column, milliseconds, number_view, numbers_column, value_lengths
from forebay.model.values import TopicPartition

_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_HEADERS_FIELD: pa.Field[Any] = pa.field("headers", _HEADERS)
_TOPIC = pa.dictionary(pa.int32(), pa.string())


@lru_cache(maxsize=2)
def SOURCE_SCHEMA(headers: bool) -> pa.Schema:  # noqa: N802 - a constant per flag
    """Return the schema of ``Columns.batch``.

    ``key``, ``value``: binary, null where Kafka has null (a null value is a tombstone). ``offset``: int64, ascending.
    ``timestamp``: int64, milliseconds since 1970 UTC, -1 where Kafka has none. ``timestampType``: int32, 0 create time,
    1 log append time, -1 none. ``headers``: list of (key, value), null for a record without headers, as Spark has it;
    a header's value may be null. The three number columns hold no nulls.
    """
    fields: list[pa.Field[Any]] = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.int64()),
        pa.field("timestampType", pa.int32()),
    ]
    return pa.schema([*fields, _HEADERS_FIELD] if headers else fields)


@lru_cache(maxsize=2)
def BLOCK_SCHEMA(headers: bool) -> pa.Schema:  # noqa: N802 - a constant per flag
    """Return the schema of a block's payload."""
    return _kafka_schema(headers, _TOPIC, pa.timestamp("ms", "UTC"))


@lru_cache(maxsize=2)
def DATAFRAME_SCHEMA(headers: bool) -> pa.Schema:  # noqa: N802 - a constant per flag
    """Return the schema that users see: that of Spark's Kafka source (binary, binary, string, int, long, timestamp, int)."""
    return _kafka_schema(headers, pa.string(), pa.timestamp("us", "UTC"))


def _kafka_schema(headers: bool, topic: pa.DataType, timestamp: pa.DataType) -> pa.Schema:
    fields: list[pa.Field[Any]] = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", topic),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", timestamp),
        pa.field("timestampType", pa.int32()),
    ]
    return pa.schema([*fields, _HEADERS_FIELD] if headers else fields)


@dataclass(frozen=True, slots=True)
class RangeRows:
    """The records of one range of a block: batches of ``SOURCE_SCHEMA`` in offset order; none if the range has no record."""

    tp: TopicPartition
    batches: Sequence[pa.RecordBatch]


# ---- payload ---------------------------------------------------------------------------------------------------------


def as_source(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of ``BLOCK_SCHEMA`` as ``SOURCE_SCHEMA``, as it was before it was encoded; no copy."""
    key, value, _, _, offset, timestamp, timestamp_type, *headers = batch.columns
    columns = [key, value, offset, timestamp.view(pa.int64()), timestamp_type, *headers]
    return pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA(bool(headers)))


def extent(batches: Sequence[pa.RecordBatch]) -> tuple[int, int]:
    """Return the bytes of keys and values in ``batches``, and their newest timestamp in milliseconds; -1 without records."""
    size, newest = 0, -1
    for batch in batches:
        size += sum(int(np.maximum(value_lengths(batch.column(name)), 0).sum()) for name in ("key", "value"))
        timestamps = number_view(milliseconds(batch.column("timestamp")), np.int64)
        newest = max(newest, int(timestamps.max(initial=-1)))
    return size, newest


# ---- what users see --------------------------------------------------------------------------------------------------

_BOUND = (2**63 - 1) // 1000


def to_dataframe(batch: pa.RecordBatch, topic: str, headers_wanted: bool = False) -> pa.RecordBatch:
    """Return a batch of ``BLOCK_SCHEMA``, all of ``topic``, as ``DATAFRAME_SCHEMA``. Only topic and timestamp are copied.

    ``headers_wanted``: a batch without headers gets a column of nulls. A timestamp of -1 ms (Kafka has none) becomes
    1969-12-31T23:59:59.999Z, as in Spark's Kafka source. A timestamp beyond the 292,277 years that microseconds can hold, for
    which Spark's source fails, becomes the last one that they can hold.
    """
    return _to_dataframe(batch, _topic_column(topic, batch.num_rows), headers_wanted)


def topics_to_dataframe(batch: pa.RecordBatch, headers_wanted: bool = False) -> pa.RecordBatch:
    """Do :func:`to_dataframe` for a batch with rows of any topics."""
    column: Column = batch.column(2)
    topics = column.dictionary.to_pylist()
    if len(topics) == 1:
        return to_dataframe(batch, topics[0], headers_wanted)
    return _to_dataframe(batch, column.cast(pa.string()), headers_wanted)


def _to_dataframe(batch: pa.RecordBatch, topic: Column, headers_wanted: bool) -> pa.RecordBatch:
    key, value, _, partition, offset, timestamp, timestamp_type, *headers = batch.columns
    if headers_wanted and not headers:
        headers = [pa.nulls(batch.num_rows, _HEADERS)]
    columns = [
        key,
        value,
        topic,
        partition,
        offset,
        _microseconds(timestamp),
        timestamp_type,
        *headers,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=DATAFRAME_SCHEMA(bool(headers)))


@lru_cache(maxsize=64)
def _repeated_topic(topic: str, rows: int) -> Column:
    return bytes_column([topic.encode()] * rows, pa.string())  # pa.scalar would import pandas


def _topic_column(topic: str, rows: int) -> Column:
    """Return ``topic`` repeated ``rows`` times: a slice of a cached array, whose length is a power of two so that few exist."""
    return _repeated_topic(topic, 1 << max(rows - 1, 0).bit_length()).slice(0, rows)


def _microseconds(milliseconds: Column) -> Column:
    # by numpy, since a cast would import pyarrow.compute
    bounded = np.clip(number_view(milliseconds.view(pa.int64()), np.int64), -_BOUND, _BOUND)
    return numbers_column(bounded * 1000, pa.timestamp("us", "UTC"))


# ---- digest ----------------------------------------------------------------------------------------------------------
