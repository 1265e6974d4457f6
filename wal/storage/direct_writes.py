"""Large appends to a local file past the page cache (``O_DIRECT``).

They cost a fraction of the CPU, because the kernel gets no pages for the bytes, and the cache keeps what is read instead.
"""

from __future__ import annotations

import errno
import mmap
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: unit of direct writes, in place and length: no file system needs a larger one
BLOCK_BYTES = 4096
#: length of one direct write
CHUNK_BYTES = 1 << 20
#: a group of appends goes past the cache from the first buffer of at least this length on
LARGE_BYTES_MIN = 256 * 1024


class DirectWrites:
    """Appends to a file that ``descriptor`` has open for appending. For one thread. Methods raise OSError.

    Between two calls of :meth:`finish`, the first large buffer and all after it are written in whole blocks past the cache. The
    bytes before and after these blocks go through the cache. Those before are synced first: a power loss must not leave later
    bytes of a group in the file without its beginning, because a reader would take that for damage and not for a torn tail.

    A file system without direct writes gets the same bytes through the cache.
    """

    def __init__(self, descriptor: int) -> None:
        """``descriptor``: of an empty file."""
        self._descriptor = descriptor
        self._direct = -1
        self._possible = True
        self._size_bytes = 0
        self._chunk: mmap.mmap | None = None
        self._staged_bytes = 0
        self._begun = False

    def append(self, data: Buffer) -> None:
        """Write ``data``; up to the last chunk may wait in memory until :meth:`finish`."""
        rest = memoryview(data).cast("B")
        if not self._begun:
            if rest.nbytes < LARGE_BYTES_MIN or not self._possible:
                return self._write(rest)
            head_bytes = -self._size_bytes % BLOCK_BYTES
            self._write(rest[:head_bytes])
            rest = rest[head_bytes:]
            self._begin()
        assert self._chunk is not None
        while rest:
            taken = rest[: CHUNK_BYTES - self._staged_bytes]
            self._chunk[self._staged_bytes : self._staged_bytes + len(taken)] = taken
            self._staged_bytes += len(taken)
            rest = rest[len(taken) :]
            if self._staged_bytes == CHUNK_BYTES:
                self._write_staged(CHUNK_BYTES)
        return None

    def finish(self) -> None:
        """Write what waits in memory. The caller syncs the file afterwards."""
        if not self._begun:
            return
        self._begun = False
        whole_bytes = self._staged_bytes // BLOCK_BYTES * BLOCK_BYTES
        staged = memoryview(self._chunk)[: self._staged_bytes] if self._chunk is not None else memoryview(b"")
        self._write_staged(whole_bytes)
        self._write(staged[whole_bytes:])

    def close(self) -> None:
        """Close the second descriptor; what waits in memory is dropped. May be repeated."""
        if self._direct >= 0:
            os.close(self._direct)
            self._direct = -1

    def _begin(self) -> None:
        if self._direct < 0:
            flags = os.O_WRONLY | os.O_APPEND | os.O_DIRECT | os.O_CLOEXEC
            try:
                self._direct = os.open(
                    f"/proc/self/fd/{self._descriptor}", flags
                )  # this file, whatever has its name now
            except OSError:
                self._possible = False
        if self._chunk is None:
            self._chunk = mmap.mmap(-1, CHUNK_BYTES)  # aligned to pages
        if self._possible:
            os.fdatasync(self._descriptor)
        self._begun = True

    def _write_staged(self, length: int) -> None:
        assert self._chunk is not None
        rest = memoryview(self._chunk)[:length]
        self._staged_bytes = 0
        while rest and self._possible:
            try:
                written = os.write(self._direct, rest)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                written = 0
            self._possible = written > 0 and not written % BLOCK_BYTES
            self._size_bytes += written
            rest = rest[written:]
        self._write(rest)

    def _write(self, data: memoryview) -> None:
        self._size_bytes += len(data)
        while data:
            data = data[os.write(self._descriptor, data) :]
