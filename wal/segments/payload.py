"""The payload of a frame that is written: bytes that can be read again, with their length and checksum.

A frame's header, which is written first, contains both. So a payload is read twice. One that is too large to stay in memory
between the two readings is made piece by piece, and made again for the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import google_crc32c
import pyarrow as pa

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: a payload that is made in pieces stays in memory up to this length; making it again takes as long as the first time
KEPT_BYTES_MAX = 32 << 20


@dataclass(frozen=True, slots=True)
class Payload:
    """Iterating over it yields its bytes in pieces, the same bytes each time. ``checksum``: their CRC-32C."""

    length: int
    checksum: int
    _pieces: Callable[[], Iterable[Buffer]]

    @classmethod
    def of(cls, parts: Buffer | Sequence[Buffer]) -> Payload:
        """Return the payload that consists of one bytes-like object, or of a list or tuple of them. They are not copied."""
        found = buffers(parts)
        return cls(sum(map(size_of, found)), checksum(found), lambda: found)

    @classmethod
    def made_by(cls, make: Callable[[], Iterable[Buffer]]) -> Payload:
        """Return the payload that ``make`` returns in pieces; each call must return the same bytes.

        Iterating over it raises RuntimeError before the last piece if a later call returns other bytes: the frame's header names
        the first ones, so no reader could read it.
        """
        kept: list[Buffer] = []
        length = value = 0
        for piece in make():
            length += size_of(piece)
            value = _extend(value, piece)
            if length <= KEPT_BYTES_MAX:
                kept.append(piece)
            else:
                kept.clear()
        return cls(length, value, (lambda: _again(make, length, value)) if length > KEPT_BYTES_MAX else lambda: kept)

    def __iter__(self) -> Iterator[Buffer]:
        return (piece for piece in self._pieces() if size_of(piece))


def _again(make: Callable[[], Iterable[Buffer]], length: int, checksum: int) -> Iterator[Buffer]:
    found = value = 0
    last: Buffer = b""
    for piece in make():
        found += size_of(piece)
        value = _extend(value, piece)
        yield last
        last = piece
    if (found, value) != (length, checksum):
        raise RuntimeError(f"a payload of {length} bytes with checksum {checksum:08x} became {found} with {value:08x}")
    yield last


def buffers(payload: Buffer | Sequence[Buffer]) -> Sequence[Buffer]:
    """Return a payload, one bytes-like object or a list or tuple of them, as a sequence of them."""
    return payload if isinstance(payload, (list, tuple)) else [payload]  # type: ignore[list-item]


def checksum(parts: Iterable[Buffer]) -> int:
    """Return the CRC-32C over the parts, one after the other, without copying them."""
    value = 0
    for part in parts:
        value = _extend(value, part)
    return value


def size_of(part: Buffer) -> int:
    """Return the number of bytes in a bytes-like object."""
    return len(part) if isinstance(part, bytes) else memoryview(part).nbytes


def _extend(value: int, part: Buffer) -> int:
    extended: int = google_crc32c.extend(value, part if isinstance(part, bytes) else pa.py_buffer(part))
    return extended
