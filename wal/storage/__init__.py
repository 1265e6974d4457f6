"""Where the log's bytes are stored: the ``Storage`` protocol, and a module for each kind of store.

``forebay.settings.stores.STORE_KINDS`` names the module of each URL scheme. ``open_storage`` imports it: most of them load a
client, and a process needs one or two.
"""

from __future__ import annotations

from wal.storage.memory import MemoryStorage
from wal.storage.opening import NO_OPTIONS, StorageOptions, open_folders, open_storage, past_cache, tried_for
from wal.storage.protocol import (
    AppendFile,
    AsksTogether,
    DatesObjects,
    FillsPageCache,
    Folders,
    KeepsFolders,
    LeavesTemporaries,
    Paths,
    SendsParts,
    Storage,
    TriesAgain,
    check_path,
    existing,
    not_appendable,
    store_error,
)

__all__ = [
    "NO_OPTIONS",
    "AppendFile",
    "AsksTogether",
    "DatesObjects",
    "FillsPageCache",
    "Folders",
    "KeepsFolders",
    "LeavesTemporaries",
    "MemoryStorage",
    "Paths",
    "SendsParts",
    "Storage",
    "StorageOptions",
    "TriesAgain",
    "check_path",
    "existing",
    "not_appendable",
    "open_folders",
    "open_storage",
    "past_cache",
    "store_error",
    "tried_for",
]
