"""The bytes of one frame (docs/FORMAT.md specifies each of them), and how they are read.

A frame is a header of 64 bytes, metadata, and a payload. Frames and payloads begin at multiples of 64 within the file, so that
an Arrow payload can be mapped into memory without a copy. Header, metadata and payload each have a checksum (CRC-32C). A frame is
valid only at its own place: it names its segment's number (``uid``) and its own offset. So a whole frame inside a record's value
is never taken for a frame of the log.

These functions do no I/O. Limits on lengths are checked before anything is allocated (INV-6). ``wal.segments.encoding`` makes
frames.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING

import google_crc32c
import msgspec
import pyarrow as pa

from forebay.model.errors import CorruptionError, NewerVersionError
from forebay.model.wire import WIRE_NAMES

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC = b"\x89FBY\r\n\x1a\n"
FORMAT_VERSION = 1
HEADER_LENGTH = 64
ALIGNMENT = 64
MAX_METADATA = 16 << 20
MAX_PAYLOAD = 2 << 30
#: maximum length of a frame, and of one read
MAX_FRAME = HEADER_LENGTH + MAX_METADATA + MAX_PAYLOAD

CODEC_NONE = 0  # 1 (lz4) and 2 (zstd) are reserved
FLAG_ENCRYPTED = 1  # the block's payload is encrypted with the key that its metadata names
FLAG_ACTIONS = 2  # a snapshot or history has a pause or a skipped batch, which older releases would ignore
#: a reader that does not know one of these bits can't read the frame; it may ignore the upper 16 bits
CRITICAL_FLAGS = 0xFFFF

#: the header without its last 4 bytes, the checksum of these
HEADER = struct.Struct("<8sHBBIQQIIQIII")
_WHOLE_HEADER = struct.Struct(f"{HEADER.format}I")


class FrameKind(IntEnum):
    SEGMENT = 1
    BLOCK = 2
    EVENTS = 3
    SNAPSHOT = 4
    HISTORY = 5


_KINDS = frozenset(FrameKind)
#: kind → the flag that its frames may have
FLAGS = {
    FrameKind.BLOCK: FLAG_ENCRYPTED,
    FrameKind.SNAPSHOT: FLAG_ACTIONS,
    FrameKind.HISTORY: FLAG_ACTIONS,
}


class SegmentHeader(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """Metadata of a segment's first frame: its writer and its place. ``created_ms``: since 1970, for people to read."""

    path: str
    stream: str
    writer: str
    epoch: int
    sequence: int
    timeline: int
    uid: int
    created_ms: int


class FrameHeader(msgspec.Struct, frozen=True, gc=False):  # quicker to make than a dataclass: a journal has many
    """The header of a frame, as read.

    ``offset`` and ``uid``: the place that the frame names as its own. ``kind`` is a FrameKind, unless ``unsupported`` says why
    this release can't read the frame; its place and lengths are valid even then.
    """

    version: int
    kind: int
    codec: int
    flags: int
    uid: int
    offset: int
    index: int
    metadata_length: int
    payload_length: int
    metadata_checksum: int
    payload_checksum: int

    @property
    def payload_start(self) -> int:
        """Number of bytes before the payload."""
        return HEADER_LENGTH + aligned(self.metadata_length)

    @property
    def length(self) -> int:
        """Number of bytes from the header's first to the payload's last."""
        return self.payload_start + self.payload_length

    @property
    def unsupported(self) -> str | None:
        """The feature of this frame that only a newer release can read; None if this release can read the frame."""
        if self.version > FORMAT_VERSION:
            return f"format {self.version}"
        unknown = self.flags & CRITICAL_FLAGS & ~FLAGS.get(self.kind, 0)  # type: ignore[call-overload]
        if unknown:
            return f"flags {unknown:#06x}"
        if self.kind not in _KINDS:
            return f"frame kind {self.kind}"
        if self.codec != CODEC_NONE:
            return f"payload codec {self.codec}"
        return None


class Frame(msgspec.Struct, frozen=True):
    """A frame whose checksums match.

    ``payload`` shares memory with the bytes that it was decoded from; it is empty after a scan without payloads. ``offset``: the
    frame's place in its file. ``length``: bytes from the header's first to the payload's last.
    """

    header: FrameHeader
    metadata: bytes
    payload: pa.Buffer
    offset: int
    length: int


def aligned(length: int) -> int:
    """Return ``length``, rounded up to a multiple of 64."""
    return -(-length // ALIGNMENT) * ALIGNMENT


def parse_header(data: Buffer) -> FrameHeader | str:
    """Return the header in the first 64 bytes of ``data``, of any version; or the reason why there is none.

    The header's layout never changes, and its checksum is verified before any of its fields is used. So damage is never taken for
    a newer version, and a newer version never for damage.
    """
    head = bytes(memoryview(data).cast("B")[:HEADER_LENGTH])
    if len(head) < HEADER_LENGTH:
        return f"{len(head)} bytes are too few for a frame header"
    if not head.startswith(MAGIC):
        return "there is no frame header"
    (
        _,
        version,
        kind,
        codec,
        flags,
        uid,
        offset,
        index,
        metadata,
        payload,
        metadata_crc,
        payload_crc,
        _,
        header_crc,
    ) = _WHOLE_HEADER.unpack(head)
    if google_crc32c.value(head[: HEADER.size]) != header_crc:
        return "the frame header's checksum does not match"
    if metadata > MAX_METADATA or payload > MAX_PAYLOAD:
        return f"lengths of {metadata} and {payload} bytes are above a frame's maximum"
    return FrameHeader(version, kind, codec, flags, uid, offset, index, metadata, payload, metadata_crc, payload_crc)


def decode_header(data: Buffer, path: str, offset: int) -> FrameHeader:
    """Return the header at the beginning of ``data``, which was read at ``offset`` of ``path``.

    Raises CorruptionError; NewerVersionError for a frame that only a newer release can read.
    """
    header = parse_header(data)
    if isinstance(header, str):
        raise CorruptionError(path, offset, header)
    if header.unsupported is not None:
        raise NewerVersionError(path, offset, version=header.version, newest=FORMAT_VERSION, feature=header.unsupported)
    return header


def decode_frame(
    data: Buffer, path: str, offset: int, *, uid: int | None = None, expected_offset: int | None = None
) -> Frame:
    """Return the frame at the beginning of ``data``, which was read at ``offset`` of ``path``, with all checksums verified.

    The frame must have ``uid`` and ``expected_offset`` if they are set. A reader of a segment sets both; a reader of a copy
    outside its segment sets neither. Bytes after the frame are ignored. Raises CorruptionError, NewerVersionError.
    """
    header = decode_header(data, path, offset)
    reason = misplaced(header, uid, expected_offset)
    if reason is not None:
        raise CorruptionError(path, offset, reason)
    buffer = pa.py_buffer(data)
    if buffer.size < header.length:
        raise CorruptionError(path, offset, f"the frame has {header.length} bytes, but only {buffer.size} are there")
    metadata = decode_metadata(header, buffer.slice(HEADER_LENGTH, header.metadata_length), path, offset)
    payload = buffer.slice(header.payload_start, header.payload_length)
    if google_crc32c.value(payload) != header.payload_checksum:
        raise CorruptionError(path, offset, "the payload's checksum does not match")
    return Frame(header, metadata, payload, offset, header.length)


def decode_metadata(header: FrameHeader, data: Buffer, path: str, offset: int) -> bytes:
    """Return the metadata in ``data``. Raises CorruptionError if its checksum does not match."""
    metadata = bytes(data)
    if google_crc32c.value(metadata) != header.metadata_checksum:
        raise CorruptionError(path, offset, "the metadata's checksum does not match")
    return metadata


def misplaced(header: FrameHeader, uid: int | None, offset: int | None) -> str | None:
    """Return why the frame does not belong where it was found; None if it does."""
    if uid is not None and header.uid != uid:
        return f"the frame belongs to segment {header.uid:016x}, not {uid:016x}"
    if offset is not None and header.offset != offset:
        return f"the frame belongs at byte {header.offset}"
    return None
