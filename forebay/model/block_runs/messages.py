"""Reads the messages of an Arrow IPC stream in place: where each begins and ends, and what a record batch says about its buffers.

Arrow's columnar format (*IPC Streaming Format*) and its flatbuffers specify the bytes. One writer gives all record batches of one
schema descriptions that differ only in numbers at the same places. So a :class:`Form` reads further descriptions in few steps,
after it has compared their other bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3

_CONTINUATION = 0xFFFFFFFF
#: the end of a stream
END = struct.pack("<Ii", _CONTINUATION, 0)
#: of a message: continuation, and length of its description
PREFIX = struct.Struct("<Ii")
#: bytes of one entry in a record batch's vectors: rows and nulls of a column; offset and length of a buffer
ENTRY_BYTES = 16

_offset_at = struct.Struct("<I").unpack_from
_back_at = struct.Struct("<i").unpack_from
_length_at = struct.Struct("<q").unpack_from
#: of a flatbuffer's vtable: its length, that of its table, and where in it the first four fields are
_vtable_at = struct.Struct("<HHHHHH").unpack_from


@dataclass(frozen=True, slots=True)
class IpcMessage:
    """A message within its stream. ``kind``: SCHEMA, DICTIONARY_BATCH or RECORD_BATCH. ``content``: where the table of this kind
    is. ``body``, ``end``: where its body begins and ends. ``body_length_at``: where its length is; 0 for none."""

    kind: int
    content: int
    body: int
    end: int
    body_length_at: int


@dataclass(frozen=True, slots=True)
class IpcBatch:
    """Where a record batch has its number of rows (0: it has none), its vectors and its compression (0: it has none)."""

    rows_at: int
    columns_at: int
    buffers_at: int
    compression_at: int


def message_at(view: memoryview, at: int) -> IpcMessage:
    """Return the message at ``at``. Raises ValueError, ``struct.error`` or IndexError if it does not end within ``view``."""
    continuation, length = PREFIX.unpack_from(view, at)
    begin = at + PREFIX.size
    _, kind_at, content_at, body_length_at = _fields(view, begin + _offset_at(view, begin)[0])
    body = begin + length
    end = body + (_length_at(view, body_length_at)[0] if body_length_at else 0)
    if continuation != _CONTINUATION or not kind_at or not content_at or not begin < body <= end <= len(view):
        raise ValueError("the Arrow stream is of another form")
    return IpcMessage(view[kind_at], content_at + _offset_at(view, content_at)[0], body, end, body_length_at)


def batch_of(view: memoryview, message: IpcMessage) -> IpcBatch:
    """Return the record batch of ``message``. Raises ``struct.error`` or IndexError if it is truncated."""
    return IpcBatch(*_fields(view, message.content))


def rows_of(view: memoryview, batch: IpcBatch) -> int:
    """Return the number of rows of ``batch``."""
    return int(_length_at(view, batch.rows_at)[0]) if batch.rows_at else 0


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


class Form:
    """What the descriptions of record batches have in common: all bytes but the numbers.

    ``length``: of each, with its prefix. ``columns_at``, ``buffers_at``: where in it the entries of the two vectors begin.
    """

    def __init__(self, view: memoryview, at: int, *, columns: int, buffers: int) -> None:
        """Take the form of the record batch at ``at``, which has ``columns`` columns and ``buffers`` buffers.

        Raises ValueError, ``struct.error`` or IndexError if it has others, is compressed, or has its numbers elsewhere.
        """
        message = message_at(view, at)
        batch = batch_of(view, message)
        if message.kind != RECORD_BATCH or not batch.rows_at or batch.compression_at or not message.body_length_at:
            raise ValueError("not a record batch, or a compressed one")
        self.length = message.body - at
        self.columns_at = _vector(view, batch.columns_at, columns) - at
        self.buffers_at = _vector(view, batch.buffers_at, buffers) - at
        rows_at, body_length_at = batch.rows_at - at, message.body_length_at - at
        numbers = sorted([
            (rows_at, 8), (body_length_at, 8),
            (self.columns_at, columns * ENTRY_BYTES), (self.buffers_at, buffers * ENTRY_BYTES),
        ])  # fmt: skip
        constants, reached = "<", 0
        for begin, size in numbers:
            if begin < reached:
                raise ValueError("two numbers of the record batch overlap")
            constants += f"{begin - reached}s{size}x"
            reached = begin + size
        if reached > self.length:
            raise ValueError("a number of the record batch is outside its header")
        constants += f"{self.length - reached}s"
        self._constants = struct.Struct(constants).unpack_from
        self._expected: tuple[Any, ...] = self._constants(view, at)
        first, second = sorted((rows_at, body_length_at))
        self._two_numbers = struct.Struct(f"<{first}xq{second - first - 8}xq").unpack_from
        self._rows_first = rows_at < body_length_at

    def same(self, other: Form) -> bool:
        """Return whether a description of one form is one of the other."""
        return (self.length, self.columns_at, self.buffers_at, self._expected) == (
            other.length, other.columns_at, other.buffers_at, other._expected,
        )  # fmt: skip

    def batches(self, view: memoryview, begin: int) -> tuple[Sequence[int], int, int] | None:
        """Return where each record batch from ``begin`` to the stream's end begins, where the last one ends, and their rows;
        None if a message has another form, or the stream does not end.
        """
        constants, expected, two_numbers = self._constants, self._expected, self._two_numbers
        length, last = self.length, len(view) - self.length
        places: list[int] = []
        at, rows = begin, 0
        while at <= last and constants(view, at) == expected:
            own_rows, body_length = two_numbers(view, at) if self._rows_first else two_numbers(view, at)[::-1]
            if body_length < 0 or own_rows <= 0:
                return None
            places.append(at)
            at += length + body_length
            rows += own_rows
        return (places, at, rows) if view[at : at + len(END)] == END else None


def _vector(view: memoryview, field_at: int, count: int) -> int:
    """Return where the ``count`` entries of the vector begin that the field at ``field_at`` refers to."""
    vector: int = field_at + _offset_at(view, field_at)[0]
    if not field_at or _offset_at(view, vector)[0] != count:
        raise ValueError(f"no vector of {count} entries")
    return vector + 4
