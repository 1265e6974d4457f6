"""Random changes of bytes: as a faulty disk makes them, and as an attacker makes them, with matching checksums."""

from __future__ import annotations

import random
import struct

import google_crc32c

from wal.segments.frame import ALIGNMENT, HEADER_LENGTH, MAGIC, aligned

_NUMBERS = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    1 << 33,
    1 << 40,
    (1 << 63) - 1,
    (1 << 64) - 1,
)


#: parts of texts at which parsers fail: nesting, numbers, escapes and characters beyond their bounds
_FRAGMENTS = (
    b"[" * 20_000,
    b'{"a":' * 20_000,
    b"(" * 3_000,
    b"9" * 5_000,
    b"-" + b"9" * 400,
    b"-1",
    b"-" + b"f" * 20,
    b"1e999",
    b"NaN",
    b"-0",
    b"null",
    b"\x00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b'"\\ud800"',
    b"\\u0000",
    b"\r\n\r\n",
    b"\n",
    b"=",
    b'"',
    b"../" * 40,
    "\u0130\u2028\U0010ffff".encode(),
    b"a" * 70_000,
)


def mutated(data: bytes, draw: random.Random) -> bytes:
    """``data`` with one to four changes."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        data = _changed(data, draw)
    return data


def _changed(data: bytes, draw: random.Random) -> bytes:
    if not data:
        return draw.randbytes(draw.randrange(1, 80))
    at = draw.randrange(len(data))
    until = min(len(data), at + draw.choice((1, 4, 8, 64, 300)))
    kind = draw.randrange(10)
    if kind <= 1:
        return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
    if kind == 2:
        return data[:at] + draw.randbytes(1) + data[at + 1 :]
    if kind <= 4:  # mostly a wrong length
        number = draw.choice(_NUMBERS)
        width = draw.choice((1, 2, 4, 8))
        order = draw.choice(("little", "big"))
        written = (number % (1 << 8 * width)).to_bytes(width, order)  # type: ignore[arg-type]
        return data[:at] + written + data[at + width :]
    if kind == 5:
        return data[:at]
    if kind == 6:
        return data[:at] + data[until:]
    if kind == 7:
        return data[:until] + data[at:until] * draw.choice((1, 3)) + data[until:]
    if kind == 8:
        return data[:at] + draw.choice(_FRAGMENTS) + data[draw.choice((at, until)) :]
    other = draw.randrange(len(data))
    return data[:at] + data[other : other + until - at] + data[until:]


def with_checksums(data: bytes) -> bytes:
    """Every frame that begins at a multiple of 64 with matching checksums, if its lengths end within ``data``."""
    whole = bytearray(data)
    at = 0
    while at + HEADER_LENGTH <= len(whole):
        step = ALIGNMENT
        if whole[at : at + 8] == MAGIC:
            metadata, payload = struct.unpack_from("<IQ", whole, at + 36)
            begin = at + HEADER_LENGTH
            payload_at = begin + aligned(metadata)
            if payload_at + payload <= len(whole):
                struct.pack_into("<I", whole, at + 48, google_crc32c.value(bytes(whole[begin : begin + metadata])))
                inside = bytes(whole[payload_at : payload_at + payload])
                struct.pack_into("<I", whole, at + 52, google_crc32c.value(inside))
                step = aligned(payload_at + payload - at)
            struct.pack_into("<I", whole, at + 60, google_crc32c.value(bytes(whole[at : at + 60])))
        at += step
    return bytes(whole)
