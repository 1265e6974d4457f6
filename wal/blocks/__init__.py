"""Blocks: their metadata, a host's local copies and the room for them, SHA-256, encryption, copies sent to agents, damaged copies
set aside."""

from __future__ import annotations

from wal.blocks.local_copies import (
    BLOCK_SUFFIX,
    COPY_SUFFIX,
    CopiesMemory,
    cached_path,
    local_name,
    local_path,
    read_local,
    read_stored,
)
from wal.blocks.room import COPIES_PER_COUNT, LocalRoom, has_room, kept_free, local_files, used_bytes
from wal.blocks.stored import StoredBlock, block_of_frame, decode_meta, encode_meta

__all__ = [
    "BLOCK_SUFFIX",
    "COPIES_PER_COUNT",
    "COPY_SUFFIX",
    "CopiesMemory",
    "LocalRoom",
    "StoredBlock",
    "block_of_frame",
    "cached_path",
    "decode_meta",
    "encode_meta",
    "has_room",
    "kept_free",
    "local_files",
    "local_name",
    "local_path",
    "read_local",
    "read_stored",
    "used_bytes",
]
