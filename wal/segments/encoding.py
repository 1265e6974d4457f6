"""Encodes a frame (``wal.segments.frame``): header with checksums and flag, metadata, payload, padding.

These functions do no I/O, and do not copy a payload.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import google_crc32c
import msgspec

from forebay.model.wire import UNDECODABLE
from wal.segments.frame import (
    ALIGNMENT,
    CODEC_NONE,
    FLAGS,
    FORMAT_VERSION,
    HEADER,
    MAGIC,
    MAX_METADATA,
    MAX_PAYLOAD,
    FrameKind,
    aligned,
)
from wal.segments.payload import Payload

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CHECKSUM = struct.Struct("<I")
_ZEROS = bytes(ALIGNMENT)


def encode_frame(
    kind: FrameKind,
    *,
    uid: int,
    offset: int,
    index: int,
    metadata: bytes,
    payload: Buffer | Sequence[Buffer] | Payload,
    codec: int = CODEC_NONE,
) -> list[Buffer]:
    """Return the frame as buffers to be written one after the other at ``offset``; their total length is a multiple of 64.

    The payload's buffers are returned without a copy. Raises as :func:`frame_pieces`.
    """
    given = payload if isinstance(payload, Payload) else Payload.of(payload)
    return list(frame_pieces(kind, uid=uid, offset=offset, index=index, metadata=metadata, payload=given, codec=codec))


def frame_pieces(
    kind: FrameKind,
    *,
    uid: int,
    offset: int,
    index: int,
    metadata: bytes,
    payload: Payload,
    codec: int = CODEC_NONE,
) -> Iterator[Buffer]:
    """Return the frame piece by piece, to be written at ``offset``; the total length is a multiple of 64.

    The flag is derived from the metadata, so a process that writes a frame again can't lose it: a block's names the key of an
    encrypted payload, and that of a snapshot or history says whether it has operators' actions.
    Raises ValueError for an offset that is not a multiple of 64, and for metadata above MAX_METADATA or a payload above
    MAX_PAYLOAD.
    """
    if offset % ALIGNMENT:
        raise ValueError(f"a frame can't begin at byte {offset}: not a multiple of {ALIGNMENT}")
    check_lengths(len(metadata), payload.length)
    header = HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        kind,
        codec,
        _flag(kind, metadata),
        uid,
        offset,
        index,
        len(metadata),
        payload.length,
        google_crc32c.value(metadata),
        payload.checksum,
        0,
    )
    head = b"".join(
        (
            header,
            _CHECKSUM.pack(google_crc32c.value(header)),
            metadata,
            _ZEROS[: aligned(len(metadata)) - len(metadata)],
        )
    )
    padding = _ZEROS[: aligned(payload.length) - payload.length]
    return chain((head,), payload, (padding,) if padding else ())


class _Flagged(msgspec.Struct):
    key_id: str | None = None
    actions: bool = False


_flagged_decoder = msgspec.msgpack.Decoder(_Flagged)


def _flag(kind: FrameKind, metadata: bytes) -> int:
    try:
        flagged = _flagged_decoder.decode(metadata)
    except UNDECODABLE:
        return (
            0  # a history without actions has no metadata; this release knows no flag for metadata that it can't read
        )
    return FLAGS.get(kind, 0) if (flagged.key_id is not None if kind == FrameKind.BLOCK else flagged.actions) else 0


def check_lengths(metadata_length: int, payload_length: int) -> None:
    """Raise ValueError for lengths that no frame may have (INV-6)."""
    if metadata_length > MAX_METADATA:
        raise ValueError(f"a frame's metadata can't have {metadata_length} bytes: the maximum is {MAX_METADATA}")
    if payload_length > MAX_PAYLOAD:
        raise ValueError(f"a frame's payload can't have {payload_length} bytes: the maximum is {MAX_PAYLOAD}")
