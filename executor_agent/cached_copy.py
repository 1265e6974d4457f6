"""A copy of a block that somebody gives to the agent, on its way into the block directory."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from forebay.model.errors import CorruptionError, NewerVersionError, OutOfSpaceError, StoreError, UsageError
from forebay.process import failpoints
from wal.blocks import TEMPORARY_SUFFIX, read_local, sync_directory


class CachedCopy:
    """Written to a temporary name of its own, checked as a whole, and only then there under ``path``: killed before that, it
    leaves a temporary file, which the store drops. From one thread at a time. ``closed`` is told once of its size and whether
    it is kept.
    """

    def __init__(
        self, path: Path, stream: str, block_id: str, size_bytes: int, closed: Callable[[int, bool], None]
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
        """Raises OutOfSpaceError, StoreError."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise self._failed(error) from None

    def keep(self, durable: bool) -> None:
        """Checks what was written and puts it in its place; a copy that was there before is replaced. ``durable``: it outlives
        a power cut, on return.

        Raises UsageError if it is not that block, whole; OutOfSpaceError, StoreError.
        """
        name = f"{self._stream}/{self._block_id}"
        try:
            meta = read_local(self._temporary).meta
        except CorruptionError as error:
            raise UsageError(f"what was sent is no copy of block {name}: byte {error.offset}: {error.reason}") from None
        except NewerVersionError:
            raise UsageError(
                f"what was sent as block {name} was written by a newer release than this agent's"
            ) from None
        if (meta.stream, meta.id) != (self._stream, self._block_id):
            raise UsageError(f"what was sent as block {name} is block {meta.stream}/{meta.id}")
        try:
            if durable:
                os.fsync(self._descriptor)
            failpoints.hit("agent.before-copy-kept")
            self._temporary.rename(self._path)
            if durable:
                sync_directory(self._path.parent)
        except OSError as error:
            raise self._failed(error) from None
        self._kept = True

    def close(self) -> None:
        """Nothing of it is left unless it was kept."""
        os.close(self._descriptor)
        try:
            if not self._kept:
                with contextlib.suppress(FileNotFoundError):
                    self._temporary.unlink()
        finally:
            self._closed(self._size_bytes, self._kept)

    def _failed(self, error: OSError) -> StoreError:
        words = f"a copy of block {self._stream}/{self._block_id} can't be written: {error.strerror}"
        return OutOfSpaceError(words) if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError(words)
