"""Local folders that are moved in one step: an output writes a folder aside, then moves it to its place."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from wal.storage.protocol import check_folder_path, store_error

if TYPE_CHECKING:
    from typing_extensions import Buffer


class LocalFolders:
    """Folders below ``root``, an absolute path."""

    def __init__(self, root: str) -> None:
        self.url = f"file://{root}"
        self._root = root
        self._made: set[str] = set()  # each was synced into its parent once, even if it existed

    def make_folder(self, path: str) -> None:
        full = self._full(path)
        try:
            self._make(os.path.dirname(full))
            os.mkdir(full)
        except OSError as error:
            raise store_error(error, f"{full} can't be created") from error

    def put(self, path: str, data: Buffer) -> None:
        full = self._full(path)
        try:
            with open(full, "wb") as file:
                file.write(data)
        except FileNotFoundError:
            raise
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
            # an earlier move, by this process or a killed one, may have failed before its sync
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
            pass  # or another process is deleting it and will finish
        except OSError as error:
            raise store_error(error, f"{full} can't be deleted") from error

    def sync_folder(self, path: str) -> None:
        """Sync each file and folder. This covers what other processes wrote through the same kernel."""
        full = self._full(path)
        try:
            for folder, _, names in os.walk(full, onerror=_raise):
                for name in names:
                    _sync(os.path.join(folder, name))
                _sync(folder)
            _sync(os.path.dirname(full))
        except FileNotFoundError:
            raise
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
            with suppress(PermissionError):  # the root may be in a folder that this process must not open
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
