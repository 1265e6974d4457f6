"""Opening the store at a URL: its scheme names the module, which is imported only then."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol, cast

from forebay.model.errors import UsageError
from forebay.settings.redaction import redacted
from forebay.settings.schema import NO_WAL
from forebay.settings.stores import SCHEMES_WITH_FOLDERS, STORE_KINDS, scheme_of
from wal.storage.protocol import FillsPageCache, Folders, Storage, TriesAgain

#: options of stores' clients, by scheme: the sections ``[storage.<scheme>]``
StorageOptions = Mapping[str, Mapping[str, Any]]
NO_OPTIONS: StorageOptions = MappingProxyType({})


class StoreModule(Protocol):
    """What the module of a kind of store offers. Both raise UsageError for a URL that is not written as its kind's are."""

    def open_store(self, url: str, options: Mapping[str, Any]) -> Storage:
        """Return the store at ``url``; does no I/O."""

    def open_folders(self, url: str, options: Mapping[str, Any]) -> Folders:
        """Return the folders at ``url``; does no I/O. Only of a kind that moves folders."""


def open_storage(url: str, options: StorageOptions = NO_OPTIONS) -> Storage:
    """Return the store at ``url``, which is written as ``STORE_KINDS`` shows for its scheme. Does no I/O.

    ``memory://name`` is one space for each name in this process; ``memory://name?objects`` stores whole objects only.
    ``options``: options for the clients of remote stores. Raises UsageError for any other URL, and for "none", which means that
    the stream has no WAL.
    """
    if url == NO_WAL:
        raise UsageError(
            f'this stream has no WAL (wal.url = "{NO_WAL}"), and this command or service needs one; set wal.url to a store'
        )
    scheme = scheme_of(url)
    if scheme not in STORE_KINDS:
        shapes = [kind.url for kind in STORE_KINDS.values()]
        raise UsageError(f"cannot open a store at {redacted(url)!r}: write {', '.join(shapes[:-1])} or {shapes[-1]}")
    return _module(scheme).open_store(url, options.get(scheme, {}))


def open_folders(url: str, options: StorageOptions = NO_OPTIONS) -> Folders:
    """Return the folders at ``url``, of a kind of store that moves a folder in one step. Does no I/O.

    Raises UsageError for any other URL.
    """
    scheme = scheme_of(url)
    if scheme not in SCHEMES_WITH_FOLDERS:
        shapes = " and ".join(STORE_KINDS[one].url for one in SCHEMES_WITH_FOLDERS)
        raise UsageError(f"cannot move folders at {redacted(url)!r}: only {shapes} can move a folder in one step")
    return _module(scheme).open_folders(url, options.get(scheme, {}))


def tried_for(storage: Storage, seconds: float) -> Storage:
    """Return ``storage``, limited to retry a failed request for at most ``seconds``, if it retries by itself."""
    return storage.tried_for(seconds) if isinstance(storage, TriesAgain) else storage


def past_cache(storage: Storage) -> Storage:
    """Return ``storage``, whose large appends need no page cache, if it has one."""
    return storage.past_cache() if isinstance(storage, FillsPageCache) else storage


def _module(scheme: str) -> StoreModule:
    return cast(StoreModule, importlib.import_module(f"wal.storage.{STORE_KINDS[scheme].module}"))
