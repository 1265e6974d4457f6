"""A store in which some bytes of some files can't be read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from forebay.model.errors import StoreError

#: all bytes of a file
WHOLE = (0, 1 << 62)


class Unreadable:
    """``storage``, whose reads of the bytes in ``bad`` fail: path → [from, until). ``sizes``: files whose size can't be read."""

    def __init__(
        self, storage: Any, bad: Mapping[str, tuple[int, int]] | None = None, sizes: Collection[str] = ()
    ) -> None:
        self._storage = storage
        self.bad = dict(bad or {})
        self.sizes = sizes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        start, until = self.bad.get(path, (0, 0))
        if offset < until and (length is None or offset + length > start):
            raise StoreError(f"{path} can't be read: Input/output error")
        data: bytes = self._storage.read(path, offset, length)
        return data

    def size(self, path: str) -> int:
        if path in self.sizes:
            raise StoreError(f"the size of {path} can't be read: Input/output error")
        size: int = self._storage.size(path)
        return size
