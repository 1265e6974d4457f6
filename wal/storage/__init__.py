"""Where the log's bytes are kept: one small protocol, and an implementation for each way of keeping bytes."""

from __future__ import annotations

from urllib.parse import urlsplit

from forebay.errors import UsageError
from wal.storage.local import LocalStorage
from wal.storage.memory import MemoryStorage
from wal.storage.protocol import AppendFile, Paths, Storage, check_path, store_error


def open_storage(url: str) -> Storage:
    """The storage of ``url``: ``file:///an/absolute/path`` or ``memory://name`` (one space per name within a process).

    Does no I/O. Raises UsageError for any other url.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise UsageError(f"{url!r}: write a local folder as file:///an/absolute/path")
        return LocalStorage(parts.path)
    if parts.scheme == "memory":
        return MemoryStorage(parts.netloc + parts.path)
    raise UsageError(f"{url!r}: this release stores at file:///an/absolute/path or memory://name")


__all__ = [
    "AppendFile",
    "LocalStorage",
    "MemoryStorage",
    "Paths",
    "Storage",
    "check_path",
    "open_storage",
    "store_error",
]
