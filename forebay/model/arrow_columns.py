"""Arrow columns made from bytes and numbers, and read as numbers, without a copy where that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

#: a ``pyarrow.Array``, and a ``numpy.ndarray`` of integers; their stubs lack some methods and buffers
Column: TypeAlias = Any

Numbers: TypeAlias = Any


def bytes_column(values: Sequence[bytes | None], type_: Any = None) -> Column:
    """Return ``values`` as an array of binary, or of ``type_`` with the same layout. Raises ValueError for 2 GiB and more.

    Like :func:`numbers_column`, it does not call ``pa.array``: that imports pandas to test the type of its argument, which costs
    most of a second and 50 MB in a process that does not use pandas otherwise.
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
        raise ValueError(f"a column of {ends[-1]} bytes: at most 2 GiB are possible")
    slots: Numbers = ends.astype(np.int32)
    buffers = [validity, pa.py_buffer(slots), pa.py_buffer(joined)]
    return pa.Array.from_buffers(pa.binary() if type_ is None else type_, count, buffers)


def numbers_column(numbers: Numbers, type_: Any) -> Column:
    """Return a contiguous array of integers as an array of ``type_``, which has the same width; no copy."""
    return pa.Array.from_buffers(type_, len(numbers), [None, pa.py_buffer(numbers)])


def one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of ``batches``, at least one, as one batch. Raises ValueError if a column has 2 GiB or more."""
    if len(batches) == 1:
        return batches[0]
    # pyarrow 18, which Forebay supports, has no concat_batches
    made = pa.Table.from_batches(batches).combine_chunks().to_batches()
    if not made:
        return batches[0]  # as the others, without rows
    if len(made) != 1:
        raise ValueError("a column of 2 GiB or more")
    return made[0]


def value_lengths(column: Column) -> Numbers:
    """Return the length of each value of a binary column in bytes, as int32; -1 for null."""
    return slot_lengths(column, value_slots(column))


def value_slots(column: Column) -> Numbers:
    """Return where each value of ``column`` begins in its bytes, and where the last one ends."""
    return _buffer_view(column, np.int32)[column.offset : column.offset + len(column) + 1]


def slot_lengths(column: Column, offsets: Numbers) -> Numbers:
    lengths = np.diff(offsets)
    if column.null_count:
        bits = np.frombuffer(column.buffers()[0], np.uint8)
        valid = np.unpackbits(bits, count=column.offset + len(column), bitorder="little")[column.offset :]
        lengths[valid == 0] = -1
    return lengths


def milliseconds(column: Column) -> Column:
    if column.type == pa.int64():
        return column
    if column.type.unit == "ms":
        return column.view(pa.int64())
    return column.cast(pa.timestamp("ms", column.type.tz), safe=False).view(pa.int64())


def number_view(column: Column, dtype: Any) -> Numbers:
    """Return a view of an integer column's values. Raises ValueError if there is a null."""
    if column.null_count:
        raise ValueError("a column of numbers has a null")
    return _buffer_view(column, dtype)[column.offset : column.offset + len(column)]


def _buffer_view(column: Column, dtype: Any) -> Numbers:
    """Return the second buffer of a column (values of numbers, offsets of bytes) as numbers, without a copy."""
    buffer: Any = column.buffers()[1]
    wanted = np.dtype(dtype).newbyteorder("<")
    return np.frombuffer(buffer, wanted, buffer.size // wanted.itemsize)
