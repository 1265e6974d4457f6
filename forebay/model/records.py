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

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

from forebay.model.arrow_sizes import decompressed_sizes
from forebay.model.errors import CorruptionError
from forebay.model.values import BlockMeta, OffsetRange, TopicPartition

#: a ``pyarrow.Array`` and a ``numpy.ndarray`` of integers, whose stubs know too little of their methods and buffers
Column: TypeAlias = Any
Numbers: TypeAlias = Any

Compression = Literal["none", "lz4", "zstd"]

#: record batches of fewer rows than this are joined with their neighbours: a block of many small polls still reads fast
ROWS_JOINED_MIN = 4096
#: bytes to which record batches are joined at most, far below the 2 GiB that 32-bit Arrow offsets can address
BYTES_JOINED_MAX = 64_000_000

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


#: buffers of the columns before the headers; what a record takes in them beside its key and value, and a range at most
_COLUMN_BUFFERS = 16
_RECORD_BYTES_MAX, _RANGE_BYTES_MAX = 64, 1 << 16
#: the bound where the metadata tell no bytes, and of headers
_MOST_BYTES = 2 << 30

# ---- payload ---------------------------------------------------------------------------------------------------------


def encode_block(ranges: Sequence[RangeRows], headers: bool, compression: Compression = "none") -> pa.Buffer:
    """The payload of a block that holds ``ranges`` in this order: one Arrow IPC stream of ``BLOCK_SCHEMA(headers)``.

    The block's metadata must name the same ranges in the same order. Raises ValueError if a batch has another schema.
    """
    schema = BLOCK_SCHEMA(headers)
    topics = sorted({rows.tp.topic for rows in ranges})
    dictionary = bytes_column([topic.encode() for topic in topics], pa.string())
    batches = [
        _with_partition(batch, rows.tp.partition, topics.index(rows.tp.topic), dictionary, schema)
        for rows in ranges
        for batch in _joined(rows.batches, SOURCE_SCHEMA(headers))
    ]
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    if options.compression is not None:
        sink = pa.BufferOutputStream()
        _write_stream(sink, schema, batches, options)
        return sink.getvalue()
    # measured first, so that it is written once: a stream that grows is copied, and held twice, at every doubling
    measure = pa.MockOutputStream()
    _write_stream(measure, schema, batches, options)
    payload = pa.allocate_buffer(measure.size())
    _write_stream(pa.FixedSizeBufferWriter(payload), schema, batches, options)
    return payload


def _write_stream(sink: Any, schema: pa.Schema, batches: Sequence[pa.RecordBatch], options: Any) -> None:
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)


def bytes_column(values: Sequence[bytes | None], type_: Any = None) -> Column:
    """``values`` as an array of binary, or of ``type_`` with the same layout. Raises ValueError for 2 GiB and more.

    Like :func:`numbers_column` it does without ``pa.array``, which imports pandas to see whether it was given a part
    of it: most of a second and 50 MB for a process that has no other use for it.
    """
    count = len(values)
    ends = np.zeros(count + 1, np.int64)
    validity = None
    try:
        lengths = np.fromiter(map(len, values), np.int64, count)  # type: ignore[arg-type]
        joined = b"".join(values)  # type: ignore[arg-type]
    except TypeError:
        present = np.fromiter((value is not None for value in values), np.bool_, count)
        bits: Numbers = np.packbits(present, bitorder="little")
        validity = pa.py_buffer(bits)
        lengths = np.fromiter((len(value or b"") for value in values), np.int64, count)
        joined = b"".join(value for value in values if value is not None)
    np.cumsum(lengths, out=ends[1:])
    if ends[-1] >= 1 << 31:
        raise ValueError(f"{ends[-1]} bytes are too many for one column")
    slots: Numbers = ends.astype(np.int32)
    buffers = [validity, pa.py_buffer(slots), pa.py_buffer(joined)]
    return pa.Array.from_buffers(pa.binary() if type_ is None else type_, count, buffers)


def numbers_column(numbers: Numbers, type_: Any) -> Column:
    """A contiguous array of integers as an array of ``type_``, which has the same width; no copy."""
    return pa.Array.from_buffers(type_, len(numbers), [None, pa.py_buffer(numbers)])


def _joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """``batches`` without empty ones, small neighbours made one."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.schema != schema:
            raise ValueError(f"a source's batch has the schema\n{batch.schema}\nexpected\n{schema}")
        if not batch.num_rows:
            continue
        if waiting and (rows >= ROWS_JOINED_MIN or size + batch.nbytes > BYTES_JOINED_MAX):
            yield _concatenated(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if waiting:
        yield _concatenated(waiting)


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def block_rows(rows: RangeRows, headers: bool) -> Iterator[pa.RecordBatch]:
    """``rows`` as batches of ``BLOCK_SCHEMA(headers)``, as :func:`decode_block` gives them."""
    dictionary = bytes_column([rows.tp.topic.encode()], pa.string())
    for batch in _joined(rows.batches, SOURCE_SCHEMA(headers)):
        yield _with_partition(batch, rows.tp.partition, 0, dictionary, BLOCK_SCHEMA(headers))


def _with_partition(
    batch: pa.RecordBatch, partition: int, topic_index: int, dictionary: Column, schema: pa.Schema
) -> pa.RecordBatch:
    key, value, offset, timestamp, timestamp_type, *rest = batch.columns
    topic = pa.DictionaryArray.from_arrays(_constant(topic_index, batch.num_rows), dictionary)
    columns = [
        key,
        value,
        topic,
        _constant(partition, batch.num_rows),
        offset,
        timestamp.view(pa.timestamp("ms", "UTC")),
        timestamp_type,
        *rest,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _constant(number: int, rows: int) -> Column:
    return numbers_column(np.full(rows, number, dtype=np.int32), pa.int32())


def decode_block(
    payload: Any, meta: BlockMeta, *, verify_digests: bool = False, path: str = "", offset: int = 0
) -> list[tuple[OffsetRange, list[pa.RecordBatch]]]:
    """The ranges of a block in order, each with its batches of ``BLOCK_SCHEMA``, over the bytes of ``payload``.

    ``payload``: a ``pa.Buffer`` or bytes-like; batches refer to it without a copy, unless compressed or not aligned.
    Rows, topic, partition and offsets are always checked against ``meta``; digests only if asked, since whoever read
    the frame has already checked its CRC. ``path`` and ``offset`` say in an error where the payload came from.
    Raises CorruptionError.
    """
    where = path or meta.id

    def damaged(reason: str) -> CorruptionError:
        return CorruptionError(where, offset, f"block {meta.id}: {reason}")

    schema = BLOCK_SCHEMA(meta.headers)
    try:
        oversized = _oversized(payload, meta)
        if oversized:
            raise damaged(oversized)
        with pa.ipc.open_stream(payload) as reader:
            if reader.schema != schema:
                raise damaged(f"its columns are {reader.schema.names}, expected {schema.names} as the format has them")
            batches = list(reader)
    except (pa.ArrowException, OSError, ValueError) as error:  # Arrow has no error of its own for what it can't read
        raise damaged(f"its payload is no Arrow stream: {error}") from None
    decoded: list[tuple[OffsetRange, list[pa.RecordBatch]]] = []
    remaining = iter(batches)
    for range_ in meta.ranges:
        own: list[pa.RecordBatch] = []
        rows, next_offset = 0, range_.from_offset
        while rows < range_.records:
            batch = next(remaining, None)
            if batch is None:
                raise damaged(f"range {range_.label} has {rows} records, its metadata says {range_.records}")
            next_offset = _check_batch(batch, range_, next_offset, damaged)
            rows += batch.num_rows
            own.append(batch)
        if rows != range_.records:
            raise damaged(f"range {range_.label} has {rows} records, its metadata says {range_.records}")
        if verify_digests and digest(own) != range_.digest:
            raise damaged(f"range {range_.label} has the digest {digest(own)}, its metadata says {range_.digest}")
        decoded.append((range_, own))
    if next(remaining, None) is not None:
        raise damaged("it holds more records than its ranges")
    return decoded


def _oversized(payload: Any, meta: BlockMeta) -> str:
    """In words, if the payload would decompress to more than the block's records take (INV-6)."""
    counted = sum(range_.bytes for range_ in meta.ranges)
    limit = counted + meta.records * _RECORD_BYTES_MAX + len(meta.ranges) * _RANGE_BYTES_MAX if counted else _MOST_BYTES
    columns = headers = 0
    for sizes in decompressed_sizes(payload):
        columns += sum(size for size in sizes[:_COLUMN_BUFFERS] if size > 0)
        headers += sum(size for size in sizes[_COLUMN_BUFFERS:] if size > 0)  # not counted in a range's bytes
    if columns > limit or headers > _MOST_BYTES:
        return f"its columns decompress to {columns + headers} bytes, its ranges allow {limit}"
    return ""


def _check_batch(batch: pa.RecordBatch, range_: OffsetRange, next_offset: int, damaged: Any) -> int:
    """Checks that all rows are of ``range_``, ascending from ``next_offset`` on; the offset after the last row."""
    import pyarrow.compute as pc  # slow to import, and needed where rows are read alone

    if not batch.num_rows:
        raise damaged(f"range {range_.label} holds an empty record batch")
    topic: Column = batch.column(2)
    partition, offset = batch.column(3), batch.column(4)
    try:
        # whoever reads the columns trusts their offsets, and reads other memory by wrong ones
        batch.validate(full=True)
        topics = topic.dictionary.to_pylist()
        index: Any = pc.min_max(topic.indices).as_py()
        numbers: Any = pc.min_max(partition).as_py()
        offsets = _numbers(offset, np.int64)
    except (pa.ArrowException, ValueError) as error:
        raise damaged(f"range {range_.label}: {error}") from None
    same = index["min"] == index["max"] and 0 <= index["min"] < len(topics) and not topic.null_count
    if not same or topics[index["min"]] != range_.topic:
        raise damaged(f"range {range_.label} holds rows of another topic")
    if numbers != {"min": range_.partition, "max": range_.partition} or partition.null_count:
        raise damaged(f"range {range_.label} holds rows of another partition")
    first, last = int(offsets[0]), int(offsets[-1])
    if first < next_offset or last >= range_.until_offset or not bool(np.all(offsets[1:] > offsets[:-1])):
        raise damaged(f"range {range_.label} holds offsets from {first} to {last}, out of bounds or out of order")
    return last + 1


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
        timestamps = _numbers(_milliseconds(batch.column("timestamp")), np.int64)
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


def digest(batches: Sequence[pa.RecordBatch]) -> str:
    """The digest of the records in ``batches`` (one range, offset order): 16 lower-case hex digits.

    It depends on the values of the columns alone, not on how they are cut into batches, sliced, encoded or compressed.
    All integers are little-endian two's complement; XXH3-64 is xxHash's 64-bit XXH3 with seed 0.

    The digest is XXH3-64 over: the number of records (8 bytes), then for each stream below, in this order, the XXH3-64
    of the whole stream (8 bytes, as an unsigned integer). Without records nothing follows the number.

    1. offsets, 8 bytes per record
    2. timestamps in milliseconds, 8 bytes per record
    3. timestamp types, 4 bytes per record
    4. lengths of the keys in bytes, 4 bytes per record, -1 for null
    5. the bytes of all keys that are not null, joined
    6. and 7. the same two of the values

    and, only if there is a headers column,

    8. the number of headers, 4 bytes per record, -1 for null
    9. lengths of the headers' keys, 4 bytes per header, -1 for null
    10. the bytes of the headers' keys (UTF-8), joined
    11. and 12. the same two of the headers' values

    The batches may be of ``SOURCE_SCHEMA``, ``BLOCK_SCHEMA`` or ``DATAFRAME_SCHEMA`` (whose timestamps are exact unless
    they were out of bounds). Topic and partition are not digested: they are the range's own. Raises ValueError if
    offset, timestamp or timestampType is null anywhere.
    """
    batches = [batch for batch in batches if batch.num_rows]
    total = xxhash.xxh3_64(struct.pack("<q", sum(batch.num_rows for batch in batches)))
    if not batches:
        return str(total.hexdigest())
    offset, timestamp, timestamp_type = xxhash.xxh3_64(), xxhash.xxh3_64(), xxhash.xxh3_64()
    key, value = _BinaryDigest(), _BinaryDigest()
    streams = [offset, timestamp, timestamp_type, *key.streams, *value.streams]
    with_headers = "headers" in batches[0].schema.names
    if with_headers:
        header_count, header_key, header_value = xxhash.xxh3_64(), _BinaryDigest(), _BinaryDigest()
        streams += [header_count, *header_key.streams, *header_value.streams]
    for batch in batches:
        offset.update(_numbers(batch.column("offset"), np.int64))
        timestamp.update(_numbers(_milliseconds(batch.column("timestamp")), np.int64))
        timestamp_type.update(_numbers(batch.column("timestampType"), np.int32))
        key.update(batch.column("key"))
        value.update(batch.column("value"))
        if with_headers:
            headers: Column = batch.column("headers")
            header_count.update(_lengths(headers, np.asarray(headers.offsets)))
            keys, values = headers.flatten().flatten()
            header_key.update(keys)
            header_value.update(values)
    total.update(struct.pack(f"<{len(streams)}Q", *(stream.intdigest() for stream in streams)))
    return str(total.hexdigest())


class _BinaryDigest:
    """The two streams of a column of strings or bytes: lengths and joined bytes."""

    def __init__(self) -> None:
        self._lengths = xxhash.xxh3_64()
        self._bytes = xxhash.xxh3_64()

    @property
    def streams(self) -> tuple[Any, Any]:
        return self._lengths, self._bytes

    def update(self, column: Column) -> None:
        if not len(column):
            return
        if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
            column = column.cast(pa.binary())
        offsets = _slots(column)
        lengths = _lengths(column, offsets)
        self._lengths.update(lengths)
        if column.null_count and int(offsets[-1] - offsets[0]) != int(lengths[lengths > 0].sum(dtype=np.int64)):
            column = column.drop_null()  # a null may hide bytes that are no value
            offsets = _slots(column)
        if len(column) and offsets[-1] > offsets[0]:
            self._bytes.update(column.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0])))


def value_lengths(column: Column) -> Numbers:
    """Bytes of each value of a column of binary, int32; -1 for null."""
    return _lengths(column, _slots(column))


def _slots(column: Column) -> Numbers:
    """Where each value of ``column`` begins in its bytes, and where the last one ends."""
    return _view(column, np.int32)[column.offset : column.offset + len(column) + 1]


def _lengths(column: Column, offsets: Numbers) -> Numbers:
    lengths = np.diff(offsets)
    if column.null_count:
        bits = np.frombuffer(column.buffers()[0], np.uint8)
        valid = np.unpackbits(bits, count=column.offset + len(column), bitorder="little")[column.offset :]
        lengths[valid == 0] = -1
    return lengths


def _milliseconds(column: Column) -> Column:
    if column.type == pa.int64():
        return column
    if column.type.unit == "ms":
        return column.view(pa.int64())
    return column.cast(pa.timestamp("ms", column.type.tz), safe=False).view(pa.int64())


def _numbers(column: Column, dtype: Any) -> Numbers:
    """A view of an integer column's values. Raises ValueError if there is a null."""
    if column.null_count:
        raise ValueError("a column of numbers holds a null")
    return _view(column, dtype)[column.offset : column.offset + len(column)]


def _view(column: Column, dtype: Any) -> Numbers:
    """The second of a column's buffers (values of numbers, offsets of bytes) as numbers, without a copy."""
    buffer: Any = column.buffers()[1]
    wanted = np.dtype(dtype).newbyteorder("<")
    return np.frombuffer(buffer, wanted, buffer.size // wanted.itemsize)
