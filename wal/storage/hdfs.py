"""A folder of HDFS as a store of whole objects: ``hdfs://``, over hdfs-native (no JVM).

HDFS can append, but an open file does not suit a log: readers don't see what is synced, a killed writer keeps its lease, and a
refused append may have written half of its bytes. So each object is a closed file. It is written under a hidden name, synced
(``hsync``), closed and renamed; the rename fails if the name is taken. The NameNode runs renames one after the other, so one of
many racing writers wins, and a partly written file never has a final name.

Settings of the client (``[storage.hdfs]``): every ``dfs.*``, ``fs.*`` and ``hadoop.*`` key that hdfs-native knows; they override
``core-site.xml`` and ``hdfs-site.xml`` in ``HADOOP_CONF_DIR``. ``dfs.blocksize`` and ``dfs.replication`` apply to files written
here. Kerberos: ``kerberos_principal``, ``kerberos_keytab``, ``kerberos_cache``. Each new connection logs in, so a keytab gets
tickets as long as the process runs, and a cache must be kept fresh by another program.
"""

from __future__ import annotations

import asyncio
import copy
import errno
import os
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import tenacity
from hdfs_native import AsyncClient, AsyncFileWriter, FileStatus, WriteOptions

from forebay.model.errors import OutOfSpaceError, StoreError, UsageError
from forebay.model.text import split_url
from forebay.model.units import parse_duration
from wal.storage.hdfs_connection import connection, first_line
from wal.storage.protocol import (
    TEMPORARY,
    AppendFile,
    Folders,
    Paths,
    TransientError,
    check_folder_path,
    check_path,
    not_appendable,
)
from wal.storage.retries import retrying

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MIB = 1024 * 1024
#: maximum delay between two attempts
_DELAY_SECONDS_MAX = 2.0
#: hdfs-native waits half a second if the NameNode does not have the last block's report yet, which arrives within milliseconds.
#: So closing is cut off after this many times the duration of the sync before it, and tried again
_CLOSE_PER_SYNC = 4
_CLOSE_SECONDS_MIN = 0.05
#: a close that was cut off too early never finishes; after this time the file is written again and closed without a cut-off
_CLOSE_SECONDS_MAX = 1.0
#: exceptions of a NameNode or DataNode that may soon be over
_TRANSIENT = re.compile(
    r"\.(?:SafeMode|Standby|Retriable|ObserverRetryOnActive|ServerTooBusy)Exception$|^java\.io\.IOException$"
)
_QUOTA = re.compile(r"Quota\w*ExceededException$")
_FULL = re.compile(
    r"DiskOutOfSpaceException|No space left on device|[1-9]\d* datanode\(s\) running and no node\(s\) are excluded"
)
_KERBEROS = re.compile(r'^GSSAPIError\(.*?, "(?P<message>.*)"\)$', re.DOTALL)
#: a KDC that restarts is waited for; what else a login can fail of needs a person
_NO_KDC = "Cannot contact any KDC"
#: how the client reports that a NameNode closed the connection, as one with Kerberos does if it gets no login
_CLOSED = "RPC listener disconnected"
_REMOTE = re.compile(r'(?:Fatal)?RPCError\("(?P<kind>[\w.$]+)", "(?P<message>.*)', re.DOTALL)

Answer = TypeVar("Answer")
Value = TypeVar("Value")


class _ListedFile(NamedTuple):
    path: str
    modified_ms: int
    hidden: bool


def open_store(url: str, options: Mapping[str, Any]) -> HdfsStorage:
    """Return the store at ``hdfs://name-node:port/folder`` or ``hdfs://name-service/folder``."""
    return HdfsStorage(url, options)


def open_folders(url: str, options: Mapping[str, Any]) -> Folders:
    """Return the folders at ``hdfs://name-node:port/folder`` or ``hdfs://name-service/folder``."""
    return HdfsFolders(url, options)


class HdfsStorage:
    """A store at ``hdfs://name-node:port/folder`` or ``hdfs://name-service/folder``; raises UsageError for another URL.

    ``options``: the client's, and two of this module: ``request_timeout``, the maximum time of one request or of 1 MiB of data;
    ``retry_timeout``, the maximum time after which a request is not retried any more: longer than a NameNode needs to
    restart.
    """

    appendable = False

    def __init__(self, url: str, options: Mapping[str, str] = MappingProxyType({})) -> None:
        parts = split_url(url)
        if parts.scheme != "hdfs" or not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
            raise UsageError(
                f"{url!r}: write a folder of HDFS as hdfs://name-node:port/folder or hdfs://name-service/folder"
            )
        self._authority = f"hdfs://{parts.netloc}"
        self._root = "/" + "/".join(part for part in parts.path.split("/") if part)
        self.url = self._authority + self._root
        own = dict(options)
        self._request_seconds = _own(own, "request_timeout", parse_duration, 20.0)
        if self._request_seconds <= 0:
            raise UsageError("storage.hdfs.request_timeout must be longer than 0ms")
        self._retry_seconds = _own(own, "retry_timeout", parse_duration, 90.0)
        self._block_bytes = _own(own, "dfs.blocksize", int, 0)
        self._replication = _own(own, "dfs.replication", int, None)
        self._options = own
        self._requests: Counter[str] = Counter()
        self._counting = threading.Lock()

    def tried_for(self, seconds: float) -> HdfsStorage:
        other = copy.copy(self)
        other._retry_seconds = seconds
        return other

    @property
    def requests(self) -> Mapping[str, int]:
        with self._counting:
            return dict(self._requests)

    def create(self, path: str) -> AppendFile:
        raise not_appendable(self.url)

    def put_new(self, path: str, data: Buffer) -> None:
        full = self._full(path)
        whole = bytes(data)

        def attempt(number: int) -> None:
            temporary = self._write_temporary(full, whole, patient=number > 1)
            try:
                self._ask(lambda client: client.rename(temporary, full, False))
            except FileExistsError:
                self._discard(temporary)
                # the rename of an earlier attempt, or of an earlier failed call, may have been carried out
                if self.read(path, 0, len(whole) + 1) != whole:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), full) from None

        self._repeated(attempt, f"{full} can't be written")

    def replace(self, path: str, data: Buffer) -> None:
        full = self._full(path)
        whole = bytes(data)

        def attempt(number: int) -> None:
            temporary = self._write_temporary(full, whole, patient=number > 1)
            self._ask(lambda client: client.rename(temporary, full, True))

        self._repeated(attempt, f"{full} can't be replaced")

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        full = self._full(path)

        async def read(client: AsyncClient) -> bytes:
            reader = await client.read(full)
            # the client panics if asked for more than the file has
            end = len(reader) if length is None else min(len(reader), offset + length)
            return await reader.read_range(offset, end - offset) if offset < end else b""

        def attempt(number: int) -> bytes:
            return self._ask(read, length or 0)

        data = self._repeated(attempt, f"{full} can't be read", full)
        self._count("get", bytes_in=len(data))
        return data

    def size(self, path: str) -> int:
        return self._status(path, "size").length

    def written_seconds(self, path: str) -> float | None:
        """See :class:`~wal.storage.protocol.DatesObjects`. The time is the NameNode's."""
        return self._status(path, "time").modification_time / 1000

    def exists(self, path: str) -> bool:
        try:
            self.size(path)
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: str) -> Paths:
        return sorted(found.path for found in self._walk(prefix) if not found.hidden)

    def delete(self, path: str) -> None:
        self._delete(self._full(path))

    def free_bytes(self) -> int | None:
        """Return None: the client reports neither the cluster's free space nor the quotas above the root."""
        return None

    def remove_folder(self, path: str) -> None:
        """See :class:`~wal.storage.protocol.KeepsFolders`."""
        try:
            self._delete(self._full(path))
        except StoreError as error:
            if "non empty" not in str(error):
                raise

    def left_over(self, prefix: str, before_seconds: float) -> Paths:
        """See :class:`~wal.storage.protocol.LeavesTemporaries`. Times are the NameNode's."""
        before_ms = before_seconds * 1000
        return sorted(found.path for found in self._walk(prefix) if found.hidden and found.modified_ms < before_ms)

    def remove_left_over(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        if not TEMPORARY.fullmatch(name):
            raise ValueError(f"{path!r} is no temporary file")
        self._delete(f"{self._full(folder) if folder else self._root.rstrip('/')}/{name}")

    # ---- inner parts -------------------------------------------------------------------------------------------------

    def _full(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{check_path(path)}"

    def _status(self, path: str, what: str) -> FileStatus:
        full = self._full(path)
        self._count("head")
        status = self._repeated(
            lambda _: self._ask(lambda client: client.get_file_info(full)), f"the {what} of {full} can't be read", full
        )
        if status.isdir:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), full)
        return status

    def _delete(self, full: str) -> None:
        self._count("delete")
        self._repeated(lambda _: self._ask(lambda client: client.delete(full, False)), f"{full} can't be deleted")

    def _walk(self, prefix: str) -> Sequence[_ListedFile]:
        """Return every file below the folder, temporary ones too.

        The client's own recursion is not used, because it stops when a folder is deleted during the walk (INV-5).
        """
        root = self._root.rstrip("/")
        folders = [self._full(prefix) if prefix else self._root]
        files = []
        while folders:
            folder = folders.pop()
            with suppress(FileNotFoundError):  # deleted since it was listed
                for entry in self._entries(folder):
                    name = entry.path.rpartition("/")[2]
                    hidden = name.startswith(".")
                    if entry.isdir and not hidden:
                        folders.append(entry.path)
                    elif not entry.isdir and entry.path != folder and (not hidden or TEMPORARY.fullmatch(name)):
                        files.append(_ListedFile(entry.path[len(root) + 1 :], entry.modification_time, hidden))
        return files

    def _entries(self, folder: str) -> Sequence[FileStatus]:
        async def entries(client: AsyncClient) -> Sequence[FileStatus]:
            return [entry async for entry in client.list_status(folder)]

        self._count("list")
        return self._repeated(lambda _: self._ask(entries), f"{folder} can't be listed", folder)

    def _write_temporary(self, full: str, data: bytes, patient: bool) -> str:
        """Write a closed, durable file beside ``full``; return its path. ``list`` never shows it; a kill may leave it behind."""
        folder, _, name = full.rpartition("/")
        temporary = f"{folder}/.{name}.{secrets.token_hex(8)}.tmp"
        options = WriteOptions(
            # while a block is written, quotas and disks are charged its block size: keep it small for small files
            block_size=self._block_bytes or min(128, max(1, -(-len(data) // _MIB))) * _MIB,
            replication=self._replication,
            permission=0o600,
            overwrite=False,
            create_parent=True,
        )

        async def write(client: AsyncClient) -> None:
            writer = await client.create(temporary, options)
            if data:
                await writer.write(data)
            began = asyncio.get_running_loop().time()
            await writer.hsync()
            took = asyncio.get_running_loop().time() - began
            if patient:
                await writer.close()
            else:
                await _close(client, writer, temporary, len(data), max(_CLOSE_SECONDS_MIN, _CLOSE_PER_SYNC * took))

        self._count("put", bytes_out=len(data))
        try:
            self._ask(write, len(data))
        except (FileExistsError, FileNotFoundError) as error:
            # about the temporary file, such as a lost lease: it says nothing about the final name
            self._discard(temporary)
            raise TransientError(first_line(str(error))) from error
        except BaseException:
            self._discard(temporary)
            raise
        return temporary

    def _discard(self, temporary: str) -> None:
        with suppress(StoreError, OSError):  # otherwise it stays behind, hidden, until `wal repair` deletes it
            self._ask(lambda client: client.delete(temporary, False))

    def _ask(self, request: Callable[[AsyncClient], Coroutine[Any, Any, Answer]], data_bytes: int = 0) -> Answer:
        """Run one attempt of ``request``; ``data_bytes`` lengthen its time-out.

        Raises FileExistsError, FileNotFoundError, NotADirectoryError, OutOfSpaceError, StoreError, or TransientError.
        """
        opened = connection(self._authority, self._options)
        seconds = self._request_seconds * (1 + data_bytes / _MIB)
        try:
            return opened.run(request, seconds)
        except (FileExistsError, FileNotFoundError, StoreError):
            raise
        except asyncio.TimeoutError:
            raise TransientError(f"no answer within {seconds:g} s") from None
        except OSError as error:
            text = str(error)
            if text == _CLOSED and not opened.logs_in:
                text += (
                    '; if HDFS asks for Kerberos, set "hadoop.security.authentication" = "kerberos" in [storage.hdfs]'
                )
            raise TransientError(text) from error
        except Exception as error:
            raise _store_error(error) from error
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # raised by the Rust client for its own bugs
                raise
            raise TransientError(f"the client failed: {error}") from error

    def _repeated(self, attempt: Callable[[int], Answer], what: str, missing: str | None = None) -> Answer:
        """Return what ``attempt`` returns; retry it after a TransientError.

        ``what``: what failed, for errors. ``missing``: the path in FileNotFoundError; None if that is an error of the store.
        """
        attempts = retrying(
            seconds=self._retry_seconds,
            wait=tenacity.wait_random_exponential(0.1, _DELAY_SECONDS_MAX),
            sleep=tenacity.sleep_using_event(threading.Event()),  # never set
            what=f"{self._authority}: {what}",
        )
        try:
            for trial in attempts:
                with trial:
                    return attempt(trial.retry_state.attempt_number)
        except (FileNotFoundError, NotADirectoryError) as error:
            if missing is None:
                raise StoreError(f"{self._authority}: {what}: {first_line(str(error))}") from error
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), missing) from None
        except StoreError as error:
            kind = OutOfSpaceError if isinstance(error, OutOfSpaceError) else StoreError
            raise kind(f"{self._authority}: {what}: {error}") from error
        raise AssertionError("tenacity ends by an answer or an error")

    def _count(self, kind: str, bytes_in: int = 0, bytes_out: int = 0) -> None:
        with self._counting:
            self._requests.update({kind: 1, "bytes_in": bytes_in, "bytes_out": bytes_out})


class HdfsFolders(HdfsStorage):
    """Whole folders (see :class:`~wal.storage.protocol.Folders`); the NameNode moves one at a time."""

    def make_folder(self, path: str) -> None:
        full = self._full(path)
        self._count("put")
        self._repeated(lambda _: self._ask(lambda client: client.mkdirs(full, 0o755, True)), f"{full} can't be created")

    def put(self, path: str, data: Buffer) -> None:
        full, whole = self._full(path), bytes(data)

        async def write(client: AsyncClient) -> None:
            writer = await client.create(full, WriteOptions(overwrite=True, create_parent=False))
            await writer.write(whole)
            await writer.hsync()
            await writer.close()

        self._count("put", bytes_out=len(whole))
        self._repeated(lambda _: self._ask(write, len(whole)), f"{full} can't be written", full)

    def folders(self, path: str) -> Sequence[str]:
        full = self._full(path)
        try:
            return sorted(entry.path.rpartition("/")[2] for entry in self._entries(full) if entry.isdir)
        except FileNotFoundError:
            return []

    def move_folder(self, old: str, new: str) -> None:
        source, target = self._full(old), self._full(new)
        parent = target.rpartition("/")[0]

        def attempt(_: int) -> None:
            self._ask(lambda client: client.mkdirs(parent, 0o755, True))
            self._ask(lambda client: client.rename(source, target, False))

        self._count("put")
        self._repeated(attempt, f"{source} can't be moved", source)

    def delete_folder(self, path: str) -> None:
        full = self._full(path)
        self._count("delete")
        with suppress(FileNotFoundError):
            self._repeated(
                lambda _: self._ask(lambda client: client.delete(full, True)), f"{full} can't be deleted", full
            )

    def sync_folder(self, path: str) -> None:
        """Do nothing: what :meth:`put` wrote is synced already.

        What Spark wrote is as durable as the DataNodes make closed files (``dfs.datanode.synconclose``); no request can sync it
        later.
        """

    def _full(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{check_folder_path(path)}"


async def _close(client: AsyncClient, writer: AsyncFileWriter, path: str, length: int, seconds: float) -> None:
    """Close a synced file of ``length`` bytes. An attempt that takes longer than ``seconds`` is cancelled and repeated."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _CLOSE_SECONDS_MAX
    asked = 0
    while loop.time() <= until:
        asked += 1
        try:
            return await asyncio.wait_for(writer.close(), seconds)
        except asyncio.TimeoutError:
            continue
        except RuntimeError as error:
            if asked == 1 or "LeaseExpiredException" not in str(error):
                raise
            # an earlier attempt closed the file, and only its answer was cut off
            if (await client.get_file_info(path)).length != length:
                raise
            return None
    raise TransientError(f"the file was not closed within {_CLOSE_SECONDS_MAX:g} s")


def _store_error(error: Exception) -> StoreError | NotADirectoryError:
    """Return the client's error as an error of the store."""
    message = str(error)
    if kerberos := _KERBEROS.match(message):
        login = f"the Kerberos login failed: {first_line(kerberos['message'])}"
        if _NO_KDC in login:
            return TransientError(login)
        return StoreError(f"{login}; run kinit, or check kerberos_principal and kerberos_keytab in [storage.hdfs]")
    remote = _REMOTE.match(message)
    text = f"{remote['kind'].rpartition('.')[2]}: {first_line(remote['message'])}" if remote else first_line(message)
    if "(is not a directory)" in text:
        return NotADirectoryError(errno.ENOTDIR, text)
    if _FULL.search(message) or (remote and _QUOTA.search(remote["kind"])):
        return OutOfSpaceError(text)
    return StoreError(text) if remote and not _TRANSIENT.search(remote["kind"]) else TransientError(text)


def _own(options: dict[str, str], key: str, parse: Callable[[str], Value], default: Value) -> Value:
    """Remove one of this module's own options from the client's options. Return its parsed value; ``default`` if it is not
    set."""
    if key not in options:
        return default
    text = options.pop(key)
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"storage.hdfs.{key} = {text!r}: {error}") from None
