"""A block as one frame: its metadata as bytes, and the block that a frame holds."""

from __future__ import annotations

from typing import Any

import msgspec

from forebay.model.errors import CorruptionError
from forebay.model.values import BlockMeta
from forebay.model.wire import UNDECODABLE
from wal.segments.frame import FLAG_ENCRYPTED, Frame, FrameKind

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(BlockMeta)


class StoredBlock(msgspec.Struct, frozen=True):  # quicker to make than a dataclass: a task makes thousands
    """A block as a tier stores it, with its frame verified.

    ``payload``: in memory, mapped from a local file if the tier has one; encrypted if ``meta.key_id`` names a key.
    ``checksum``: the payload's CRC-32C.
    """

    meta: BlockMeta
    payload: Any
    checksum: int


def encode_meta(meta: BlockMeta) -> bytes:
    """Return the metadata of a BLOCK frame: a msgpack map (docs/FORMAT.md)."""
    return _encoder.encode(meta)


def decode_meta(data: Any, path: str, offset: int) -> BlockMeta:
    """Return the metadata of the BLOCK frame at ``offset`` of ``path``. Fields that this release does not know are ignored.

    Raises CorruptionError for anything that is not a block's metadata.
    """
    try:
        return _decoder.decode(data)
    except (*UNDECODABLE, ValueError) as error:
        raise CorruptionError(path, offset, f"not the metadata of a block: {error}") from None


def block_of_frame(frame: Frame, path: str) -> StoredBlock:
    """Return the block in ``frame``, which was read from ``path``; its payload may be encrypted (``wal.blocks.encryption``).

    Raises CorruptionError if the frame is of another kind, or if its flag and its metadata contradict each other.
    """
    if frame.header.kind != FrameKind.BLOCK:
        raise CorruptionError(path, frame.offset, f"expected a block, found a frame of kind {frame.header.kind}")
    meta = decode_meta(frame.metadata, path, frame.offset)
    if bool(frame.header.flags & FLAG_ENCRYPTED) != (meta.key_id is not None):
        raise CorruptionError(
            path,
            frame.offset,
            f"block {meta.id}: the frame's flag and the metadata disagree about whether the payload is encrypted",
        )
    return StoredBlock(meta, frame.payload, frame.header.payload_checksum)
