"""Scans of whole and damaged segments."""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.model.errors import CorruptionError, NewerVersionError
from forebay.model.values import Handle
from tests.support.state.segments import contents, memory, segment, writer
from wal.segments import scan as scans
from wal.segments.encoding import encode_frame
from wal.segments.frame import Frame, FrameKind
from wal.segments.scan import Damage, Newer, Scanned, TornTail, read_frame, scan_segment, segment_header
from wal.storage import MemoryStorage

BLOCKS = [(b"meta-%d" % n, bytes([n]) * size) for n, size in enumerate((10, 0, 64, 300, 1, 1000))]


class Made(NamedTuple):
    storage: MemoryStorage
    path: str
    data: bytes
    frames: list[Frame]


def made(blocks: list[tuple[bytes, bytes]] = BLOCKS) -> Made:
    storage = memory()
    path = segment(storage, blocks)
    frames = [item for item in scan_segment(storage, path) if isinstance(item, Frame)]
    return Made(storage, path, storage.read(path), frames)


MADE = made()


def scan_of(data: bytes, **options: bool) -> list[Scanned]:
    MADE.storage.replace(MADE.path, data)
    return list(scan_segment(MADE.storage, MADE.path, **options))


def without_payloads(found: list[Scanned]) -> list[tuple[int, bytes]]:
    return [(item.offset, item.metadata) for item in found if isinstance(item, Frame)]


def test_a_segment_gives_its_header_and_its_frames_in_order() -> None:
    found = scan_of(MADE.data)
    assert all(isinstance(item, Frame) for item in found)
    assert contents(found) == BLOCKS
    header = segment_header(found[0])  # type: ignore[arg-type]
    assert header is not None
    assert (header.path, header.stream, header.writer, header.epoch, header.sequence) == (MADE.path, "s", "r", 7, 1)
    assert (header.timeline, header.uid, header.created_ms) == (1, 0xA000000000000001, 1_000_000)
    assert [item.header.index for item in found if isinstance(item, Frame)] == list(range(len(BLOCKS) + 1))


def test_scan_of_empty_file_yields_nothing() -> None:
    assert scan_of(b"") == []


def test_scan_of_missing_file_names_it() -> None:
    with pytest.raises(FileNotFoundError):
        list(scan_segment(MADE.storage, "s/none"))
    with pytest.raises(FileNotFoundError):
        read_frame(MADE.storage, Handle("s/none", 0, 64, 0))


@settings(derandomize=True, max_examples=400, deadline=None)
@given(at=st.integers(0, len(MADE.data) - 1), flip=st.integers(1, 255), payloads=st.booleans())
def test_flipped_byte_is_never_served_and_damages_only_its_frame(at: int, flip: int, payloads: bool) -> None:
    """INV-5: every frame without the flipped byte is found, and the frame with it is not."""
    broken = bytearray(MADE.data)
    broken[at] ^= flip
    found = scan_of(bytes(broken), payloads=payloads)
    expected = []
    hit = False
    for frame in MADE.frames:
        within = at - frame.offset
        header = frame.header
        in_metadata = 0 <= within < 64 + header.metadata_length
        in_payload = header.payload_start <= within < header.length
        if in_metadata or (in_payload and payloads):
            hit = True
        else:
            expected.append((frame.offset, frame.metadata))
    assert without_payloads(found) == expected
    assert sum(isinstance(item, Damage) for item in found) == hit
    assert not any(isinstance(item, TornTail | Newer) for item in found)
    if payloads:
        assert set(contents(found)) <= set(BLOCKS)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(cut=st.integers(0, len(MADE.data)), zeros=st.integers(0, 700))
def test_a_file_cut_anywhere_keeps_every_frame_before_the_cut_and_ends_torn(cut: int, zeros: int) -> None:
    found = scan_of(MADE.data[:cut])
    whole = [frame for frame in MADE.frames if frame.offset + frame.length <= cut]
    assert without_payloads(found) == [(frame.offset, frame.metadata) for frame in whole]
    assert not any(isinstance(item, Damage) for item in found)
    end = max(((frame.offset + frame.length + 63) // 64 * 64 for frame in whole), default=0)
    torn = [item for item in found if isinstance(item, TornTail)]
    assert torn == ([TornTail(end, cut - end)] if cut > end else [])
    if cut == end and zeros:  # space that was reserved and not used
        found = scan_of(MADE.data[:cut] + bytes(zeros))
        assert without_payloads(found) == [(frame.offset, frame.metadata) for frame in whole]
        assert found[-1] == TornTail(end, zeros)


def _bytes(frame: Frame, data: bytes) -> bytes:
    """The bytes that the frame's checksums cover: all except padding."""
    header, whole = frame.header, data[frame.offset : frame.offset + frame.length]
    return whole[: 64 + header.metadata_length] + whole[header.payload_start :]


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    start=st.integers(0, len(MADE.data) - 1),
    length=st.integers(1, 900),
    filling=st.sampled_from([b"\0", b"\xff", b"\x89FBY\r\n\x1a\n"]),
)
def test_overwritten_bytes_damage_only_the_frames_they_touch(start: int, length: int, filling: bytes) -> None:
    until = min(len(MADE.data), start + length)
    broken = MADE.data[:start] + (filling * length)[: until - start] + MADE.data[until:]
    found = scan_of(broken)
    untouched = [frame for frame in MADE.frames if _bytes(frame, broken) == _bytes(frame, MADE.data)]
    assert without_payloads(found) == [(frame.offset, frame.metadata) for frame in untouched]
    places = [(item.offset, item.until) for item in found if isinstance(item, Damage)]
    assert places == sorted(places)


def test_damaged_payload_still_yields_its_metadata() -> None:
    frame = MADE.frames[4]
    broken = bytearray(MADE.data)
    broken[frame.offset + frame.header.payload_start] ^= 1
    damage = [item for item in scan_of(bytes(broken)) if isinstance(item, Damage)]
    assert damage == [
        Damage(frame.offset, MADE.frames[5].offset, "the payload's checksum does not match", frame.metadata)
    ]


def test_frames_after_damaged_segment_header_are_found() -> None:
    for broken in (b"\xff" * 64 + MADE.data[64:], bytes(192) + MADE.data[192:], MADE.data[:70] + b"?" + MADE.data[71:]):
        found = scan_of(broken)
        assert isinstance(found[0], Damage)
        assert found[0].until == MADE.frames[1].offset
        assert contents(found) == BLOCKS


def test_a_last_frame_with_its_full_length_is_damaged_and_not_torn() -> None:
    """An accepted frame at the end must not be dropped as a write that was cut off."""
    last = MADE.frames[-1]
    for at in (last.offset, last.offset + 20, last.offset + last.header.payload_start + 5):
        broken = bytearray(MADE.data)
        broken[at] ^= 0x10
        found = scan_of(bytes(broken))
        assert isinstance(found[-1], Damage)
        assert (found[-1].offset, found[-1].until) == (last.offset, len(MADE.data))


def test_zeros_before_a_valid_frame_are_damage() -> None:
    first, second = MADE.frames[2].offset, MADE.frames[4].offset
    found = scan_of(MADE.data[:first] + bytes(second - first) + MADE.data[second:])
    assert [item for item in found if isinstance(item, Damage)] == [Damage(first, second, "zeros")]


def test_segment_under_another_name_is_damage_and_yields_no_frames() -> None:
    """Two files that changed places would each serve the other's records."""
    MADE.storage.replace("s/blocks/r/0000000000000007/00000002.seg", MADE.data)
    found = list(scan_segment(MADE.storage, "s/blocks/r/0000000000000007/00000002.seg"))
    assert [(type(item), item.offset) for item in found] == [(Damage, 0)]
    assert "00000001.seg" in found[0].reason  # type: ignore[union-attr]


def _newer(data: bytes, frame: Frame) -> bytes:
    header = bytearray(data[frame.offset : frame.offset + 60])
    struct.pack_into("<H", header, 8, 2)
    header += struct.pack("<I", google_crc32c.value(bytes(header)))
    return data[: frame.offset] + bytes(header) + data[frame.offset + 64 :]


def test_frame_of_newer_release_is_stepped_over() -> None:
    frame = MADE.frames[3]
    data = _newer(MADE.data, frame)
    found = scan_of(data)
    newer = [item for item in found if isinstance(item, Newer)]
    assert newer == [Newer(frame.offset, MADE.frames[4].offset, version=2, newest=1, feature="format 2")]
    assert contents(found) == [block for block in BLOCKS if block[0] != frame.metadata]
    with pytest.raises(NewerVersionError):
        read_frame(MADE.storage, Handle(MADE.path, frame.offset, frame.length, frame.header.payload_checksum))


def test_frames_after_newer_segment_header_are_found() -> None:
    found = scan_of(_newer(MADE.data, MADE.frames[0]))
    assert isinstance(found[0], Newer)
    assert contents(found) == BLOCKS


def _embedding(uid: int, lines: int) -> tuple[bytes, bytes]:
    """A payload of valid frames that name the places where they will be, and the metadata of the frame around them."""
    start = 192  # the second frame of the segment begins here, its payload 128 bytes later
    payload = b""
    for line in range(lines):
        inner = encode_frame(
            FrameKind.BLOCK, uid=uid, offset=start + 128 + len(payload), index=line, metadata=b"forged", payload=b"?"
        )
        payload += b"".join(inner)
    return b"outer", payload


@pytest.mark.parametrize("uid", [0xA000000000000001, 0xBBBB])
@pytest.mark.parametrize("header_too", [False, True])
def test_a_frame_inside_a_record_is_never_taken_for_a_frame(uid: int, header_too: bool) -> None:
    """A record's value may hold a segment of this very log, which a user read and produced to Kafka."""
    other = [(b"first", b"1"), (b"second", b"2"), (b"third", b"3")]
    storage = memory()
    inner = storage.read(segment(storage, other))
    blocks = [_embedding(uid, 2) if uid != 0xA000000000000001 else (b"outer", inner * 3), *other]
    here = made(blocks)
    outer = here.frames[1]
    assert outer.offset == 192
    for at in (outer.offset + 3, outer.offset + 66, outer.offset + 140):
        broken = bytearray(here.data)
        broken[at] ^= 1
        if header_too:
            broken[5] ^= 1
        here.storage.replace(here.path, bytes(broken))
        found = list(scan_segment(here.storage, here.path))
        assert contents(found) == other


def test_headers_and_metadata_can_be_read_without_reading_payloads() -> None:
    storage = memory()
    path = segment(storage, [(b"m%d" % n, bytes(3_000_000)) for n in range(3)])
    read = 0

    class Counting(MemoryStorage):
        def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
            nonlocal read
            data = super().read(path, offset, length)
            read += len(data)
            return data

    counting = Counting(storage.url.removeprefix("memory://"))
    found = list(scan_segment(counting, path, payloads=False))
    assert contents(found) == [(b"m%d" % n, b"") for n in range(3)]
    assert [item.header.payload_length for item in found[1:] if isinstance(item, Frame)] == [3_000_000] * 3
    assert read < 300_000


def test_a_large_segment_is_read_in_bounded_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: never the whole file in one read; a magic across two pieces is found."""
    monkeypatch.setattr(scans, "_CHUNK_BYTES", 256)
    blocks = [(b"m%d" % n, bytes([n]) * 150) for n in range(40)]
    here = made(blocks)
    longest = 0
    real = here.storage.read

    def read(path: str, offset: int = 0, length: int | None = None) -> bytes:
        nonlocal longest
        assert length is not None
        longest = max(longest, length)
        return real(path, offset, length)

    monkeypatch.setattr(here.storage, "read", read)
    assert contents(list(scan_segment(here.storage, here.path))) == blocks
    broken = bytearray(here.data)
    for frame in here.frames[3:20]:
        broken[frame.offset] ^= 1
    here.storage.replace(here.path, bytes(broken))
    assert contents(list(scan_segment(here.storage, here.path))) == blocks[:2] + blocks[19:]
    assert longest <= 64 + 64 + 150


def test_unfinished_write_shows_as_torn_tail() -> None:
    storage = memory()
    log = writer(storage)
    log.append(FrameKind.BLOCK, b"a", b"1")
    path = log.current_path
    assert path is not None
    whole = storage.read(path)
    storage.replace(path, whole[:-70])
    assert isinstance(list(scan_segment(storage, path))[-1], TornTail)


# ---- reading by handle -----------------------------------------------------------------------------------------------


def _handle(frame: Frame, **changes: object) -> Handle:
    values = {
        "path": MADE.path,
        "offset": frame.offset,
        "length": frame.length,
        "checksum": frame.header.payload_checksum,
        **changes,
    }
    return Handle(**values)  # type: ignore[arg-type]


def test_a_handle_reads_its_frame_by_one_ranged_read(monkeypatch: pytest.MonkeyPatch) -> None:
    MADE.storage.replace(MADE.path, MADE.data)
    calls = []
    real = MADE.storage.read
    monkeypatch.setattr(MADE.storage, "read", lambda *a: calls.append(a) or real(*a))
    for frame, block in zip(MADE.frames[1:], BLOCKS, strict=True):
        got = read_frame(MADE.storage, _handle(frame))
        assert (got.metadata, got.payload.to_pybytes()) == block
    assert len(calls) == len(BLOCKS)


def test_handle_reads_only_its_own_frame() -> None:
    MADE.storage.replace(MADE.path, MADE.data)
    frame = MADE.frames[4]
    for changes in (
        {"checksum": frame.header.payload_checksum ^ 1},
        {"offset": frame.offset + 64},
        {"length": frame.length - 1},
        {"length": frame.length + 1},
        {"length": 0},
        {"length": 1 << 40},
        {"offset": 1 << 20},
    ):
        with pytest.raises(CorruptionError):
            read_frame(MADE.storage, _handle(frame, **changes))


@settings(derandomize=True, max_examples=200, deadline=None)
@given(at=st.integers(0, MADE.frames[4].length - 1), flip=st.integers(1, 255))
def test_no_damaged_byte_is_served_by_handle(at: int, flip: int) -> None:
    frame = MADE.frames[4]
    broken = bytearray(MADE.data)
    broken[frame.offset + at] ^= flip
    MADE.storage.replace(MADE.path, bytes(broken))
    try:
        got = read_frame(MADE.storage, _handle(frame))
    except CorruptionError:
        return
    assert (got.metadata, got.payload.to_pybytes()) == (frame.metadata, frame.payload.to_pybytes())
    assert 64 + frame.header.metadata_length <= at < frame.header.payload_start  # only padding can go unnoticed
