"""The payload of a block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from forebay.model.arrow_columns import Column, bytes_column, number_view, numbers_column
from forebay.model.arrow_sizes import decompressed_sizes
from forebay.model.digest import digest
from forebay.model.errors import CorruptionError
from forebay.model.records import BLOCK_SCHEMA, SOURCE_SCHEMA, RangeRows
from forebay.model.values import BlockMeta, OffsetRange

Compression = Literal["none", "lz4", "zstd"]

#: record batches of fewer rows than this are joined with their neighbours: a block of many small polls still reads fast
ROWS_JOINED_MIN = 4096

#: bytes to which record batches are joined at most, far below the 2 GiB that 32-bit Arrow offsets can address
BYTES_JOINED_MAX = 64_000_000

#: buffers of the columns before the headers; what a record takes in them beside its key and value, and a range at most
_COLUMN_BUFFERS = 16

_RECORD_BYTES_MAX, _RANGE_BYTES_MAX = 64, 1 << 16

#: the bound where the metadata tell no bytes, and of headers
_MOST_BYTES = 2 << 30


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
        offsets = number_view(offset, np.int64)
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


def _constant(number: int, rows: int) -> Column:
    return numbers_column(np.full(rows, number, dtype=np.int32), pa.int32())
