"""This process's memory as a store: ``memory://``, for tests and trials."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forebay.model.errors import StoreError
from forebay.model.text import split_url
from wal.storage.protocol import AppendFile, Paths, check_path, not_appendable

if TYPE_CHECKING:
    from typing_extensions import Buffer


def open_store(url: str, options: Mapping[str, Any]) -> MemoryStorage:
    """Return the space at ``memory://name``, or ``memory://name?objects`` for one that stores whole objects only."""
    parts = split_url(url)
    return MemoryStorage(parts.netloc + parts.path, appendable=parts.query != "objects")


class MemoryStorage:
    """A store in this process's memory, shared by every MemoryStorage of the same name; lost when the process ends.

    ``appendable=False``: it stores whole objects only, as an object store does.
    """

    _spaces: dict[str, dict[str, bytearray]] = {}  # noqa: RUF012 (one per process, by intent)
    _lock = threading.Lock()

    def __init__(self, name: str, appendable: bool = True) -> None:
        self.url = f"memory://{name}" + ("" if appendable else "?objects")
        self.appendable = appendable
        with self._lock:
            self._space = self._spaces.setdefault(name, {})

    def create(self, path: str) -> AppendFile:
        if not self.appendable:
            raise not_appendable(self.url)
        data = bytearray()
        self._add(path, data)
        return _MemoryAppendFile(path, data, self._lock)

    def put_new(self, path: str, data: Buffer) -> None:
        try:
            self._add(path, bytearray(data))
        except FileExistsError:
            if self._space.get(path) != bytearray(data):
                raise

    def replace(self, path: str, data: Buffer) -> None:
        with self._lock:
            self._space[check_path(path)] = bytearray(data)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._lock:
            data = memoryview(self._at(path))
            part = data[offset:] if length is None else data[offset : offset + length]
            copy = bytes(part)
            part.release()
            data.release()
            return copy

    def size(self, path: str) -> int:
        with self._lock:
            return len(self._at(path))

    def exists(self, path: str) -> bool:
        with self._lock:
            return check_path(path) in self._space

    def list(self, prefix: str) -> Paths:
        start = f"{check_path(prefix)}/" if prefix else ""
        with self._lock:
            return sorted(path for path in self._space if path.startswith(start))

    def delete(self, path: str) -> None:
        with self._lock:
            self._space.pop(check_path(path), None)

    def free_bytes(self) -> int | None:
        return None

    @property
    def requests(self) -> Mapping[str, int]:
        return {}

    def _add(self, path: str, data: bytearray) -> None:
        with self._lock:
            if check_path(path) in self._space:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            self._space[path] = data

    def _at(self, path: str) -> bytearray:
        try:
            return self._space[check_path(path)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None


class _MemoryAppendFile:
    def __init__(self, path: str, data: bytearray, lock: threading.Lock) -> None:
        self._path = path
        self._data = data
        self._lock = lock
        self._closed = False

    def append(self, data: Buffer) -> None:
        self._refuse_if_closed()
        with self._lock:
            self._data += memoryview(data).cast("B")

    def sync(self) -> None:
        self._refuse_if_closed()

    def close(self) -> None:
        self._closed = True

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreError(f"{self._path} can't be written: it is closed")
