"""The shard of each row: a hash of its key columns. The numbers are part of the format (docs/FORMAT.md), in every release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from wal.keyed.schema import is_variable

Hashes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"

_U64 = np.uint64
_PRIME = 0x100000001B3
_NULL = _U64(0x9E3779B97F4A7C15)
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))  # splitmix64's finalizer


def shard_numbers(table: pa.Table, key: Sequence[str], shards: int) -> pa.Array[Any]:
    """Return the shard of each row of ``table``, as int32 in ``[0, shards)``."""
    hashed = np.zeros(table.num_rows, dtype=_U64)
    with np.errstate(over="ignore"):
        for name in key:
            hashed = _mixed(hashed * _U64(31) + _column_hash(table.column(name)))
    numbers: pa.Array[Any] = pa.array((hashed % _U64(shards)).astype(np.int32))
    return numbers


def _column_hash(column: pa.ChunkedArray[Any]) -> Hashes:
    parts = [_array_hash(chunk) for chunk in column.chunks]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=_U64)


def _array_hash(array: pa.Array[Any]) -> Hashes:
    hashed = _bytes_hash(array) if is_variable(array.type) else _mixed(_integers(array))
    if array.null_count:
        hashed = np.where(np.asarray(pc.is_null(array)), _NULL, hashed)
    return hashed


def _integers(array: pa.Array[Any]) -> Hashes:
    """Return fixed-width values as 64-bit integers; null as 0."""
    if types.is_date32(array.type):
        array = array.cast(pa.int32())
    elif not types.is_integer(array.type) and not types.is_boolean(array.type):
        array = array.cast(pa.int64())
    filled = array.fill_null(False if types.is_boolean(array.type) else 0)
    numbers: Any = filled.to_numpy(zero_copy_only=False)
    hashes: Hashes = numbers.astype(np.int64).view(_U64)
    return hashes


def _bytes_hash(array: pa.Array[Any]) -> Hashes:
    """Return a polynomial hash of each value's bytes and length, computed over all bytes of the array together."""
    large = types.is_large_string(array.type) or types.is_large_binary(array.type)
    if not len(array):
        return np.zeros(0, dtype=_U64)
    buffers: list[Any] = array.buffers()
    offsets = np.frombuffer(buffers[1], dtype=np.int64 if large else np.int32)
    offsets = offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    hashed = np.zeros(len(array), dtype=_U64)
    if last > first:
        data = np.frombuffer(buffers[2], dtype=np.uint8)[first:last]
        starts = offsets[:-1] - first
        powers = np.cumprod(np.full(int(lengths.max()) + 1, _PRIME, dtype=_U64))
        places = np.arange(last - first) - np.repeat(starts, lengths)
        terms = (data.astype(_U64) + _U64(1)) * powers[places]
        filled = np.flatnonzero(lengths)
        hashed[filled] = np.add.reduceat(terms, starts[filled])
    return _mixed(hashed + lengths.astype(_U64))


def _mixed(values: Hashes) -> Hashes:
    for shift, factor in _MIX:
        values = (values ^ (values >> _U64(shift))) * _U64(factor)
    return values
