"""Decodes successive small blocks together, because opening, checking and converting each of them costs more than its bytes.

The Arrow streams of blocks with the same columns and topics begin with the same bytes. So the record batches of all of them are
read as one stream, and each check of :func:`forebay.model.payload.decode_block` is made once, over the rows of all blocks. A
ValueError does not say which block is damaged: the caller decodes each of them alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.model.arrow_columns import Column, Numbers, number_view
from forebay.model.arrow_sizes import declared_sizes
from forebay.model.digest import digest
from forebay.model.payload import oversized
from forebay.model.records import BLOCK_SCHEMA
from forebay.model.values import BlockMeta

_CONTINUATION = 0xFFFFFFFF
_END = struct.pack("<Ii", _CONTINUATION, 0)
#: of a message: continuation, and length of its description
_PREFIX = struct.Struct("<Ii")
_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH = 1, 2, 3

_offset_at = struct.Struct("<I").unpack_from
_back_at = struct.Struct("<i").unpack_from
_length_at = struct.Struct("<q").unpack_from
#: of a flatbuffer's vtable: its length, that of its table, and where in it the first four fields are
_vtable_at = struct.Struct("<HHHHHH").unpack_from


@dataclass(frozen=True, slots=True)
class OpenBlock:
    """The Arrow stream of a block, taken apart. ``head``: its schema and dictionaries; ``body``: its record batches, at least
    one. ``decoded_bytes``: size of the decompressed record batches. Blocks with equal heads can be decoded together."""

    meta: BlockMeta
    head: bytes
    body: Any
    decoded_bytes: int


def open_block(payload: Any, meta: BlockMeta, known_head: bytes = b"") -> OpenBlock:
    """Return the block's Arrow stream, taken apart without a copy of its record batches.

    ``known_head``: the head of another block, which most likely is that of this one too. The number of records is that of
    ``meta``, and the columns don't decompress to more than the ranges allow (INV-6).

    Raises ValueError if that is not so, if the stream is of another form, or if the block has no record.
    """
    view = memoryview(payload).cast("B")
    # compared as bytes, because Python compares two views item by item
    head = known_head if bytes(view[: len(known_head)]) == known_head else b""
    sizes: list[tuple[int, ...]] = []
    try:
        begin = len(head) or _end_of_head(view, sizes)
        end, rows = _record_batches(view, begin, sizes)
    except (struct.error, IndexError):
        raise ValueError("the Arrow stream is truncated") from None
    if rows != meta.records:
        raise ValueError(f"it has {rows} records, its metadata says {meta.records}")
    if sizes and (reason := oversized(sizes, meta)):
        raise ValueError(reason)
    declared = sum(size for message in sizes for size in message if size > 0)
    return OpenBlock(meta, head or bytes(view[:begin]), view[begin:end], max(end - begin, declared))


def _end_of_head(view: memoryview, sizes: list[tuple[int, ...]]) -> int:
    """Return where the first record batch begins, and add the declared sizes of compressed dictionaries to ``sizes``."""
    at = 0
    while True:
        kind, _, body, end = _message(view, at)
        if kind == _RECORD_BATCH and at:
            return at
        if kind not in (_SCHEMA, _DICTIONARY_BATCH):
            raise ValueError("the Arrow stream is of another form")
        if declared := tuple(declared_sizes(view[at + _PREFIX.size : body], view[body:end])):
            sizes.append(declared)
        at = end


def _record_batches(view: memoryview, begin: int, sizes: list[tuple[int, ...]]) -> tuple[int, int]:
    """Return where the record batches end, and their rows; add the declared sizes of compressed ones to ``sizes``."""
    at, rows = begin, 0
    while view[at : at + len(_END)] != _END:
        kind, content, body, end = _message(view, at)
        if kind != _RECORD_BATCH:
            raise ValueError("the Arrow stream has something after its first record batch")
        rows_at, _, _, compression_at = _fields(view, content)
        if not rows_at:
            raise ValueError("the Arrow stream has an empty record batch")
        rows += _length_at(view, rows_at)[0]
        if compression_at:
            sizes.append(tuple(declared_sizes(view[at + _PREFIX.size : body], view[body:end])))
        at = end
    return at, rows


def _message(view: memoryview, at: int) -> tuple[int, int, int, int]:
    """Return the kind of the message at ``at``, where its content and its body begin, and where it ends.

    Raises ValueError, ``struct.error`` or IndexError if it does not end within ``view``.
    """
    continuation, length = _PREFIX.unpack_from(view, at)
    begin = at + _PREFIX.size
    _, kind_at, content_at, body_length_at = _fields(view, begin + _offset_at(view, begin)[0])
    body = begin + length
    end = body + (_length_at(view, body_length_at)[0] if body_length_at else 0)
    if continuation != _CONTINUATION or not kind_at or not content_at or not begin < body <= end <= len(view):
        raise ValueError("the Arrow stream is of another form")
    return view[kind_at], content_at + _offset_at(view, content_at)[0], body, end


def _fields(view: memoryview, table: int) -> tuple[int, int, int, int]:
    """Return where the first four fields of a flatbuffer's table are; 0 for an absent one."""
    vtable = table - _back_at(view, table)[0]
    size, _, a, b, c, d = _vtable_at(view, vtable)
    return (
        table + a if a and size > 4 else 0,
        table + b if b and size > 6 else 0,
        table + c if c and size > 8 else 0,
        table + d if d and size > 10 else 0,
    )


def decode_run(blocks: Sequence[OpenBlock], *, verify_digests: bool = False) -> pa.RecordBatch:
    """Return the records of successive blocks with equal heads as one batch of ``BLOCK_SCHEMA``, in order.

    ``verify_digests``: as for ``decode_block``. Raises ValueError if a block is not what its metadata says.
    """
    headers = blocks[0].meta.headers
    stream = pa.py_buffer(b"".join([blocks[0].head, *(block.body for block in blocks), _END]))
    try:
        with pa.ipc.open_stream(stream) as reader:
            if reader.schema != BLOCK_SCHEMA(headers):
                raise ValueError("its columns are not those of the format")
            table: Any = reader.read_all()
        # readers trust the columns' offsets, and wrong ones lead to other memory
        table.validate(full=True)
        joined: list[pa.RecordBatch] = table.combine_chunks().to_batches()
        (batch,) = joined
    except (pa.ArrowException, OSError) as error:  # Arrow raises both for unreadable input
        raise ValueError(str(error)) from None
    ranges = [range_ for block in blocks for range_ in block.meta.ranges if range_.records]
    rows = np.fromiter((range_.records for range_ in ranges), np.int64, len(ranges))
    if batch.num_rows != int(rows.sum()):
        raise ValueError("it has another number of records than its metadata")
    topic: Column = batch.column(2)
    topics = {name: index for index, name in enumerate(topic.dictionary.to_pylist())}
    expected: list[tuple[Numbers, Sequence[int]]] = [
        (number_view(topic.indices, np.int32), [topics.get(range_.topic, -1) for range_ in ranges]),
        (number_view(batch.column(3), np.int32), [range_.partition for range_ in ranges]),
    ]
    if any(bool((found != np.repeat(np.array(wanted, np.int32), rows)).any()) for found, wanted in expected):
        raise ValueError("it has rows of another topic or partition")
    if batch.column(5).null_count:
        raise ValueError("a timestamp is null")
    offsets = number_view(batch.column(4), np.int64)
    ends = np.cumsum(rows)
    starts = ends - rows
    ascends = offsets[1:] > offsets[:-1]
    ascends[starts[1:] - 1] = True  # a range may begin anywhere
    first = np.fromiter((range_.from_offset for range_ in ranges), np.int64, len(ranges))
    until = np.fromiter((range_.until_offset for range_ in ranges), np.int64, len(ranges))
    if not ascends.all() or (offsets[starts] < first).any() or (offsets[ends - 1] >= until).any():
        raise ValueError("it has offsets out of bounds or out of order")
    if verify_digests:
        for range_, start in zip(ranges, starts.tolist(), strict=True):
            if digest([batch.slice(start, range_.records)]) != range_.digest:
                raise ValueError(f"range {range_.label} has another digest than its metadata")
    return batch
