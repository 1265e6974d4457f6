"""A copy of a block that an agent receives and stores in its block directory."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from forebay.model.errors import CorruptionError, NewerVersionError, OutOfSpaceError, StoreError, UsageError
from forebay.process import failpoints
from wal.blocks import read_local
from wal.blocks.local_writing import TEMPORARY_SUFFIX, sync_names


class IncomingCopy:
    """Writes the copy to a temporary file, checks it as a whole, and then renames it to ``path``.

    A kill before the rename leaves a temporary file, which the store deletes. For one thread at a time. ``closed``: called
    once, with the size and whether the copy was kept.
    """

    def __init__(
        self, path: Path, *, stream: str, block_id: str, size_bytes: int, closed: Callable[[int, bool], None]
    ) -> None:
        self._path = path
        self._stream = stream
        self._block_id = block_id
        self._size_bytes = size_bytes
        self._closed = closed
        self._kept = False
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._descriptor, name = tempfile.mkstemp(TEMPORARY_SUFFIX, f".{path.name}.", path.parent)
            self._temporary = Path(name)
        except OSError as error:
            raise self._failed(error) from None

    def write(self, data: bytes | bytearray) -> None:
        """Append ``data``. Raises OutOfSpaceError, StoreError."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise self._failed(error) from None

    def keep(self, durable: bool) -> None:
        """Check the copy and rename it to its path, where it replaces an older copy.

        ``durable``: sync it, so that it survives a power loss from the return on. Raises UsageError if the bytes are not the
        whole block, OutOfSpaceError, StoreError.
        """
        name = f"{self._stream}/{self._block_id}"
        try:
            meta = read_local(self._temporary).meta
        except CorruptionError as error:
            raise UsageError(
                f"the request body is not a copy of block {name}: byte {error.offset}: {error.reason}"
            ) from None
        except NewerVersionError:
            raise UsageError(
                f"the copy of block {name} was written by a newer release than this agent's; upgrade the agent"
            ) from None
        if (meta.stream, meta.id) != (self._stream, self._block_id):
            raise UsageError(f"the request for block {name} has block {meta.stream}/{meta.id} as its body")
        try:
            if durable:
                os.fsync(self._descriptor)
            failpoints.hit("agent.before-copy-kept")
            self._temporary.rename(self._path)
            if durable:
                sync_names(self._path.parent)
        except OSError as error:
            raise self._failed(error) from None
        self._kept = True

    def close(self) -> None:
        """Close the file, and delete it unless it was kept."""
        os.close(self._descriptor)
        try:
            if not self._kept:
                with contextlib.suppress(FileNotFoundError):
                    self._temporary.unlink()
        finally:
            self._closed(self._size_bytes, self._kept)

    def _failed(self, error: OSError) -> StoreError:
        message = f"cannot write a copy of block {self._stream}/{self._block_id}: {error.strerror}"
        return OutOfSpaceError(message) if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError(message)
