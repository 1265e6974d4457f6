"""Encodes and decodes the payload of a block.

The payload is one Arrow IPC stream of ``BLOCK_SCHEMA``. Its rows are grouped by range, in the order of the ranges in the block's
metadata, and within a range in offset order. A range is one or more record batches (none if it has no record), and no record
batch has rows of two ranges. Buffers may be compressed by lz4 or zstd.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa

from forebay.model.arrow_columns import Column, bytes_column, number_view, numbers_column
from forebay.model.arrow_sizes import decompressed_sizes
from forebay.model.digest import digest
from forebay.model.errors import CorruptionError
from forebay.model.records import BLOCK_SCHEMA, SOURCE_SCHEMA, RangeRows
from forebay.model.values import BlockMeta, BlockRange

Compression = Literal["none", "lz4", "zstd"]

#: record batches with fewer rows are joined with their neighbours, so that a block of many small polls is read fast
ROWS_JOINED_MIN = 4096
#: maximum bytes of joined record batches, far below the 2 GiB that 32-bit Arrow offsets can address
BYTES_JOINED_MAX = 64_000_000
#: smaller buffers of a payload are joined with their neighbours, so that a block is written in few calls
PART_BYTES_MIN = 256 * 1024

#: number of buffers before those of the headers
_COLUMN_BUFFERS = 16
#: maximum bytes in these buffers for each record, beside its key and value, and for each range
_RECORD_BYTES_MAX, _RANGE_BYTES_MAX = 64, 1 << 16
#: maximum bytes of the headers, and of the other columns if the metadata does not say how many there are
_BYTES_MAX = 2 << 30


def encode_block(ranges: Sequence[RangeRows], headers: bool, compression: Compression = "none") -> pa.Buffer:
    """Return the payload of a block of ``ranges``: one Arrow IPC stream of ``BLOCK_SCHEMA(headers)``.

    The block's metadata must name the same ranges in the same order. Raises ValueError if a batch has another schema.
    """
    parts = payload_parts(ranges, headers, compression)
    payload = pa.allocate_buffer(sum(part.size for part in parts))
    target = memoryview(payload).cast("B")
    end = 0
    for part in parts:
        begin, end = end, end + part.size
        target[begin:end] = memoryview(part).cast("B")
    return payload


def payload_parts(ranges: Sequence[RangeRows], headers: bool, compression: Compression = "none") -> list[pa.Buffer]:
    """Return the payload as :func:`encode_block` does, as buffers that follow each other.

    Large columns that are not compressed are returned without a copy: they share memory with the batches of ``ranges``.
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
    sink = _Parts()
    with pa.ipc.new_stream(pa.PythonFile(cast(Any, sink), "w"), schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.parts()


class _Parts:
    """A file that keeps what Arrow writes to it: large buffers as they are, consecutive small ones joined."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[pa.Buffer] = []
        self._small: list[Any] = []

    def write(self, data: Any) -> None:
        if len(data) < PART_BYTES_MIN:
            self._small.append(data)
            return
        self._join_small()
        self._parts.append(pa.py_buffer(data))

    def parts(self) -> list[pa.Buffer]:
        self._join_small()
        return self._parts

    def flush(self) -> None:
        """Do nothing: Arrow calls it at the end."""

    def _join_small(self) -> None:
        if self._small:
            self._parts.append(pa.py_buffer(b"".join(self._small)))
            self._small.clear()


def _joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return ``batches`` without empty ones, with small neighbours joined."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.schema != schema:
            raise ValueError(f"the batch of a source has the schema\n{batch.schema}\nexpected\n{schema}")
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
    """Return ``rows`` as batches of ``BLOCK_SCHEMA(headers)``, as :func:`decode_block` does."""
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
) -> list[tuple[BlockRange, list[pa.RecordBatch]]]:
    """Return the ranges of a block in order, each with its batches of ``BLOCK_SCHEMA``.

    ``payload``: a ``pa.Buffer`` or bytes-like object. The batches refer to it without a copy, unless it is compressed or not
    aligned. ``verify_digests``: also compare the digests of the ranges, which the CRC of a frame makes unnecessary. Rows, topic,
    partition and offsets are always compared with ``meta``. ``path``, ``offset``: the payload's place, for errors.

    Raises CorruptionError.
    """
    where = path or meta.id

    def damaged(reason: str) -> CorruptionError:
        return CorruptionError(where, offset, f"block {meta.id}: {reason}")

    schema = BLOCK_SCHEMA(meta.headers)
    try:
        too_large = oversized(decompressed_sizes(payload), meta)
        if too_large:
            raise damaged(too_large)
        with pa.ipc.open_stream(payload) as reader:
            if reader.schema != schema:
                raise damaged(
                    f"its columns are {reader.schema.names} or have other types; expected are those of the format, {schema.names}"
                )
            batches = list(reader)
    except (pa.ArrowException, OSError, ValueError) as error:  # Arrow raises all of them for unreadable input
        raise damaged(f"its payload is not an Arrow stream: {error}") from None
    decoded: list[tuple[BlockRange, list[pa.RecordBatch]]] = []
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


def oversized(declared: Iterable[Sequence[int]], meta: BlockMeta) -> str:
    """Return the reason if the payload would decompress to more bytes than the block's records need (INV-6); else "".

    ``declared``: the declared sizes of the buffers of each compressed message (``forebay.model.arrow_sizes``).
    """
    counted = sum(range_.bytes for range_ in meta.ranges)
    limit = counted + meta.records * _RECORD_BYTES_MAX + len(meta.ranges) * _RANGE_BYTES_MAX if counted else _BYTES_MAX
    columns = headers = 0
    for sizes in declared:
        columns += sum(size for size in sizes[:_COLUMN_BUFFERS] if size > 0)
        headers += sum(size for size in sizes[_COLUMN_BUFFERS:] if size > 0)  # not counted in a range's bytes
    if columns > limit or headers > _BYTES_MAX:
        return f"its columns decompress to {columns + headers} bytes; its ranges allow {limit}"
    return ""


def _check_batch(batch: pa.RecordBatch, range_: BlockRange, next_offset: int, damaged: Any) -> int:
    """Check that all rows are of ``range_`` and ascend from ``next_offset`` on. Return the offset after the last row."""
    if not batch.num_rows:
        raise damaged(f"range {range_.label} holds an empty record batch")
    topic: Column = batch.column(2)
    try:
        # readers trust the columns' offsets, and wrong ones lead to other memory
        batch.validate(full=True)
        topics = topic.dictionary.to_pylist()
        # numpy needs a quarter of the time of Arrow's functions for the few rows of a small block
        indices = number_view(topic.indices, np.int32)
        partitions = number_view(batch.column(3), np.int32)
        offsets = number_view(batch.column(4), np.int64)
        if batch.column(5).null_count:
            raise ValueError("a timestamp is null")
    except (pa.ArrowException, ValueError) as error:
        raise damaged(f"range {range_.label}: {error}") from None
    index = int(indices[0])
    if not 0 <= index < len(topics) or topics[index] != range_.topic or bool((indices != index).any()):
        raise damaged(f"range {range_.label} holds rows of another topic")
    if bool((partitions != range_.partition).any()):
        raise damaged(f"range {range_.label} holds rows of another partition")
    first, last = int(offsets[0]), int(offsets[-1])
    if first < next_offset or last >= range_.until_offset or bool((offsets[1:] <= offsets[:-1]).any()):
        raise damaged(f"range {range_.label} holds offsets from {first} to {last}, out of bounds or out of order")
    return last + 1


def _constant(number: int, rows: int) -> Column:
    return numbers_column(np.full(rows, number, dtype=np.int32), pa.int32())
