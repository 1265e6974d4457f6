"""A folder of HDFS as a store of whole objects: ``hdfs://``, over hdfs-native (no JVM).

HDFS could append, but an open file is of little use for a log: its readers don't see what is synced, a killed writer keeps
its lease, and a refused append may leave half of itself behind. So each object is a closed file: written under a hidden
name, synced (``hsync``), closed, and then given its name by a rename that fails where the name is taken. The NameNode
decides renames one after the other, so of many racing writers one wins, and nothing half-written ever has a final name.

Settings of the client (``[storage.hdfs]``): every ``dfs.*``, ``fs.*`` and ``hadoop.*`` that hdfs-native knows, over
``core-site.xml`` and ``hdfs-site.xml`` in ``HADOOP_CONF_DIR``; ``dfs.blocksize`` and ``dfs.replication`` for what is written
here; ``kerberos_principal``, ``kerberos_keytab``, ``kerberos_cache``.
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
from urllib.parse import urlsplit

import tenacity
from hdfs_native import AsyncClient, AsyncFileWriter, FileStatus, WriteOptions

from forebay.model.errors import OutOfSpaceError, StoreError, UsageError
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

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MIB = 1024 * 1024
_DELAY_SECONDS_MAX = 2.0  # between two attempts
#: hdfs-native waits half a second when the NameNode has not yet heard of the last block, which it hears in milliseconds:
#: closing is cut off after this many times the sync before took, and asked again
_CLOSE_PER_SYNC = 4
_CLOSE_SECONDS_MIN = 0.05
#: a closing that was cut off too early never ends; then all is written again, and closed with patience
_CLOSE_SECONDS_MAX = 1.0
#: what a NameNode or DataNode says that may be over soon
_TRANSIENT = re.compile(
    r"\.(?:SafeMode|Standby|Retriable|ObserverRetryOnActive|ServerTooBusy)Exception$|^java\.io\.IOException$"
)
_QUOTA = re.compile(r"Quota\w*ExceededException$")
_FULL = re.compile(
    r"DiskOutOfSpaceException|No space left on device|[1-9]\d* datanode\(s\) running and no node\(s\) are excluded"
)
_REMOTE = re.compile(r'(?:Fatal)?RPCError\("(?P<kind>[\w.$]+)", "(?P<words>.*)', re.DOTALL)

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
    """``hdfs://name-node:port/folder`` or ``hdfs://name-service/folder``; raises UsageError for another url.

    ``options``: the client's, and ``request_timeout`` (of one request, or of 1 MiB of data) and ``retry_timeout`` (after so
    long nothing is tried again; longer than a NameNode needs to restart).
    """

    appendable = False

    def __init__(self, url: str, options: Mapping[str, str] = MappingProxyType({})) -> None:
        parts = urlsplit(url)
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
        self._options = _client_options(own, parts.port is not None)
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
                # the rename of an earlier attempt, or of an earlier call that failed, may have landed
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
            # it must not be asked for more than there is: it would panic
            end = len(reader) if length is None else min(len(reader), offset + length)
            return await reader.read_range(offset, end - offset) if offset < end else b""

        def attempt(number: int) -> bytes:
            return self._ask(read, length or 0)

        data = self._repeated(attempt, f"{full} can't be read", full)
        self._count("get", bytes_in=len(data))
        return data

    def size(self, path: str) -> int:
        full = self._full(path)
        self._count("head")
        status = self._repeated(
            lambda _: self._ask(lambda client: client.get_file_info(full)), f"{full} can't be looked at", full
        )
        if status.isdir:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), full)
        return status.length

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
        """None: the client can't tell what is free of the cluster, nor the quotas above the root."""
        return None

    def remove_folder(self, path: str) -> None:
        """See :class:`~wal.storage.protocol.KeepsFolders`."""
        try:
            self._delete(self._full(path))
        except StoreError as error:
            if "non empty" not in str(error):
                raise

    def left_over(self, prefix: str, before_seconds: float) -> Paths:
        """By the NameNode's clock (see :class:`~wal.storage.protocol.LeavesTemporaries`)."""
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

    def _delete(self, full: str) -> None:
        self._count("delete")
        self._repeated(lambda _: self._ask(lambda client: client.delete(full, False)), f"{full} can't be deleted")

    def _walk(self, prefix: str) -> Sequence[_ListedFile]:
        """Every file below the folder, temporaries too. Not by the client's own recursion: one folder that is deleted
        meanwhile would end it (INV-5)."""
        root = self._root.rstrip("/")
        folders = [self._full(prefix) if prefix else self._root]
        files = []
        while folders:
            folder = folders.pop()
            with suppress(FileNotFoundError):  # deleted meanwhile
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
        """A closed, durable file beside ``full`` whose name ``list`` never shows: a kill may leave it behind."""
        folder, _, name = full.rpartition("/")
        temporary = f"{folder}/.{name}.{secrets.token_hex(8)}.tmp"
        options = WriteOptions(
            # a small block is charged to quotas and disks at its own size while it is written, not at 128 MiB
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
            # of the temporary file (its lease was lost, say): says nothing about the name that is wanted
            self._discard(temporary)
            raise TransientError(first_line(str(error))) from error
        except BaseException:
            self._discard(temporary)
            raise
        return temporary

    def _discard(self, temporary: str) -> None:
        with suppress(StoreError, OSError):  # else it is left behind: hidden, and `wal repair` removes it
            self._ask(lambda client: client.delete(temporary, False))

    def _ask(self, request: Callable[[AsyncClient], Coroutine[Any, Any, Answer]], data_bytes: int = 0) -> Answer:
        """One attempt. Raises FileExistsError, FileNotFoundError, NotADirectoryError, OutOfSpaceError, StoreError, or
        TransientError."""
        opened = connection(self._authority, self._options)
        seconds = self._request_seconds * (1 + data_bytes / _MIB)
        try:
            return opened.run(request, seconds)
        except (FileExistsError, FileNotFoundError, StoreError):
            raise
        except asyncio.TimeoutError:
            raise TransientError(f"no answer within {seconds:g} s") from None
        except OSError as error:
            raise TransientError(str(error)) from error
        except Exception as error:
            raise _store_error(error) from error
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of the client, for what it did not foresee
                raise
            raise TransientError(f"the client failed: {error}") from error

    def _repeated(self, attempt: Callable[[int], Answer], what: str, missing: str | None = None) -> Answer:
        """What ``attempt`` returns, tried again after what may pass. ``missing``: what FileNotFoundError names."""
        attempts = tenacity.Retrying(
            stop=tenacity.stop_after_delay(self._retry_seconds),
            wait=tenacity.wait_random_exponential(0.1, _DELAY_SECONDS_MAX),
            retry=tenacity.retry_if_exception_type(TransientError),
            sleep=tenacity.sleep_using_event(threading.Event()),  # which nobody sets
            reraise=True,
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
    """Whole folders (see :class:`~wal.storage.protocol.Folders`), by the NameNode, which moves one at a time."""

    def put(self, path: str, data: Buffer) -> None:
        full, whole = self._full(path), bytes(data)

        async def write(client: AsyncClient) -> None:
            writer = await client.create(full, WriteOptions(overwrite=True, create_parent=True))
            await writer.write(whole)
            await writer.hsync()
            await writer.close()

        self._count("put", bytes_out=len(whole))
        self._repeated(lambda _: self._ask(write, len(whole)), f"{full} can't be written")

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
        """Nothing: what :meth:`put` wrote is synced. What Spark wrote is as durable as the DataNodes make closed files
        (``dfs.datanode.synconclose``), which nobody can ask for afterwards."""

    def _full(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{check_folder_path(path)}"


async def _close(client: AsyncClient, writer: AsyncFileWriter, path: str, length: int, seconds: float) -> None:
    """Closes a synced file of ``length`` bytes, and asks again each ``seconds``."""
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
            # no longer open for writing: the NameNode did what was asked before, and only its answer was cut off
            if (await client.get_file_info(path)).length != length:
                raise
            return None
    raise TransientError(f"the file was not closed within {_CLOSE_SECONDS_MAX:g} s")


def _store_error(error: Exception) -> StoreError | NotADirectoryError:
    """What the client raised for an answer of the cluster, as an error of the store."""
    words = str(error)
    remote = _REMOTE.match(words)
    text = f"{remote['kind'].rpartition('.')[2]}: {first_line(remote['words'])}" if remote else first_line(words)
    if "(is not a directory)" in text:
        return NotADirectoryError(errno.ENOTDIR, text)
    if _FULL.search(words) or (remote and _QUOTA.search(remote["kind"])):
        return OutOfSpaceError(text)
    return StoreError(text) if remote and not _TRANSIENT.search(remote["kind"]) else TransientError(text)


def _client_options(options: Mapping[str, str], one_name_node: bool) -> dict[str, str]:
    """Each request is sent to each NameNode once; what happens then is for the attempts here to say. (The client's own
    pauses panic in its asynchronous form.)"""
    return {"dfs.client.failover.max.attempts": "0" if one_name_node else "1", **options}


def _own(options: dict[str, str], key: str, parse: Callable[[str], Value], default: Value) -> Value:
    """The option of that name, which is not for the client, and is removed."""
    if key not in options:
        return default
    text = options.pop(key)
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"storage.hdfs.{key} = {text!r}: {error}") from None
