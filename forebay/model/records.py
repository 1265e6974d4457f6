"""Records as Arrow columns: the schemas, the payload of a block, the digest of a range.

Three schemas, one for each place a record passes. ``headers`` adds the last column to each.

* ``SOURCE_SCHEMA``: what a source gives for one partition; timestamps are Kafka's own milliseconds.
* ``BLOCK_SCHEMA``: what a block stores; the columns of Spark's Kafka source, the topic dictionary-encoded, the
  timestamp in milliseconds, so that a value is stored exactly as Kafka gave it.
* ``DATAFRAME_SCHEMA``: what users see; names and types are those of Spark's Kafka source.

The payload of a block is one Arrow IPC stream of ``BLOCK_SCHEMA``. Its rows lie grouped by range, in the order of the
ranges in the block's metadata, and within a range in offset order; a range is one or more record batches (none if it
holds no record), and no record batch holds rows of two ranges. Buffers may be compressed by lz4 or zstd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.model.arrow_columns import Column, milliseconds, number_view, numbers_column, value_lengths
from forebay.model.values import TopicPartition

_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_HEADERS_FIELD: pa.Field[Any] = pa.field("headers", _HEADERS)
_TOPIC = pa.dictionary(pa.int32(), pa.string())


@lru_cache(maxsize=2)
def SOURCE_SCHEMA(headers: bool) -> pa.Schema:  # noqa: N802 - a constant per flag
    """The schema of ``Columns.batch``.

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
    """The schema of a block's payload."""
    return _kafka_schema(headers, _TOPIC, pa.timestamp("ms", "UTC"))


@lru_cache(maxsize=2)
def DATAFRAME_SCHEMA(headers: bool) -> pa.Schema:  # noqa: N802 - a constant per flag
    """The schema that users see: that of Spark's Kafka source (binary, binary, string, int, long, timestamp, int)."""
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
    """The records of one range of a block: batches of ``SOURCE_SCHEMA`` in offset order, none for a range without."""

    tp: TopicPartition
    batches: Sequence[pa.RecordBatch]


# ---- payload ---------------------------------------------------------------------------------------------------------


def as_source(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of ``BLOCK_SCHEMA`` as ``SOURCE_SCHEMA``, as it was before it was encoded; no copy."""
    key, value, _, _, offset, timestamp, timestamp_type, *headers = batch.columns
    columns = [key, value, offset, timestamp.view(pa.int64()), timestamp_type, *headers]
    return pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA(bool(headers)))


def extent(batches: Sequence[pa.RecordBatch]) -> tuple[int, int]:
    """Bytes of the keys and values in ``batches``, and their newest timestamp in milliseconds, -1 without records."""
    size, newest = 0, -1
    for batch in batches:
        size += sum(int(np.maximum(value_lengths(batch.column(name)), 0).sum()) for name in ("key", "value"))
        timestamps = number_view(milliseconds(batch.column("timestamp")), np.int64)
        newest = max(newest, int(timestamps.max(initial=-1)))
    return size, newest


# ---- what users see --------------------------------------------------------------------------------------------------

_BOUND = (2**63 - 1) // 1000
_EARLIEST, _LATEST = numbers_column(np.array([-_BOUND, _BOUND]), pa.int64())  # pa.scalar would import pandas


def to_dataframe(batch: pa.RecordBatch, topic: str, headers_wanted: bool = False) -> pa.RecordBatch:
    """A batch of ``BLOCK_SCHEMA``, all of ``topic``, as ``DATAFRAME_SCHEMA``; only topic and timestamp are made anew.
    ``headers_wanted``: a batch without headers gets a column of nulls.

    A timestamp of -1 ms (Kafka has none) becomes 1969-12-31T23:59:59.999Z, as in Spark's Kafka source. One beyond the
    292,277 years that microseconds can hold, for which Spark's source fails, becomes the last one that they can.
    """
    key, value, _, partition, offset, timestamp, timestamp_type, *headers = batch.columns
    if headers_wanted and not headers:
        headers = [pa.nulls(batch.num_rows, _HEADERS)]
    columns = [
        key,
        value,
        _topic_column(topic, batch.num_rows),
        partition,
        offset,
        _microseconds(timestamp),
        timestamp_type,
        *headers,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=DATAFRAME_SCHEMA(bool(headers)))


@lru_cache(maxsize=64)
def _repeated_topic(topic: str, rows: int) -> Column:
    return pa.repeat(pa.scalar(topic, pa.string()), rows)


def _topic_column(topic: str, rows: int) -> Column:
    """``rows`` times ``topic``: a slice of one array, whose length is a power of two so that few are ever made."""
    return _repeated_topic(topic, 1 << max(rows - 1, 0).bit_length()).slice(0, rows)


def _microseconds(milliseconds: Column) -> Column:
    wanted = pa.timestamp("us", "UTC")
    try:
        return milliseconds.cast(wanted)
    except pa.ArrowInvalid:
        import pyarrow.compute as pc

        numbers: Any = milliseconds.view(pa.int64())
        bounded: Any = pc.max_element_wise(pc.min_element_wise(numbers, _LATEST), _EARLIEST)
        return pc.multiply(bounded, 1000).view(wanted)


# ---- digest ----------------------------------------------------------------------------------------------------------
