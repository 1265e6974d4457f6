"""Bytes of one frame."""

from __future__ import annotations

import struct

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.model.errors import CorruptionError, NewerVersionError
from wal.segments import frame as frames
from wal.segments.encoding import check_lengths, encode_frame
from wal.segments.frame import (
    FORMAT_VERSION,
    HEADER_LENGTH,
    MAX_METADATA,
    MAX_PAYLOAD,
    FrameKind,
    aligned,
    decode_frame,
    decode_header,
    parse_header,
)

UID = 0xFEDCBA9876543210


def encoded(metadata: bytes = b"meta", payload: object = b"payload", offset: int = 128) -> bytes:
    parts = encode_frame(FrameKind.BLOCK, uid=UID, offset=offset, index=3, metadata=metadata, payload=payload)  # type: ignore[arg-type]
    return b"".join(parts)


def patched(data: bytes, at: int, value: bytes) -> bytes:
    """``data`` with ``value`` at ``at`` and a matching header checksum."""
    header = bytearray(data[:60])
    header[at : at + len(value)] = value
    return bytes(header) + struct.pack("<I", google_crc32c.value(bytes(header))) + data[64:]


@settings(derandomize=True, max_examples=60)
@given(metadata=st.binary(max_size=200), parts=st.lists(st.binary(max_size=200), max_size=4), line=st.integers(0, 9))
def test_a_frame_gives_back_what_was_put_in(metadata: bytes, parts: list[bytes], line: int) -> None:
    data = encoded(metadata, parts, line * 64)
    frame = decode_frame(data, "p", line * 64, uid=UID, expected_offset=line * 64)
    assert len(data) % 64 == 0
    assert frame.metadata == metadata
    assert frame.payload == b"".join(parts)
    assert (frame.header.kind, frame.header.index, frame.header.uid) == (FrameKind.BLOCK, 3, UID)
    assert frame.length <= len(data) < frame.length + 64


def test_the_payload_is_neither_copied_to_write_nor_to_read() -> None:
    payload = pa.py_buffer(bytes(1000))
    written = encode_frame(FrameKind.BLOCK, uid=1, offset=0, index=0, metadata=b"m", payload=payload)
    assert any(part is payload for part in written)
    whole = pa.py_buffer(b"".join(written))
    frame = decode_frame(whole, "p", 0)
    assert frame.payload.address - whole.address == frame.header.payload_start
    assert frame.header.payload_start % 64 == 0


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, pa.py_buffer])
def test_any_buffer_can_be_decoded(make: type) -> None:
    assert decode_frame(make(encoded()), "p", 128).payload == b"payload"


def test_every_flipped_bit_of_header_metadata_and_payload_is_noticed() -> None:
    data = encoded(b"m" * 5, b"p" * 7)
    padding = {*range(64 + 5, 128), *range(128 + 7, len(data))}
    for at in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            if at in padding:
                assert decode_frame(broken, "p", 128).payload == b"p" * 7
            else:
                with pytest.raises(CorruptionError):
                    decode_frame(broken, "p", 128)


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 70, 127, 128, 134])
def test_a_frame_that_is_cut_off_is_corrupt(cut: int) -> None:
    with pytest.raises(CorruptionError) as caught:
        decode_frame(encoded()[:cut], "some/path", 128)
    assert (caught.value.path, caught.value.offset) == ("some/path", 128)


def test_padding_may_be_missing_at_the_end() -> None:
    data = encoded()
    frame = decode_frame(data[: 128 + 7], "p", 128)
    assert frame.payload == b"payload"


def test_frame_is_valid_only_in_its_segment_and_at_its_offset() -> None:
    data = encoded()
    decode_frame(data, "p", 128, uid=UID, expected_offset=128)
    with pytest.raises(CorruptionError, match="belongs to segment"):
        decode_frame(data, "p", 128, uid=UID + 1)
    with pytest.raises(CorruptionError, match="belongs at byte 128"):
        decode_frame(data, "p", 192, expected_offset=192)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (8, struct.pack("<H", FORMAT_VERSION + 1), "format 2"),
        (10, b"\x63", "frame kind 99"),
        (11, b"\x01", "payload codec 1"),
        (12, struct.pack("<I", 2), "flags 0x0002"),
        (12, struct.pack("<I", 0x8000), "flags 0x8000"),
    ],
)
def test_frame_of_newer_release_is_not_called_corrupt(at: int, value: bytes, message: str) -> None:
    data = patched(encoded(), at, value)
    with pytest.raises(NewerVersionError, match=message):
        decode_frame(data, "p", 128)
    header = parse_header(data)
    assert not isinstance(header, str)
    assert header.unsupported == message


def test_a_damaged_version_is_corrupt_and_not_newer() -> None:
    data = bytearray(encoded())
    data[8] = 2
    with pytest.raises(CorruptionError):
        decode_header(data, "p", 128)


def test_flags_that_are_not_critical_are_ignored() -> None:
    data = patched(encoded(), 12, struct.pack("<I", 0xFFFF0000))
    assert decode_frame(data, "p", 128).payload == b"payload"


def test_lengths_are_bounded_before_anything_is_allocated() -> None:
    """INV-6."""
    too_long = patched(encoded(), 40, struct.pack("<Q", MAX_PAYLOAD + 1))
    with pytest.raises(CorruptionError, match="above a frame's maximum"):
        decode_frame(too_long, "p", 128)
    too_long = patched(encoded(), 36, struct.pack("<I", MAX_METADATA + 1))
    with pytest.raises(CorruptionError, match="above a frame's maximum"):
        decode_header(too_long, "p", 128)
    with pytest.raises(ValueError, match="metadata"):
        check_lengths(MAX_METADATA + 1, 0)
    with pytest.raises(ValueError, match="payload"):
        check_lengths(0, MAX_PAYLOAD + 1)
    with pytest.raises(ValueError, match="metadata"):
        encoded(bytes(MAX_METADATA + 1))
    with pytest.raises(ValueError, match="multiple of 64"):
        encoded(offset=100)


def test_damage_by_text_mode_shows_in_the_magic() -> None:
    data = encoded()
    for broken in (data.replace(b"\r\n", b"\n"), data.replace(b"\n", b"\r\n"), bytes(b & 0x7F for b in data)):
        with pytest.raises(CorruptionError, match="no frame header"):
            decode_frame(broken, "p", 128)


def test_the_layout_of_the_header_is_what_the_format_says() -> None:
    """docs/FORMAT.md: the layout never changes, in any version."""
    data = encoded(b"meta", b"payload")
    assert data[:8] == bytes([0x89, 0x46, 0x42, 0x59, 0x0D, 0x0A, 0x1A, 0x0A]) == frames.MAGIC
    assert struct.unpack_from("<HBBI", data, 8) == (1, 2, 0, 0)
    assert struct.unpack_from("<QQIIQ", data, 16) == (UID, 128, 3, 4, 7)
    assert struct.unpack_from("<II", data, 48) == (google_crc32c.value(b"meta"), google_crc32c.value(b"payload"))
    assert struct.unpack_from("<II", data, 56) == (0, google_crc32c.value(data[:60]))
    assert data[64:68] == b"meta"
    assert data[68:128] == bytes(60)
    assert data[128:135] == b"payload"
    assert data[135:] == bytes(57)
    assert (HEADER_LENGTH, aligned(0), aligned(1), aligned(64)) == (64, 0, 64, 64)
