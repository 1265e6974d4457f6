"""A store whose listings omit objects."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from wal.storage import Paths, Storage


class Unlisted:
    """``storage``, whose listings omit ``hidden``; each can still be asked for by name."""

    def __init__(self, storage: Storage, hidden: Collection[str]) -> None:
        self._storage = storage
        self._hidden = hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def list(self, prefix: str) -> Paths:
        return [path for path in self._storage.list(prefix) if path not in self._hidden]
