"""Where the log's bytes are kept: one small protocol, and an implementation for each way of keeping bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from forebay.model.errors import UsageError
from forebay.settings.schema import NO_WAL
from wal.storage.local import LocalStorage
from wal.storage.memory import MemoryStorage
from wal.storage.protocol import (
    AppendFile,
    KeepsFolders,
    LeavesTemporaries,
    Paths,
    SendsParts,
    Storage,
    TriesAgain,
    check_path,
    is_path,
    not_appendable,
    store_error,
)

#: of each scheme, what is passed to its client: the sections ``[storage.<scheme>]``
StorageOptions = Mapping[str, Mapping[str, Any]]
NO_OPTIONS: StorageOptions = MappingProxyType({})


_OBJECTS = ("s3", "gs", "abfs")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{1,254}")  # abfs: container@account


def open_storage(url: str, options: StorageOptions = NO_OPTIONS) -> Storage:
    """The storage of ``url``: ``file:///an/absolute/path``, ``s3://bucket/prefix`` (``gs``, ``abfs`` likewise),
    ``hdfs://name-node:port/folder`` or ``memory://name``
    (one space per name within a process; ``memory://name?objects``: of whole objects only).

    ``options``: what the clients of remote stores are given. Does no I/O. Raises UsageError for any other url; for "none" it says
    that there is no WAL, since only what can't do without one gets here with it.
    """
    if url == NO_WAL:
        raise UsageError(f'this stream has no WAL (wal.url = "{NO_WAL}"), and this needs one')
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise UsageError(f"{url!r}: write a local folder as file:///an/absolute/path")
        return LocalStorage(parts.path)
    if parts.scheme == "memory":
        return MemoryStorage(parts.netloc + parts.path, appendable=parts.query != "objects")
    if parts.scheme == "hdfs":
        from wal.storage.hdfs import HdfsStorage  # only who keeps a log there pays for the client

        return HdfsStorage(url, options.get("hdfs", {}))
    if parts.scheme in _OBJECTS:
        prefix = parts.path.strip("/")
        if not _BUCKET.fullmatch(parts.netloc) or parts.query or parts.fragment or not (not prefix or is_path(prefix)):
            raise UsageError(f"a store is written as {parts.scheme}://bucket/prefix, without keys or parameters")
        from wal.storage.objects import ObjectStorage  # half a second to import

        place = f"{parts.netloc}/{prefix}" if prefix else parts.netloc
        return ObjectStorage(parts.scheme, place, options.get(parts.scheme, {}))
    raise UsageError(
        f"{url!r}: this release stores at file:///an/absolute/path, s3://bucket/prefix, "
        "hdfs://name-node:port/folder or memory://name"
    )


def tried_for(storage: Storage, seconds: float) -> Storage:
    """``storage``, which then tries again by itself for no longer than that, if it is one that does."""
    return storage.tried_for(seconds) if isinstance(storage, TriesAgain) else storage


__all__ = [
    "NO_OPTIONS",
    "AppendFile",
    "KeepsFolders",
    "LeavesTemporaries",
    "LocalStorage",
    "MemoryStorage",
    "Paths",
    "SendsParts",
    "Storage",
    "StorageOptions",
    "check_path",
    "not_appendable",
    "open_storage",
    "store_error",
    "tried_for",
]
