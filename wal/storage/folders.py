"""Whole folders of files, made aside and then moved to their place at once: for stores that can do that."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from forebay.model.errors import UsageError
from wal.storage import NO_OPTIONS, LocalStorage, StorageOptions, open_storage
from wal.storage.protocol import store_error

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: such as batch=7/part-0.parquet or _forebay/a; no part can climb out
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_=.-]*(/[A-Za-z0-9_][A-Za-z0-9_=.-]*)*")


class Folders(Protocol):
    """A folder with folders in it. Paths are relative, with ``/``. Raises StoreError and OutOfSpaceError, and what is named."""

    url: str

    def put(self, path: str, data: Buffer) -> None:
        """A whole file in place of what was there; the folders above it are made. Durable after :meth:`sync_folder`."""

    def read(self, path: str) -> bytes:
        """Raises FileNotFoundError."""

    def folders(self, path: str) -> Sequence[str]:
        """Names of the folders in ``path``, sorted; none if it is not there."""

    def move_folder(self, old: str, new: str) -> None:
        """Moves all of ``old`` at once; the folders above ``new`` are made. Durable on return.

        Raises FileExistsError if ``new`` is there (an empty local folder counts as absent), FileNotFoundError if ``old`` is not.
        It may have been moved though one of the two is raised: an earlier attempt failed, or its answer was lost, after the move.
        What is there then is durable.
        """

    def delete_folder(self, path: str) -> None:
        """With all in it. No error if it is not there."""

    def sync_folder(self, path: str) -> None:
        """All that was written below ``path``, by whomever, is durable on return, as far as the store lets one ask for it."""


def open_folders(url: str, options: StorageOptions = NO_OPTIONS) -> Folders:
    """The folders at ``file:///an/absolute/path`` or ``hdfs://name-node:port/folder``. Does no I/O. Raises UsageError for
    any other url."""
    scheme = urlsplit(url).scheme
    if scheme == "hdfs":
        from wal.storage.hdfs import HdfsFolders  # only who writes there pays for the client

        return HdfsFolders(url, options.get("hdfs", {}))
    if scheme != "file":
        raise UsageError(
            f"{url!r}: folders are moved at once at file:///an/absolute/path and hdfs://name-node:port/folder"
        )
    storage = open_storage(url)
    assert isinstance(storage, LocalStorage)
    return LocalFolders(storage.root)


def check_folder_path(path: str) -> str:
    """Returns ``path``. Raises ValueError if it could climb out of the root, or a part of it is hidden."""
    if not _PATH.fullmatch(path):
        raise ValueError(
            f"path {path!r}: parts are letters, digits, '=', '.', '_', '-', the first a letter, digit or '_'"
        )
    return path


class LocalFolders:
    """``root``: an absolute path."""

    def __init__(self, root: str) -> None:
        self.url = f"file://{root}"
        self._root = root
        self._made: set[str] = set()  # synced into the folder above once, also where they were there

    def put(self, path: str, data: Buffer) -> None:
        full = self._full(path)
        try:
            self._make(os.path.dirname(full))
            with open(full, "wb") as file:
                file.write(data)
        except OSError as error:
            raise store_error(error, f"{full} can't be written") from error

    def read(self, path: str) -> bytes:
        full = self._full(path)
        try:
            with open(full, "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise store_error(error, f"{full} can't be read") from error

    def folders(self, path: str) -> Sequence[str]:
        full = self._full(path)
        try:
            with os.scandir(full) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise store_error(error, f"{full} can't be listed") from error

    def move_folder(self, old: str, new: str) -> None:
        source, target = self._full(old), self._full(new)
        try:
            self._make(os.path.dirname(target))
            os.rename(source, target)
            _sync(os.path.dirname(target))
            _sync(os.path.dirname(source))
        except OSError as error:
            there = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
            if not there and not isinstance(error, FileNotFoundError):
                raise store_error(error, f"{source} can't be moved to {target}") from error
            # an earlier move, of this process or of one that was killed, may have failed before its sync
            self._sync_if_there(os.path.dirname(target), os.path.dirname(source))
            if there:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None
            raise

    def _sync_if_there(self, *folders: str) -> None:
        try:
            for folder in folders:
                with suppress(FileNotFoundError):
                    _sync(folder)
        except OSError as error:
            raise store_error(error, f"{folder} can't be synced") from error

    def delete_folder(self, path: str) -> None:
        full = self._full(path)
        try:
            shutil.rmtree(full)
        except FileNotFoundError:
            pass  # or somebody else deletes it too, who then goes on
        except OSError as error:
            raise store_error(error, f"{full} can't be deleted") from error

    def sync_folder(self, path: str) -> None:
        """Each file and folder by a descriptor of this process, which covers what others wrote through the same kernel."""
        full = self._full(path)
        try:
            for folder, _, names in os.walk(full, onerror=_raise):
                for name in names:
                    _sync(os.path.join(folder, name))
                _sync(folder)
            _sync(os.path.dirname(full))
        except OSError as error:
            raise store_error(error, f"{full} can't be synced") from error

    def _full(self, path: str) -> str:
        return os.path.join(self._root, check_folder_path(path))

    def _make(self, folder: str) -> None:
        if folder in self._made and os.path.isdir(folder):
            return
        os.makedirs(folder, exist_ok=True)
        place = folder
        while place.startswith(self._root):
            place = os.path.dirname(place)
            with suppress(PermissionError):  # the root may lie in a folder that we may not open
                _sync(place)
        self._made.add(folder)


def _raise(error: OSError) -> None:
    raise error


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
