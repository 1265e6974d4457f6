"""Decodes successive small blocks together, because opening, checking and converting each of them costs more than its bytes.

The Arrow streams of blocks with the same columns and topics begin with the same bytes. So the record batches of all of them are
read as one stream, and each check of :func:`forebay.model.payload.decode_block` is made once, over the rows of all blocks. A
ValueError does not say which block is damaged: the caller decodes each of them alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from forebay.model.arrow_columns import Column, Numbers, number_view
from forebay.model.arrow_sizes import declared_sizes
from forebay.model.block_runs.joining import BUFFERS, COLUMNS, join
from forebay.model.block_runs.messages import (
    DICTIONARY_BATCH,
    END,
    PREFIX,
    RECORD_BATCH,
    SCHEMA,
    Form,
    batch_of,
    message_at,
    rows_of,
)
from forebay.model.digest import digest
from forebay.model.payload import oversized
from forebay.model.records import BLOCK_SCHEMA
from forebay.model.values import BlockMeta


class OpenBlock(msgspec.Struct, frozen=True):
    """The Arrow stream of a block, taken apart. ``head``: its schema and dictionaries; ``body``: its record batches, at least
    one. ``decoded_bytes``: size of the decompressed record batches. Blocks with equal heads can be decoded together. ``form``: of
    all its record batches, and ``places``: where in ``body`` each begins; None if they can't be joined without Arrow."""

    meta: BlockMeta
    head: bytes
    body: memoryview
    decoded_bytes: int
    form: Form | None = None
    places: Sequence[int] = ()


def open_block(payload: Any, meta: BlockMeta, before: OpenBlock | None = None) -> OpenBlock:
    """Return the block's Arrow stream, taken apart without a copy of its record batches.

    ``before``: another block, whose head and form most likely are those of this one too. The number of records is that of
    ``meta``, and the columns don't decompress to more than the ranges allow (INV-6).

    Raises ValueError if that is not so, if the stream is of another form, or if the block has no record.
    """
    view = memoryview(payload).cast("B")
    # compared as bytes, because Python compares two views item by item
    known = before is not None and bytes(view[: len(before.head)]) == before.head
    sizes: list[tuple[int, ...]] = []
    try:
        begin = len(before.head) if known and before is not None else _end_of_head(view, sizes)
        form = before.form if known and before is not None and before.form is not None else _form(view, begin, meta)
        found = form.batches(view, begin) if form is not None else None
        places, end, rows = found if found is not None else ((), *_record_batches(view, begin, sizes))
    except (struct.error, IndexError):
        raise ValueError("the Arrow stream is truncated") from None
    if rows != meta.records:
        raise ValueError(f"it has {rows} records, its metadata says {meta.records}")
    if sizes and (reason := oversized(sizes, meta)):
        raise ValueError(reason)
    declared = sum(size for message in sizes for size in message if size > 0)
    head = before.head if known and before is not None else bytes(view[:begin])
    relative = [place - begin for place in places]
    return OpenBlock(
        meta, head, view[begin:end], max(end - begin, declared), form if found is not None else None, relative
    )  # fmt: skip


def _form(view: memoryview, begin: int, meta: BlockMeta) -> Form | None:
    """Return the form of the record batch at ``begin``; None if it can't be joined without Arrow."""
    if meta.headers:
        return None
    try:
        return Form(view, begin, columns=COLUMNS, buffers=BUFFERS)
    except ValueError:
        return None


def _end_of_head(view: memoryview, sizes: list[tuple[int, ...]]) -> int:
    """Return where the first record batch begins, and add the declared sizes of compressed dictionaries to ``sizes``."""
    at = 0
    while True:
        message = message_at(view, at)
        if message.kind == RECORD_BATCH and at:
            return at
        if message.kind not in (SCHEMA, DICTIONARY_BATCH):
            raise ValueError("the Arrow stream is of another form")
        if declared := tuple(declared_sizes(view[at + PREFIX.size : message.body], view[message.body : message.end])):
            sizes.append(declared)
        at = message.end


def _record_batches(view: memoryview, begin: int, sizes: list[tuple[int, ...]]) -> tuple[int, int]:
    """Return where the record batches end, and their rows; add the declared sizes of compressed ones to ``sizes``."""
    at, rows = begin, 0
    while view[at : at + len(END)] != END:
        message = message_at(view, at)
        if message.kind != RECORD_BATCH:
            raise ValueError("the Arrow stream has something after its first record batch")
        batch = batch_of(view, message)
        own_rows = rows_of(view, batch)
        if own_rows <= 0:
            raise ValueError("the Arrow stream has an empty record batch")
        rows += own_rows
        if batch.compression_at:
            sizes.append(tuple(declared_sizes(view[at + PREFIX.size : message.body], view[message.body : message.end])))
        at = message.end
    return at, rows


def decode_run(blocks: Sequence[OpenBlock], *, verify_digests: bool = False) -> pa.RecordBatch:
    """Return the records of successive blocks with equal heads as one batch of ``BLOCK_SCHEMA``, in order.

    ``verify_digests``: as for ``decode_block``. Raises ValueError if a block is not what its metadata says.
    """
    form = blocks[0].form
    if form is not None and all(block.form is not None and form.same(block.form) for block in blocks):
        first_end = blocks[0].places[1] if len(blocks[0].places) > 1 else len(blocks[0].body)
        topics_of: Column = _read([blocks[0].head, blocks[0].body[:first_end]], False).column(2)
        batch = join(form, [(block.body, block.places) for block in blocks], topics_of.dictionary)
    else:
        batch = _read([blocks[0].head, *(block.body for block in blocks)], blocks[0].meta.headers)
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


def _read(parts: Sequence[Any], headers: bool) -> pa.RecordBatch:
    """Return the record batches of a stream in ``parts`` as one, read by Arrow. Raises ValueError if it is not valid."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(b"".join([*parts, END]))) as reader:
            if reader.schema != BLOCK_SCHEMA(headers):
                raise ValueError("its columns are not those of the format")
            table: Any = reader.read_all()
        # readers trust the columns' offsets, and wrong ones lead to other memory
        table.validate(full=True)
        joined: list[pa.RecordBatch] = table.combine_chunks().to_batches()
        (batch,) = joined
    except (pa.ArrowException, OSError) as error:  # Arrow raises both for unreadable input
        raise ValueError(str(error)) from None
    return batch
