"""A folder of a POSIX file system as a store: ``file://``."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from forebay.model.errors import StoreError, UsageError
from forebay.model.text import split_url
from forebay.process.secret_file import make_private_folder
from wal.storage.direct_writes import DirectWrites
from wal.storage.directories import sync_above, sync_directory
from wal.storage.protocol import TEMPORARY, AppendFile, Folders, Paths, check_path, store_error

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: attempts to create a new file's folders while another process removes empty folders
_FOLDER_TRIES = 5


def open_store(url: str, options: Mapping[str, Any]) -> LocalStorage:
    """Return the store at ``file:///an/absolute/path``. Raises UsageError for a URL of another form."""
    return LocalStorage(_path_of(url))


def open_folders(url: str, options: Mapping[str, Any]) -> Folders:
    """Return the folders at ``file:///an/absolute/path``. Raises UsageError for a URL of another form."""
    from wal.storage.local_folders import LocalFolders

    return LocalFolders(LocalStorage(_path_of(url)).root)


def _path_of(url: str) -> str:
    parts = split_url(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise UsageError(f"{url!r}: write a local folder as file:///an/absolute/path")
    return parts.path


class LocalStorage:
    """A store in a folder of a local or shared POSIX file system with hard links, ``fsync`` and atomic rename."""

    appendable = True

    def __init__(self, root: str, *, past_cache: bool = False) -> None:
        self._past_cache = past_cache
        self.root = os.path.normpath(os.path.abspath(root))
        self.url = f"file://{self.root}"
        self._files = LocalFileSystem(skip_instance_cache=True)
        self._synced_directories: set[str] = set()

    def create(self, path: str) -> AppendFile:
        full = self._full(path)
        try:
            descriptor = self._open_new(full, os.O_APPEND)
        except FileExistsError:
            raise
        except OSError as error:
            raise store_error(error, f"{full} can't be created") from error
        file = _LocalAppendFile(full, descriptor, self._past_cache)
        try:
            sync_directory(os.path.dirname(full))
        except OSError as error:
            file.close()
            with suppress(OSError):  # leave no empty file behind if possible
                os.unlink(full)
            raise store_error(error, f"{full} can't be created durably") from error
        return file

    def put_new(self, path: str, data: Buffer) -> None:
        full = self._full(path)
        ours = True
        try:
            temporary = self._write_temporary(full, data)
            try:
                os.link(temporary, full)
            except FileExistsError:
                ours = _holds(full, data)
            finally:
                os.unlink(temporary)
            # also if the name existed: its creator, such as an earlier attempt of this call, may have failed before its sync
            sync_directory(os.path.dirname(full))
        except OSError as error:
            raise store_error(error, f"{full} can't be written") from error
        if not ours:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), full)

    def replace(self, path: str, data: Buffer) -> None:
        full = self._full(path)
        try:
            temporary = self._write_temporary(full, data)
            try:
                os.rename(temporary, full)
            except OSError:
                os.unlink(temporary)
                raise
            sync_directory(os.path.dirname(full))
        except OSError as error:
            raise store_error(error, f"{full} can't be replaced") from error

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        full = self._full(path)
        try:
            with self._files.open(full, "rb") as file:
                file.seek(offset)
                data: bytes = file.read() if length is None else file.read(length)
                return data
        except FileNotFoundError:
            raise
        except NotADirectoryError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), full) from None
        except OSError as error:
            raise store_error(error, f"{full} can't be read") from error

    def size(self, path: str) -> int:
        full = self._full(path)
        try:
            return os.stat(full).st_size
        except FileNotFoundError:
            raise
        except NotADirectoryError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), full) from None
        except OSError as error:
            raise store_error(error, f"the size of {full} can't be read") from error

    def exists(self, path: str) -> bool:
        try:
            self.size(path)
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: str) -> Paths:
        if prefix and os.path.isfile(self._full(prefix)):
            return []
        folders = [prefix]
        found: list[str] = []
        try:
            # not by fsspec: it shows an unreadable folder as empty (INV-5), and stats each file
            while folders:
                folder = folders.pop()
                with (
                    suppress(FileNotFoundError),  # deleted since it was listed
                    os.scandir(os.path.join(self.root, folder)) as entries,
                ):
                    for entry in entries:
                        if not entry.name.startswith("."):
                            name = f"{folder}/{entry.name}" if folder else entry.name
                            (folders if entry.is_dir() else found).append(name)
        except OSError as error:
            raise store_error(error, f"{self.root} can't be listed") from error
        return sorted(found)

    def delete(self, path: str) -> None:
        full = self._full(path)
        try:
            # a repeated delete syncs as well: the first one may have been killed before its sync
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(full)
            with suppress(FileNotFoundError, NotADirectoryError):
                sync_directory(os.path.dirname(full))
        except OSError as error:
            raise store_error(error, f"{full} can't be deleted") from error

    def remove_folder(self, path: str) -> None:
        """See :class:`~wal.storage.protocol.KeepsFolders`."""
        full = self._full(path)
        try:
            os.rmdir(full)
            sync_directory(os.path.dirname(full))
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise store_error(error, f"{full} can't be removed") from error

    def left_over(self, prefix: str, before_seconds: float) -> Paths:
        """See :class:`~wal.storage.protocol.LeavesTemporaries`."""
        found: list[str] = []
        try:
            for folder, _, names in os.walk(self._full(prefix) if prefix else self.root, onerror=_raise_unless_absent):
                for name in filter(TEMPORARY.fullmatch, names):
                    with suppress(FileNotFoundError):  # its writer was still running
                        full = os.path.join(folder, name)
                        if os.stat(full).st_mtime < before_seconds:
                            found.append(os.path.relpath(full, self.root))
        except OSError as error:
            raise store_error(error, f"the temporary files in {self.root} can't be listed") from error
        return sorted(found)

    def remove_left_over(self, path: str) -> None:
        """See :class:`~wal.storage.protocol.LeavesTemporaries`."""
        folder, name = os.path.split(path)
        if folder:
            check_path(folder)
        if not TEMPORARY.fullmatch(name):
            raise ValueError(f"{path!r} is no temporary file")
        full = os.path.join(self.root, path)
        try:
            with suppress(FileNotFoundError):
                os.unlink(full)
        except OSError as error:
            raise store_error(error, f"{full} can't be deleted") from error

    def free_bytes(self) -> int | None:
        place = self.root
        while not os.path.isdir(place) and place != os.path.dirname(place):
            place = os.path.dirname(place)
        try:
            figures = os.statvfs(place)
        except OSError as error:
            raise store_error(error, f"free space of {place} can't be read") from error
        return figures.f_bavail * figures.f_frsize

    @property
    def requests(self) -> Mapping[str, int]:
        return {}

    def past_cache(self) -> LocalStorage:
        """See :class:`~wal.storage.protocol.FillsPageCache`."""
        return LocalStorage(self.root, past_cache=True)

    def _full(self, path: str) -> str:
        return os.path.join(self.root, check_path(path))

    def _write_temporary(self, full: str, data: Buffer) -> str:
        """Write a durable file beside ``full``; return its path. ``list`` never shows it; a kill may leave it behind."""
        folder, name = os.path.split(full)
        temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.tmp")
        descriptor = self._open_new(temporary)
        try:
            try:
                _write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            os.unlink(temporary)
            raise
        return temporary

    def _open_new(self, full: str, flags: int = 0) -> int:
        """Create its folders, then create and open the file. If a clean-up removes an empty folder in between, create the
        folders again."""
        for left in reversed(range(_FOLDER_TRIES)):
            self._make_parents(full)
            try:
                return os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | flags, 0o600)
            except FileNotFoundError:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _make_parents(self, full: str) -> None:
        """Make the folders above ``full``.

        Each folder on the same file system is synced into its parent once per instance, even if it existed: the process that made
        it may have been killed, or may have failed, before its sync.
        """
        folder = os.path.dirname(full)
        if folder in self._synced_directories and os.path.isdir(folder):
            return
        try:
            make_private_folder(folder)
        except FileExistsError:  # a file has the folder's name: not the same as a taken name
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from None
        sync_above(self.root)
        place = self.root
        for part in os.path.relpath(folder, self.root).split(os.sep):
            sync_directory(place)
            place = os.path.join(place, part)
        self._synced_directories.add(folder)


class _LocalAppendFile:
    def __init__(self, full: str, descriptor: int, past_cache: bool = False) -> None:
        self._full = full
        self._descriptor = descriptor
        self._direct = DirectWrites(descriptor) if past_cache else None
        self._poisoned = False

    def append(self, data: Buffer) -> None:
        self._refuse_if_poisoned()
        try:
            if self._direct is not None:
                self._direct.append(data)
            else:
                _write_all(self._descriptor, data)
        except OSError as error:
            self._poisoned = True
            raise store_error(error, f"{self._full} can't be written") from error

    def sync(self) -> None:
        self._refuse_if_poisoned()
        try:
            if self._direct is not None:
                self._direct.finish()
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._poisoned = True
            raise store_error(error, f"{self._full} can't be synced") from error

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._poisoned = True
            with suppress(OSError):  # see AppendFile.close
                if self._direct is not None:
                    self._direct.close()
            with suppress(OSError):
                os.close(descriptor)

    def _refuse_if_poisoned(self) -> None:
        # after a failed sync the kernel may mark lost pages clean: a second sync would succeed and prove nothing
        if self._poisoned:
            raise StoreError(f"{self._full} can't be written: it is closed, or an earlier write or sync failed")


def _raise_unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # deleted since its folder was listed
        raise error


def _write_all(descriptor: int, data: Buffer) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _holds(full: str, data: Buffer) -> bool:
    """Return whether the file has exactly these bytes."""
    whole = memoryview(data).cast("B")
    try:
        with open(full, "rb") as file:
            return file.read(len(whole) + 1) == whole
    except (FileNotFoundError, IsADirectoryError):  # deleted since, or a folder
        return False
