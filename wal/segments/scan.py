"""Scans a segment: yields its frames, and every range of bytes that contains no whole frame.

A scan reads in bounded pieces and never stops at damage. It finds the next frame by magic, header checksum, segment number and
the frame's own offset. It changes nothing and decides nothing; ``wal.decisions.recovery`` decides what to do with the findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import google_crc32c
import msgspec
import pyarrow as pa

from forebay.model.errors import CorruptionError
from forebay.model.values import Handle
from forebay.model.wire import UNDECODABLE
from wal.segments.frame import (
    ALIGNMENT,
    FORMAT_VERSION,
    HEADER_LENGTH,
    MAGIC,
    MAX_FRAME,
    Frame,
    FrameHeader,
    FrameKind,
    SegmentHeader,
    aligned,
    decode_frame,
    decode_metadata,
    misplaced,
    parse_header,
)
from wal.storage import Storage

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CHUNK_BYTES = 4 << 20
_HEADERS_CHUNK_BYTES = 64 << 10
_header_decoder = msgspec.msgpack.Decoder(SegmentHeader)
_EMPTY = pa.py_buffer(b"")


class Readable(Protocol):
    """The methods of a storage that a scan needs."""

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes: ...

    def size(self, path: str) -> int: ...


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes ``[offset, until)`` are not what was written.

    ``metadata``: the metadata of the frame there, if its header and metadata are intact and only the payload is damaged. It
    names the block, so that its records can be read from elsewhere.
    """

    offset: int
    until: int
    reason: str
    metadata: bytes | None = None


@dataclass(frozen=True, slots=True)
class TornTail:
    """The last ``length`` bytes, from ``offset`` on, are zeros or the beginning of a frame: a write that was cut off.

    Only the journal shows whether they may be dropped: an accepted tail is never torn (``wal.decisions.recovery``).
    """

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Newer:
    """The frame at ``[offset, until)`` is intact, but only a newer release can read it, because it uses ``feature``.

    ``newest``: the newest format that this release reads.
    """

    offset: int
    until: int
    version: int
    newest: int
    feature: str


Scanned = Frame | Damage | TornTail | Newer


def scan_segment(storage: Readable, path: str, *, payloads: bool = True, swapped: bool = False) -> Iterator[Scanned]:
    """Yield everything in the segment, in order of offsets; the first frame is the SEGMENT frame. An empty file yields nothing.

    The scan reads the file up to its size at the start, so a writer may append meanwhile; an unfinished write shows as a torn
    tail. ``payloads=False``: read and verify headers and metadata only, and yield frames with an empty payload. ``swapped``: also
    yield the frames of a segment whose header names another path, since recovery may find a block there. Without it such a
    segment is one Damage. Raises FileNotFoundError, StoreError.
    """
    window = _Window(
        storage, path, size=storage.size(path), chunk_bytes=_CHUNK_BYTES if payloads else _HEADERS_CHUNK_BYTES
    )
    uid = _segment_uid(window)
    if uid is not None:
        yield from _scan(window, 0, uid, payloads, swapped)
    elif window.size:
        yield _rest(window, 0)


def scan_object(storage: Readable, path: str) -> Iterator[Scanned]:
    """Yield everything in the segment ``path``, which was stored as a whole object, as :func:`scan_segment` does.

    An object appears whole or not at all, and has at least one frame after its header. So one that ends before that, or within
    a frame, was cut: its end is a Damage, not a torn tail.
    """
    found = 0
    for item in scan_segment(storage, path):
        found += 1
        if isinstance(item, TornTail):
            yield Damage(item.offset, item.offset + item.length, "the object ends within a frame")
        else:
            yield item
    if found < 2:
        size = storage.size(path)
        yield Damage(size, size, "the object ends before its first frame")


class SegmentScan:
    """A scan of a segment that may still grow: each :meth:`more` continues where the last one ended.

    ``offset``: everything before it has been yielded.
    """

    def __init__(self, storage: Readable, path: str) -> None:
        self.path = path
        self.offset = 0
        self._storage = storage
        self._uid: int | None = None

    def more(self, sealed: bool) -> Iterator[Scanned]:
        """Yield what has been added since the last call.

        Unless the segment is ``sealed``, an incomplete part at its end may be an unfinished write, and is left for a later call.
        Raises FileNotFoundError, StoreError.
        """
        window = _Window(self._storage, self.path, size=self._storage.size(self.path), chunk_bytes=_CHUNK_BYTES)
        if self._uid is None:
            self._uid = _segment_uid(window)
        if self._uid is None:
            if sealed and self.offset < window.size:
                self.offset = window.size
                yield _rest(window, 0)
            return
        for found in _scan(window, self.offset, self._uid, payloads=True, swapped=False):
            until = found.until if isinstance(found, (Damage, Newer)) else found.offset + found.length
            if not sealed and until >= window.size and isinstance(found, (Damage, TornTail)):
                return
            self.offset = aligned(until)
            yield found


def _scan(window: _Window, offset: int, uid: int, payloads: bool, swapped: bool) -> Iterator[Scanned]:
    size, path = window.size, window.path
    while offset < size:
        header = _header_at(window, offset, uid)
        if isinstance(header, str):
            following = _resynchronise(window, offset + ALIGNMENT, uid)
            if following is None:
                yield _rest(window, offset, header)
                return
            reason = "zeros" if window.zeros(offset, following) else header
            yield Damage(offset, following, reason)
            offset = following
            continue
        length = header.length
        if offset + length > size:
            yield TornTail(offset, size - offset)
            return
        following = offset + aligned(length)
        found = _frame_at(window, offset, header, length, payloads)
        if offset == 0 and isinstance(found, Frame) and not swapped:
            reason_swapped = _swapped(path, found)
            if reason_swapped is not None:
                yield Damage(0, size, reason_swapped)
                return
        yield found
        offset = following


def read_frame(storage: Storage, handle: Handle) -> Frame:
    """Return the frame that ``handle`` points at, by one ranged read, with all its checksums and the handle's verified.

    Raises CorruptionError, NewerVersionError, FileNotFoundError, StoreError.
    """
    if not HEADER_LENGTH <= handle.length <= MAX_FRAME:
        raise CorruptionError(handle.path, handle.offset, f"no frame has {handle.length} bytes")
    return frame_at(handle, storage.read(handle.path, handle.offset, handle.length))


def frame_at(handle: Handle, data: Buffer) -> Frame:
    """Return the frame that ``handle`` points at, from the bytes ``data`` there; verified as by :func:`read_frame`.

    Raises CorruptionError, NewerVersionError.
    """
    size = memoryview(data).nbytes
    if size < handle.length:
        raise CorruptionError(
            handle.path, handle.offset, f"the journal's handle has {handle.length} bytes, but the file only {size}"
        )
    frame = decode_frame(data, handle.path, handle.offset, expected_offset=handle.offset)
    if frame.length != handle.length or frame.header.payload_checksum != handle.checksum:
        raise CorruptionError(handle.path, handle.offset, "another frame is where the journal's handle points")
    return frame


def segment_header(frame: Frame) -> SegmentHeader | None:
    """Return the header in a SEGMENT frame; None for other frames and for metadata that can't be decoded."""
    if frame.header.kind != FrameKind.SEGMENT:
        return None
    try:
        return _header_decoder.decode(frame.metadata)
    except UNDECODABLE:
        return None


class _Window:
    """Ranged reads of one file, with one piece of it cached in memory."""

    def __init__(self, storage: Readable, path: str, *, size: int, chunk_bytes: int) -> None:
        self.path = path
        self.size = size
        self._storage = storage
        self._chunk_bytes = chunk_bytes
        self._start = self._held = 0
        self._data = _EMPTY

    def get(self, offset: int, length: int) -> pa.Buffer:
        """Return bytes ``[offset, offset + length)``; fewer at the end of the file."""
        within = offset - self._start
        if within >= 0 and within + length <= self._held:
            return self._data.slice(within, length)
        length = max(0, min(length, self.size - offset))
        if within < 0 or within + length > self._held:
            wanted = min(max(length, self._chunk_bytes), self.size - offset)
            self._start, self._data = offset, pa.py_buffer(self._storage.read(self.path, offset, wanted))
            self._held, within = self._data.size, 0
        return self._data.slice(within, min(length, max(0, self._held - within)))

    def pieces(self, offset: int, until: int) -> Iterator[tuple[int, pa.Buffer]]:
        """Yield ``[offset, until)`` in pieces that begin at multiples of 64 from ``offset``."""
        while offset < until:
            piece = self.get(offset, min(self._chunk_bytes, until - offset))
            if not piece.size:
                return
            yield offset, piece
            offset += piece.size

    def zeros(self, offset: int, until: int) -> bool:
        return all(not piece.to_pybytes().strip(b"\0") for _, piece in self.pieces(offset, until))


def _header_at(window: _Window, offset: int, uid: int | None) -> FrameHeader | str:
    header = parse_header(window.get(offset, HEADER_LENGTH))
    if isinstance(header, str):
        return header
    return misplaced(header, uid, offset) or header


def _frame_at(window: _Window, offset: int, header: FrameHeader, length: int, payloads: bool) -> Frame | Damage | Newer:
    until = min(offset + aligned(length), window.size)
    if header.unsupported is not None:
        return Newer(offset, until, header.version, FORMAT_VERSION, header.unsupported)
    if payloads:
        data = window.get(offset, length)
        metadata_bytes = data.slice(HEADER_LENGTH, header.metadata_length)
    else:
        metadata_bytes = window.get(offset + HEADER_LENGTH, header.metadata_length)
    try:
        metadata = decode_metadata(header, metadata_bytes, window.path, offset)
    except CorruptionError as error:
        return Damage(offset, until, error.reason)
    if not payloads:
        return Frame(header, metadata, _EMPTY, offset, length)
    payload = data.slice(length - header.payload_length)
    if google_crc32c.value(payload) != header.payload_checksum:
        return Damage(offset, until, "the payload's checksum does not match", metadata)
    return Frame(header, metadata, payload, offset, length)


def _resynchronise(window: _Window, offset: int, uid: int | None) -> int | None:
    """Return the offset of the next frame of this segment at or after ``offset``; None if there is none."""
    for start, piece in window.pieces(offset, window.size):
        data = piece.to_pybytes()
        at = data.find(MAGIC)
        while at >= 0:
            if at % ALIGNMENT == 0 and not isinstance(_header_at(window, start + at, uid), str):
                return start + at
            at = data.find(MAGIC, at + 1)
    return None


def _segment_uid(window: _Window) -> int | None:
    """Return the number in the segment's frames: its header's, or if that is damaged, the number in most frames found."""
    first = _header_at(window, 0, None)
    if not isinstance(first, str):
        return first.uid
    votes: Counter[int] = Counter()
    offset = _resynchronise(window, ALIGNMENT, None)
    while offset is not None:
        header = _header_at(window, offset, None)
        assert not isinstance(header, str)
        votes[header.uid] += 1
        offset = _resynchronise(window, offset + aligned(header.length), None)
    return votes.most_common(1)[0][0] if votes else None


def _rest(window: _Window, offset: int, reason: str | None = None) -> Damage | TornTail:
    """Return the rest of a file in which no further frame begins: as a torn tail or as damage.

    A header is one 64-byte line, which is written whole or not at all unless the file ends there. So a line that is neither short
    nor zeros is damage.
    """
    if window.size - offset < HEADER_LENGTH or window.zeros(offset, window.size):
        return TornTail(offset, window.size - offset)
    return Damage(offset, window.size, reason or str(_header_at(window, offset, None)))


def _swapped(path: str, first: Frame) -> str | None:
    header = segment_header(first)
    if header is None:
        return "the segment's first frame is not a segment header"
    if header.path != path:
        return f"the segment's header names another path, {header.path}"
    if header.uid != first.header.uid:
        return "the segment's header and its frame have different numbers"
    return None
