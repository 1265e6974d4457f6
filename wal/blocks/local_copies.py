"""Local copies of blocks in a host's block directory: their names, and how they are read (writing: ``wal.blocks.local_writing``).

A local copy contains the same frame as the WAL (with uid 0, offset 0, index 0), in a file of its own, with its own checksums.
With a WAL, a copy is not synced: the WAL keeps the block, and if a power cut tore the copy, its checks fail and the next tier
is read. Without a WAL, the copies are the only data, so they are synced. A copy that another process sent to the host's agent
has the same bytes under another name (``COPY_SUFFIX``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from forebay.model.errors import CorruptionError, StoreError
from forebay.model.identifiers import check_name
from wal.blocks.mapping import map_present
from wal.blocks.stored import StoredBlock, block_of_frame
from wal.segments.frame import ALIGNMENT, aligned, decode_frame

BLOCK_SUFFIX = ".block"
#: of a cached copy, which another process sent to the host's agent
COPY_SUFFIX = ".copy"

#: a smaller copy is read, because mapping it into memory costs more than copying it
MAPPED_BYTES_MIN = 256 << 10

_BLOCK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}-[0-9a-f]{1,16}-[0-9]{1,20}")


def local_path(directory: str | Path, stream: str, block_id: str) -> Path:
    """Return the path of a host's own copy of a block. Raises ValueError for names that no stream or block can have.

    Both names may come from HTTP requests and commands. Because of this check, neither can lead out of ``directory``.
    """
    return Path(local_name(directory, stream, block_id))


def local_name(directory: str | Path, stream: str, block_id: str) -> str:
    """Do :func:`local_path`, and return a text: making a Path takes a tenth of the time of reading a small block."""
    check_name("stream", stream)
    if not _BLOCK_ID.fullmatch(block_id):
        raise ValueError(f"{block_id!r} is no block id: write <receiver>-<epoch, hexadecimal>-<sequence>")
    return f"{os.fspath(directory)}/{stream}/{block_id}{BLOCK_SUFFIX}"


def cached_path(directory: str | Path, stream: str, block_id: str) -> Path:
    """Return the path of a block's cached copy, which another process sent to the agent.

    Raises ValueError as :func:`local_path`.
    """
    return local_path(directory, stream, block_id).with_suffix(COPY_SUFFIX)


class CopiesMemory:
    """Memory for small copies that are read one after another: new memory for each would take longer than reading it.

    ``lengths``: of their frames. The memory is allocated for the first one, and is free when no block uses it.
    """

    def __init__(self, lengths: Iterable[int]) -> None:
        self._size = sum(_room(length) for length in lengths if length < MAPPED_BYTES_MIN)
        self._rest: memoryview | None = None

    def read(self, path: str | Path, length: int) -> Any:
        """Return the bytes of the file, at most one more than a frame of ``length`` has. Raises OSError."""
        if self._rest is None:
            self._rest = memoryview(pa.allocate_buffer(self._size))
        room = _room(length)
        if len(self._rest) < room:
            return _read_file(path, length)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            count = os.readv(descriptor, [self._rest[: aligned(length) + 1]])
        finally:
            os.close(descriptor)
        data, self._rest = self._rest[:count], self._rest[room:]
        return data


def _room(length: int) -> int:
    """Return the bytes for a copy and the byte that it must not have; aligned, so that frames stay aligned in memory."""
    return aligned(length) + ALIGNMENT


def read_local(path: str | Path, length: int = MAPPED_BYTES_MIN, memory: CopiesMemory | None = None) -> StoredBlock:
    """Return a local copy, verified.

    ``length``: of its frame, if it is known. A small copy is read, into ``memory`` if it is set, and a larger one is mapped.

    Raises FileNotFoundError, CorruptionError, NewerVersionError, StoreError.
    """
    data: Any
    try:
        if length >= MAPPED_BYTES_MIN:
            data = map_present(path)
        else:
            data = _read_file(path, length) if memory is None else memory.read(path, length)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path} can't be read: {error}") from None
    return read_stored(data, str(path))


def _read_file(path: str | Path, length: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, aligned(length) + 1)
    finally:
        os.close(descriptor)


def read_stored(data: Any, path: str) -> StoredBlock:
    """Return the local copy whose bytes are ``data``, verified. Raises CorruptionError, NewerVersionError."""
    frame = decode_frame(data, path, 0, uid=0, expected_offset=0)
    if aligned(frame.length) != len(data):
        raise CorruptionError(path, frame.length, f"the block's frame ends here, but its file has {len(data)} bytes")
    return block_of_frame(frame, path)
