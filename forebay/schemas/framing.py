"""Finds the writer's schema of each record.

It is before the body (a zero byte and the schema's number), or in a header (with the number or GUID). For Protobuf, the indexes
that lead to the message in the file follow.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.model.arrow_columns import value_lengths

_PREFIX_LENGTH = 5
_HEADERS = {"key": "__key_schema_id", "value": "__value_schema_id"}
_GUID_LENGTH = 16
#: maximum nesting of a message; a longer list is damaged
_INDEXES_MAX = 64

#: number or GUID of a schema, and the Protobuf message if a header names it
WrittenBy = tuple[int | str, tuple[int, ...] | None]


class Group(NamedTuple):
    """Records of one schema. ``rows``: their indexes; ``starts`` and ``ends``: their bodies in ``Framed.data``."""

    key: int | str
    message: tuple[int, ...] | None
    rows: list[int]
    starts: list[int]
    ends: list[int]


class Framed(NamedTuple):
    """Records grouped by schema. ``causes``: index → why a record names no schema. Null records are in neither."""

    data: memoryview
    groups: list[Group]
    causes: dict[int, str]


def framed(batch: pa.RecordBatch, name: str) -> Framed:
    """Return the bodies of the column ``name`` (key or value), grouped by schema."""
    column: Any = batch.column(name)
    lengths = value_lengths(column)
    _, offsets, buffer = column.buffers()
    starts = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column)].astype(np.int64)
    data = memoryview(buffer if buffer is not None else b"").cast("B")
    ends = starts + np.maximum(lengths, 0)
    named, causes = _from_headers(batch, name)
    by_prefix = lengths >= 0
    by_prefix[[*named, *causes]] = False
    octets = np.frombuffer(data, np.uint8)
    short = by_prefix & (lengths < _PREFIX_LENGTH)
    for row in np.flatnonzero(short).tolist():
        causes[row] = f"its {lengths[row]} bytes have no schema number"
    by_prefix &= ~short
    rows = np.flatnonzero(by_prefix)
    plain = octets[starts[rows]] != 0
    for row in rows[plain].tolist():
        causes[row] = f"it begins with the byte {octets[starts[row]]:#04x}, not with 0x00 and a schema number"
    rows = rows[~plain]
    numbers = octets[starts[rows][:, None] + np.arange(1, _PREFIX_LENGTH)].copy().view(">u4").ravel().astype(np.int64)
    order = np.argsort(numbers, kind="stable")
    found, firsts = np.unique(numbers[order], return_index=True)
    bodies = starts + _PREFIX_LENGTH
    by_number = np.split(rows[order], firsts[1:])
    groups = [_group(int(number), None, own, bodies, ends) for number, own in zip(found, by_number, strict=False)]
    by_header: dict[WrittenBy, list[int]] = {}
    for row, written_by in named.items():
        by_header.setdefault(written_by, []).append(row)
    groups.extend(_group(*by, np.array(own, np.int64), starts, ends) for by, own in by_header.items())
    return Framed(data, groups, causes)


def _group(
    key: int | str,
    message: tuple[int, ...] | None,
    rows: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> Group:
    return Group(key, message, rows.tolist(), starts[rows].tolist(), ends[rows].tolist())


def _from_headers(batch: pa.RecordBatch, name: str) -> tuple[dict[int, WrittenBy], dict[int, str]]:
    named: dict[int, WrittenBy] = {}
    causes: dict[int, str] = {}
    if "headers" not in batch.schema.names:
        return named, causes
    headers: Any = batch.column("headers")
    if headers.null_count == len(headers):
        return named, causes
    keys: Any = pc.list_flatten(headers)
    mine: Any = pc.equal(keys.field("key"), pa.scalar(_HEADERS[name]))
    if not pc.any(mine).as_py():
        return named, causes
    body: Any = batch.column(name)
    for row in np.unique(
        pc.list_parent_indices(headers).to_numpy()[mine.fill_null(False).to_numpy(zero_copy_only=False)]
    ):
        if not body[int(row)].is_valid:
            continue
        value = next(one["value"] for one in headers[int(row)].as_py() if one["key"] == _HEADERS[name])
        try:
            named[int(row)] = _written_by(value or b"")
        except ValueError as error:
            causes[int(row)] = f"its header {_HEADERS[name]} names no schema: {error}"
    return named, causes


def _written_by(header: bytes) -> WrittenBy:
    if header[:1] == b"\x00" and len(header) >= _PREFIX_LENGTH:
        key: int | str = struct.unpack(">I", header[1:_PREFIX_LENGTH])[0]
        place = _PREFIX_LENGTH
    elif header[:1] == b"\x01" and len(header) > _GUID_LENGTH:
        key = _guid(header[1 : 1 + _GUID_LENGTH])
        place = 1 + _GUID_LENGTH
    else:
        raise ValueError(f"{header[:20].hex()} is neither a number nor a GUID")
    if place == len(header):
        return key, None
    message, _ = message_indexes(memoryview(header), place)
    return key, message


def _guid(octets: bytes) -> str:
    text = octets.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def message_indexes(data: memoryview, start: int) -> tuple[tuple[int, ...], int]:
    """Return the path of indexes to a Protobuf message, and the position where the body begins. Raises ValueError.

    The first index counts the messages of the file, each further one the messages nested in the one before.
    """
    count, place = _varint(data, start)
    if count == 0:
        return (0,), place
    if not 0 < count <= _INDEXES_MAX:
        raise ValueError(f"the header has {count} message indexes; allowed are 1 to {_INDEXES_MAX}")
    indexes = []
    for _ in range(count):
        index, place = _varint(data, place)
        indexes.append(index)
    return tuple(indexes), place


def _varint(data: memoryview, start: int) -> tuple[int, int]:
    """Return a zigzag varint of at most 5 bytes, and the position after it."""
    value = 0
    for count in range(5):
        if start + count >= len(data):
            break
        octet = data[start + count]
        value |= (octet & 0x7F) << (7 * count)
        if not octet & 0x80:
            return (value >> 1) ^ -(value & 1), start + count + 1
    raise ValueError("its message indexes are truncated")
