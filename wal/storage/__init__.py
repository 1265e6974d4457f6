"""Where the log's bytes are kept: one small protocol, and an implementation for each way of keeping bytes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from forebay.errors import UsageError
from wal.storage.local import LocalStorage
from wal.storage.memory import MemoryStorage
from wal.storage.protocol import AppendFile, Paths, Storage, check_path, not_appendable, store_error

#: of each scheme, what is passed to its client: the sections ``[storage.<scheme>]``
StorageOptions = Mapping[str, Mapping[str, Any]]
NO_OPTIONS: StorageOptions = MappingProxyType({})


def open_storage(url: str, options: StorageOptions = NO_OPTIONS) -> Storage:
    """The storage of ``url``: ``file:///an/absolute/path`` or ``memory://name`` (one space per name within a process;
    ``memory://name?objects``: of whole objects only).

    Does no I/O. Raises UsageError for any other url.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise UsageError(f"{url!r}: write a local folder as file:///an/absolute/path")
        return LocalStorage(parts.path)
    if parts.scheme == "memory":
        return MemoryStorage(parts.netloc + parts.path, appendable=parts.query != "objects")
    if parts.scheme == "hdfs":
        from wal.storage.hdfs import HdfsStorage  # only who keeps a log there pays for the client

        return HdfsStorage(url, options.get("hdfs", {}))
    raise UsageError(
        f"{url!r}: this release stores at file:///an/absolute/path, hdfs://name-node:port/folder or memory://name"
    )


__all__ = [
    "NO_OPTIONS",
    "AppendFile",
    "LocalStorage",
    "MemoryStorage",
    "Paths",
    "Storage",
    "StorageOptions",
    "check_path",
    "not_appendable",
    "open_storage",
    "store_error",
]
