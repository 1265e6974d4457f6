"""Joins the record batches of many small blocks, whose descriptions have one form, without decoding each of them.

Arrow takes some microseconds for each record batch of a few rows, because it makes objects for each column and copies each to the
joined one. Here NumPy copies the buffers of all record batches, column by column. What Arrow would check of a record batch is
checked for all of them together. For a stream of another form, Arrow decodes (``forebay.model.block_runs.decoding``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.model.arrow_columns import Column, Numbers, numbers_column
from forebay.model.block_runs.messages import ENTRY_BYTES, Form
from forebay.model.records import BLOCK_SCHEMA

#: of ``BLOCK_SCHEMA(False)``
COLUMNS, BUFFERS = 7, 16

#: for each column: its first buffer, and the bytes of a value (of a column of bytes: of an offset)
_KEY, _VALUE, _TOPIC = 0, 1, 2
_FIRST_BUFFERS = (0, 3, 6, 8, 10, 12, 14)
_WIDTHS = (4, 4, 4, 4, 8, 8, 4)
_INT32_MAX = 2**31 - 1
#: for shorter pieces, NumPy's concatenate takes longer than to join them as bytes and to copy the result
_LONG_PIECE = 4_096


def join(form: Form, parts: Sequence[tuple[memoryview, Sequence[int]]], dictionary: Column) -> pa.RecordBatch:
    """Return the rows of all record batches of ``parts`` as one batch of ``BLOCK_SCHEMA(False)``, in order.

    ``parts``: streams without headers, and where in each its record batches begin; all have ``form``, and Arrow has decoded the
    first one. ``dictionary``: the topics.

    Raises ValueError if a record batch is not valid.
    """
    streams = [stream for stream, places in parts for _ in places]
    begins = np.fromiter(chain.from_iterable(places for _, places in parts), np.int64, len(streams))
    ends = np.empty_like(begins)  # of a record batch: where the next one of its stream begins, or where the stream ends
    ends[:-1] = begins[1:]
    ends[np.cumsum([len(places) for _, places in parts]) - 1] = [len(stream) for stream, _ in parts]
    described = _taken(streams, begins, form.length).reshape(len(streams), form.length)
    columns = _entries(described, form.columns_at, COLUMNS)
    buffers = _entries(described, form.buffers_at, BUFFERS)
    rows, nulls = columns[:, 0, 0], columns[:, :, 1]
    bodies = begins + form.length
    _check(rows, columns, buffers, ends - bodies)
    source = _Buffers(streams, bodies[:, None] + buffers[:, :, 0], buffers[:, :, 1])
    numbers = [
        source.taken(_FIRST_BUFFERS[column] + 1, rows * _WIDTHS[column]).view(f"<i{_WIDTHS[column]}")
        for column in range(_TOPIC, COLUMNS)
    ]  # fmt: skip
    types = [pa.int32(), *(field.type for field in list(BLOCK_SCHEMA(False))[_TOPIC + 1 :])]
    made = [numbers_column(data, type_) for data, type_ in zip(numbers, types, strict=True)]
    texts = [source.bytes_column(_FIRST_BUFFERS[column], rows, nulls[:, column]) for column in (_KEY, _VALUE)]
    try:
        topic = pa.DictionaryArray.from_arrays(made[0], dictionary)
        batch = pa.RecordBatch.from_arrays([*texts, topic, *made[1:]], schema=BLOCK_SCHEMA(False))
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise ValueError(str(error)) from None
    return batch


def _taken(streams: Sequence[memoryview], begins: Numbers, sizes: Numbers | int) -> Numbers:
    """Return the ``sizes`` bytes from ``begins`` on of each stream, joined."""
    places = zip(streams, begins.tolist(), (begins + sizes).tolist(), strict=True)
    return np.frombuffer(b"".join([stream[begin:end] for stream, begin, end in places]), np.uint8)


def _entries(described: Numbers, begin: int, count: int) -> Numbers:
    """Return a vector's entries of each record batch: two numbers each."""
    found: Numbers = described[:, begin : begin + count * ENTRY_BYTES].copy().view("<i8")
    return found.reshape(len(described), count, 2)


def _check(rows: Numbers, columns: Numbers, buffers: Numbers, body_lengths: Numbers) -> None:
    """Raise ValueError if a column has another number of rows, or if a buffer is too short for its rows or beyond its body."""
    offsets, lengths = buffers[:, :, 0], buffers[:, :, 1]
    nulls = columns[:, :, 1]
    if (columns[:, :, 0] != rows[:, None]).any():
        raise ValueError("its columns have different numbers of rows")
    # a row takes more than a byte; so the products below don't overflow
    if (rows < 0).any() or (rows > body_lengths).any():
        raise ValueError("its number of rows is more than its body can hold")
    if nulls[:, _TOPIC:].any():
        raise ValueError("a column of numbers has a null")
    if (offsets < 0).any() or (lengths < 0).any() or (offsets % 8).any():
        raise ValueError("a buffer has no valid offset or length")
    # compared as a difference, because a sum may overflow
    if (lengths > body_lengths[:, None] - offsets).any():
        raise ValueError("a buffer is beyond its body")
    for column, first in enumerate(_FIRST_BUFFERS):
        slots = rows + 1 if column < _TOPIC else rows
        if (lengths[:, first + 1] < slots * _WIDTHS[column]).any():
            raise ValueError("a buffer is too short for its rows")
        if (lengths[:, first][nulls[:, column] > 0] < (rows[nulls[:, column] > 0] + 7) // 8).any():
            raise ValueError("a bitmap is too short for its rows")


class _Buffers:
    """The buffers of all record batches. ``begins``, ``sizes``: of each buffer in the stream of its record batch."""

    def __init__(self, streams: Sequence[memoryview], begins: Numbers, sizes: Numbers) -> None:
        self._streams = streams
        self._begins = begins
        self._sizes = sizes

    def taken(self, number: int, sizes: Numbers, skipped: Numbers | int = 0) -> Numbers:
        """Return ``sizes`` bytes of the buffer ``number`` of each record batch, after the ``skipped`` ones, joined."""
        return _taken(self._streams, self._begins[:, number] + skipped, sizes)

    def bytes_column(self, first: int, rows: Numbers, nulls: Numbers) -> Column:
        """Return the column of bytes whose first buffer is ``first``. Raises ValueError if its values are beyond its bytes."""
        slots = self.taken(first + 1, (rows + 1) * 4).view("<i4").astype(np.int64)
        lasts = np.cumsum(rows + 1) - 1  # of each record batch, in ``slots``
        firsts = lasts - rows
        lengths = np.diff(slots)
        lengths = np.delete(lengths, lasts[:-1])
        begins, ends = slots[firsts], slots[lasts]
        if (begins < 0).any() or (lengths < 0).any() or (ends > self._sizes[:, first + 2]).any():
            raise ValueError("a value is beyond its column's bytes")
        count = len(lengths)
        joined = np.zeros(count + 1, np.int64)
        np.cumsum(lengths, out=joined[1:])
        if joined[-1] > _INT32_MAX:
            raise ValueError("a column of 2 GiB or more")
        data: Any = pa.allocate_buffer(int(joined[-1]))
        if data.size:
            at = self._begins[:, first + 2]
            texts = zip(self._streams, (at + begins).tolist(), (at + ends).tolist(), strict=True)
            pieces = [stream[begin:end] for stream, begin, end in texts]
            target = np.frombuffer(data, np.uint8)  # memory of Arrow, which keeps it for the next columns
            if data.size < len(pieces) * _LONG_PIECE:
                target[:] = np.frombuffer(b"".join(pieces), np.uint8)
            else:
                np.concatenate([np.frombuffer(piece, np.uint8) for piece in pieces], out=target)
        places: Numbers = joined.astype(np.int32)
        validity = self._validity(first, rows, nulls) if nulls.any() else None
        return pa.Array.from_buffers(pa.binary(), count, [validity, pa.py_buffer(places), data], int(nulls.sum()))

    def _validity(self, first: int, rows: Numbers, nulls: Numbers) -> pa.Buffer:
        bits: list[Numbers] = []
        begins = self._begins[:, first].tolist()
        for stream, begin, own_rows, own_nulls in zip(
            self._streams, begins, rows.tolist(), nulls.tolist(), strict=True
        ):
            if own_nulls == 0:
                bits.append(np.ones(own_rows, np.uint8))
                continue
            packed = np.frombuffer(stream[begin : begin + (own_rows + 7) // 8], np.uint8)
            bits.append(np.unpackbits(packed, count=own_rows, bitorder="little"))
            if own_rows - int(np.count_nonzero(bits[-1])) != own_nulls:
                raise ValueError("a bitmap has another number of nulls than its column")
        joined: Numbers = np.packbits(np.concatenate(bits), bitorder="little")
        return pa.py_buffer(joined)
