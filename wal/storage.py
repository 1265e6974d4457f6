"""Where the log's bytes are kept: one small interface over fsspec, with the syncs that fsspec lacks.

Paths are relative to the storage's root and use ``/``. Errors: ``FileExistsError`` and ``FileNotFoundError`` where
named, :class:`~forebay.errors.OutOfSpaceError` for lack of space or quota, :class:`~forebay.errors.StoreError` for
everything else. Constructors do no I/O. A storage may be used by several threads, an :class:`AppendFile` by one at a
time.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from forebay.errors import OutOfSpaceError, StoreError, UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

Paths = list[str]  # where a method named ``list`` hides the type

_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*")


class AppendFile(Protocol):
    """One file being written. After any error it is poisoned: every later ``append`` and ``sync`` raises StoreError."""

    def append(self, data: Buffer) -> None:
        """Writes all of ``data`` at the end, or raises and leaves any part of it behind. Not durable."""

    def sync(self) -> None:
        """Everything appended is durable on return. Never called again on this file if it fails."""

    def close(self) -> None:
        """Without a sync; may be repeated; never raises: a failure here says nothing that ``sync`` did not."""


class Storage(Protocol):
    url: str
    appendable: bool

    def create(self, path: str) -> AppendFile:
        """A new, empty file; its name and its new parents are durable on return. Raises FileExistsError."""

    def put_new(self, path: str, data: Buffer) -> None:
        """The whole object, durable on return: it appears whole or not at all. Raises FileExistsError.

        After another error the object may be there or not.
        """

    def replace(self, path: str, data: Buffer) -> None:
        """The whole object in place of what was there, atomically; durable on return. May be repeated."""

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes ``[offset, offset + length)``, fewer where the file ends. Raises FileNotFoundError."""

    def size(self, path: str) -> int:
        """Bytes. Raises FileNotFoundError."""

    def exists(self, path: str) -> bool: ...

    def list(self, prefix: str) -> Paths:
        """Every file below the folder ``prefix`` ("" is the root), sorted; none if there is no such folder."""

    def delete(self, path: str) -> None:
        """Durable on return; no error if the file is absent, so it may be repeated."""

    def free_bytes(self) -> int | None:
        """Bytes that can still be written; None where the store can't tell."""


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


def check_path(path: str) -> str:
    """Returns ``path`` if each of its parts begins with a letter or digit, so that none climbs out of the root and
    none is a temporary file's name. Raises ValueError otherwise.
    """
    if not _PATH.fullmatch(path):
        raise ValueError(f"path {path!r}: parts are letters, digits, '.', '_', '-', the first a letter or digit")
    return path


def store_error(error: OSError, what: str) -> StoreError:
    """``error`` as an error of the store: OutOfSpaceError for ENOSPC and EDQUOT."""
    kind = OutOfSpaceError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
    return kind(f"{what}: {error.strerror or error}")


class LocalStorage:
    """A folder of a local or shared POSIX file system with hard links, ``fsync`` and atomic rename."""

    appendable = True

    def __init__(self, root: str) -> None:
        self.root = os.path.normpath(os.path.abspath(root))
        self.url = f"file://{self.root}"
        self._files = LocalFileSystem(skip_instance_cache=True)
        self._synced_directories: set[str] = set()

    def create(self, path: str) -> AppendFile:
        full = self._full(path)
        try:
            self._make_parents(full)
            descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise
        except OSError as error:
            raise store_error(error, f"{full} can't be created") from error
        file = _LocalAppendFile(full, descriptor)
        try:
            _sync_directory(os.path.dirname(full))
        except OSError as error:
            file.close()
            raise store_error(error, f"{full} can't be created durably") from error
        return file

    def put_new(self, path: str, data: Buffer) -> None:
        full = self._full(path)
        try:
            temporary = self._write_temporary(full, data)
            try:
                os.link(temporary, full)
            finally:
                os.unlink(temporary)
            _sync_directory(os.path.dirname(full))
        except FileExistsError:
            raise
        except OSError as error:
            raise store_error(error, f"{full} can't be written") from error

    def replace(self, path: str, data: Buffer) -> None:
        full = self._full(path)
        try:
            temporary = self._write_temporary(full, data)
            try:
                os.rename(temporary, full)
            except OSError:
                os.unlink(temporary)
                raise
            _sync_directory(os.path.dirname(full))
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
            raise store_error(error, f"{full} can't be looked at") from error

    def exists(self, path: str) -> bool:
        try:
            self.size(path)
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: str) -> Paths:
        folders = [self._full(prefix) if prefix else self.root]
        found = []
        try:
            # not by fsspec's walk and find: they show a folder that can't be read as an empty one (INV-5)
            while folders:
                folder = folders.pop()
                with suppress(FileNotFoundError):  # deleted meanwhile
                    for entry in self._files.ls(folder, detail=True):
                        name = entry["name"]
                        if os.path.basename(name).startswith("."):
                            continue
                        if entry["type"] == "directory":
                            folders.append(name)
                        elif name != folder:
                            found.append(os.path.relpath(name, self.root))
        except OSError as error:
            raise store_error(error, f"{self.root} can't be listed") from error
        return sorted(found)

    def delete(self, path: str) -> None:
        full = self._full(path)
        try:
            # a repeated delete syncs as well: the first may have been cut off between the two steps
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(full)
            with suppress(FileNotFoundError, NotADirectoryError):
                _sync_directory(os.path.dirname(full))
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

    def _full(self, path: str) -> str:
        return os.path.join(self.root, check_path(path))

    def _write_temporary(self, full: str, data: Buffer) -> str:
        """A durable file beside ``full``, whose name ``list`` never shows: a kill may leave it behind."""
        self._make_parents(full)
        folder, name = os.path.split(full)
        temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
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

    def _make_parents(self, full: str) -> None:
        """Makes the folders above ``full``. Each one down from the root is synced into its parent once per instance,
        also where it was there: its maker may have been killed before it synced.
        """
        folder = os.path.dirname(full)
        if folder in self._synced_directories and os.path.isdir(folder):
            return
        made = []
        place = self.root
        while not os.path.isdir(os.path.dirname(place)):
            place = os.path.dirname(place)
            made.append(place)
        try:
            os.makedirs(folder, exist_ok=True)
        except FileExistsError:  # a file stands where a folder should: not the same as a taken name
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from None
        for new in reversed(made):
            _sync_directory(os.path.dirname(new))
        with suppress(PermissionError):  # a root that somebody else made may lie in a folder that we may not open
            _sync_directory(os.path.dirname(self.root))
        place = self.root
        for part in os.path.relpath(folder, self.root).split(os.sep):
            _sync_directory(place)
            place = os.path.join(place, part)
        self._synced_directories.add(folder)


class _LocalAppendFile:
    def __init__(self, full: str, descriptor: int) -> None:
        self._full = full
        self._descriptor = descriptor
        self._poisoned = False

    def append(self, data: Buffer) -> None:
        self._refuse_if_poisoned()
        try:
            _write_all(self._descriptor, data)
        except OSError as error:
            self._poisoned = True
            raise store_error(error, f"{self._full} can't be written") from error

    def sync(self) -> None:
        self._refuse_if_poisoned()
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._poisoned = True
            raise store_error(error, f"{self._full} can't be synced") from error

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._poisoned = True
            with suppress(OSError):  # see AppendFile.close
                os.close(descriptor)

    def _refuse_if_poisoned(self) -> None:
        # after a failed sync the kernel may mark lost pages clean: a second sync would succeed and prove nothing
        if self._poisoned:
            raise StoreError(f"{self._full}: closed, or an earlier write or sync failed")


def _write_all(descriptor: int, data: Buffer) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _sync_directory(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class MemoryStorage:
    """A space of this process's memory, shared by every MemoryStorage of the same name. Durable as long as the
    process.
    """

    appendable = True
    _spaces: dict[str, dict[str, bytearray]] = {}  # noqa: RUF012 (one per process, by intent)
    _lock = threading.Lock()

    def __init__(self, name: str) -> None:
        self.url = f"memory://{name}"
        with self._lock:
            self._space = self._spaces.setdefault(name, {})

    def create(self, path: str) -> AppendFile:
        data = bytearray()
        self._add(path, data)
        return _MemoryAppendFile(path, data, self._lock)

    def put_new(self, path: str, data: Buffer) -> None:
        self._add(path, bytearray(data))

    def replace(self, path: str, data: Buffer) -> None:
        with self._lock:
            self._space[check_path(path)] = bytearray(data)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._lock:
            data = memoryview(self._at(path))
            part = data[offset:] if length is None else data[offset : offset + length]
            copy = bytes(part)
            part.release()
            data.release()
            return copy

    def size(self, path: str) -> int:
        with self._lock:
            return len(self._at(path))

    def exists(self, path: str) -> bool:
        with self._lock:
            return check_path(path) in self._space

    def list(self, prefix: str) -> Paths:
        start = f"{check_path(prefix)}/" if prefix else ""
        with self._lock:
            return sorted(path for path in self._space if path.startswith(start))

    def delete(self, path: str) -> None:
        with self._lock:
            self._space.pop(check_path(path), None)

    def free_bytes(self) -> int | None:
        return None

    def _add(self, path: str, data: bytearray) -> None:
        with self._lock:
            if check_path(path) in self._space:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            self._space[path] = data

    def _at(self, path: str) -> bytearray:
        try:
            return self._space[check_path(path)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None


class _MemoryAppendFile:
    def __init__(self, path: str, data: bytearray, lock: threading.Lock) -> None:
        self._path = path
        self._data = data
        self._lock = lock
        self._closed = False

    def append(self, data: Buffer) -> None:
        self._refuse_if_closed()
        with self._lock:
            self._data += memoryview(data).cast("B")

    def sync(self) -> None:
        self._refuse_if_closed()

    def close(self) -> None:
        self._closed = True

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreError(f"{self._path}: closed")
