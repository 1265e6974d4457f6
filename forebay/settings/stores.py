"""The kinds of stores, by the scheme of their URLs: all that settings, messages and ``wal.storage`` distinguish by a scheme.

A new kind of store is one entry here, and the module in ``wal.storage`` that the entry names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from forebay.model.text import split_url


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKind:
    """One kind of store.

    ``module``: in ``wal.storage``, with ``open_store(url, options)``, and with ``open_folders(url, options)`` if
    ``moves_folders``. ``url``: how its URLs are written, for messages. ``options``: of its section ``[storage.SCHEME]``: "none"
    (it has no section), "client" (TOML values, as the client's constructor takes them) or "texts" (keys with dots, as Hadoop
    has them; every value is text). ``moves_folders``: whether it can move a folder in one step. ``credentials``: where its
    client finds credentials, for messages. ``ways``: key of its section → values that name a way to log in and are no secrets,
    although the key can also hold one.
    """

    module: str
    url: str
    options: Literal["none", "client", "texts"] = "client"
    moves_folders: bool = False
    credentials: str = "its client finds them by itself"
    ways: Mapping[str, frozenset[str]] = field(default_factory=dict)


STORE_KINDS: Mapping[str, StoreKind] = {
    "file": StoreKind(module="local", url="file:///an/absolute/path", options="none", moves_folders=True),
    "s3": StoreKind(
        module="objects",
        url="s3://bucket/prefix",
        credentials="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile in [storage.s3]",
    ),
    "gs": StoreKind(
        module="objects",
        url="gs://bucket/prefix",
        credentials="GOOGLE_APPLICATION_CREDENTIALS, the path of a file, or the machine's service account",
        ways={"token": frozenset({"google_default", "cloud", "cache", "anon"})},
    ),
    "abfs": StoreKind(
        module="objects",
        url="abfs://container@account/prefix",
        credentials="AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    ),
    "hdfs": StoreKind(
        module="hdfs",
        url="hdfs://name-node:port/folder",
        options="texts",
        moves_folders=True,
    ),
    "memory": StoreKind(module="memory", url="memory://name", options="none"),
}

#: the schemes with a section ``[storage.SCHEME]``
SCHEMES_WITH_OPTIONS = tuple(scheme for scheme, kind in STORE_KINDS.items() if kind.options != "none")
#: the schemes whose stores move a folder in one step
SCHEMES_WITH_FOLDERS = tuple(scheme for scheme, kind in STORE_KINDS.items() if kind.moves_folders)


def scheme_of(url: str) -> str:
    """Return the URL's scheme; "" for a text that is no URL."""
    return split_url(url).scheme


def has_text_options(scheme: str) -> bool:
    """Return whether the keys of ``[storage.SCHEME]`` have dots and its values are texts."""
    return scheme in STORE_KINDS and STORE_KINDS[scheme].options == "texts"


def local_path(url: str) -> str | None:
    """Return the path of a ``file://`` URL; None for every other URL."""
    return split_url(url).path if url.startswith("file://") else None
