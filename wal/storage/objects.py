"""Stores of whole objects that create only if absent: ``s3://`` (and what speaks its protocol), ``gs://``, ``abfs://``.

One class over fsspec's asynchronous file systems. Their own retries are switched off as far as possible, since only this module
knows what a retry means. (aiohttp still sends a PUT again when a kept connection breaks.) So if a name is taken, an earlier
attempt of the same put may have taken it. The object is then read back and compared. Equal bytes are this writer's own, because
every object that the log writes contains a random number or its owner's name.
"""

from __future__ import annotations

import asyncio
import copy
import errno
import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import fsspec  # type: ignore[import-untyped]
import tenacity
from fsspec.asyn import sync  # type: ignore[import-untyped]

from forebay.model.errors import StoreError, UsageError
from forebay.model.text import split_url
from wal.storage.object_errors import BeyondTheEndError, BrokenConnectionError, UploadEndedError, translated
from wal.storage.object_options import ObjectLimits, refuse_unknown
from wal.storage.object_pages import PAGES
from wal.storage.protocol import AppendFile, Paths, TransientError, check_path, is_path, not_appendable
from wal.storage.retries import retrying

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

#: minimum bandwidth that a request's time-out allows for
BYTES_PER_SECOND_MIN = 1_000_000
CONNECT_SECONDS = 5.0
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.1, 2.0
#: the largest object that S3 takes in one request; s3fs sends smaller ones in parts too, from two of them on
ONE_PUT_BYTES_MAX = 5 << 30
#: parts of one object sent at the same time; connections kept
PARTS_AT_ONCE = 4
CONNECTIONS_MAX = 32
#: objects that are asked for at the same time: each group has the time of one request
_ASKED_TOGETHER = 256

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{1,254}")  # abfs: container@account
#: scheme → the package with its file system, and the options that make it create only if absent
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "abfs": "adlfs"}
_CREATE: dict[str, dict[str, Any]] = {"s3": {"mode": "create"}, "gs": {"mode": "create"}, "abfs": {"overwrite": False}}
#: keys of the file systems' entries with the time of the last write
_WRITTEN = ("LastModified", "last_modified", "mtime", "updated")
_KINDS = {
    "put_object": "put",
    "create_multipart_upload": "put",
    "upload_part": "put",
    "complete_multipart_upload": "put",
    "get_object": "get",
    "head_object": "head",
    "head_bucket": "head",
    "list_objects_v2": "list",
    "delete_object": "delete",
    "abort_multipart_upload": "delete",
}
_NO_RANGE = "the store ignores the requested range; use a store, or a release of it, that honours Range"


@dataclass(slots=True)
class _Process:
    """The client and the request counts of one process. A forked process gets its own, because it can't use its parent's
    connections and locks."""

    files: Any
    requests: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, kind: str, number: int = 1) -> None:
        with self.lock:
            self.requests[kind] += number


def open_store(url: str, options: Mapping[str, Any]) -> ObjectStorage:
    """Return the store at ``s3://bucket/prefix`` (``gs``, ``abfs`` likewise). Raises UsageError for a URL of another form."""
    parts = split_url(url)
    prefix = parts.path.strip("/")
    if not _BUCKET.fullmatch(parts.netloc) or parts.query or parts.fragment or not (not prefix or is_path(prefix)):
        # the URL is not shown: it may hold a key
        raise UsageError(
            f"the URL of a store must have the form {parts.scheme}://bucket/prefix, without keys or parameters"
        )
    bucket, _, account = parts.netloc.partition("@")
    if account and parts.scheme == "abfs":  # adlfs would take it for a part of the container's name, and list nothing
        options = {"account_name": account.partition(".")[0], **options}
        if "." in account:
            options = {"account_host": account.replace(".dfs.", ".blob.", 1), **options}
    else:
        bucket = parts.netloc
    storage = ObjectStorage(parts.scheme, f"{bucket}/{prefix}" if prefix else bucket, options)
    storage.url = f"{parts.scheme}://{parts.netloc}/{prefix}".rstrip("/")
    return storage


class ObjectStorage:
    """A store of objects below a prefix of a bucket. One class, because every operation shares the client of its process, the
    retries and the translation of errors.

    ``place``: bucket and prefix. ``options``: those of :class:`ObjectLimits`; all others go to fsspec's file system.
    """

    appendable = False

    def __init__(self, scheme: str, place: str, options: Mapping[str, Any]) -> None:
        self.url = f"{scheme}://{place}"
        self._scheme = scheme
        self._root = place.rstrip("/")
        self._options = dict(options)
        self._limits = ObjectLimits.taken_from(self._options, scheme)
        self._retry_seconds = self._limits.retry_seconds
        self._processes: dict[int, _Process] = {}

    def tried_for(self, seconds: float) -> ObjectStorage:
        other = copy.copy(self)
        other._retry_seconds = seconds
        return other

    def create(self, path: str) -> AppendFile:
        raise not_appendable(self.url)

    def put_new(self, path: str, data: Buffer) -> None:
        self._put_new(path, bytes(data), lambda key, whole: self._put(key, whole, create=True))

    @property
    def sends_parts(self) -> bool:
        """See :class:`~wal.storage.protocol.SendsParts`. False for ``gs`` and ``abfs``: how they send parts is unknown."""
        return self._scheme == "s3" and 2 * self._limits.part_bytes < ONE_PUT_BYTES_MAX

    def put_new_in_parts(self, path: str, data: Buffer) -> None:
        self._put_new(path, bytes(data), self._put_in_one_part)

    def _put_new(self, path: str, whole: bytes, send: Callable[[str, bytes], None]) -> None:
        key = self._key(path)

        def put() -> None:
            try:
                send(key, whole)
            except FileExistsError:
                ours = self._holds(key, whole)
            except (BrokenConnectionError, UploadEndedError) as error:
                # a store that refuses before it has read everything may close the connection, and its answer is lost;
                # behind a proxy that repeats requests, an upload in parts ends so each time
                ours = self._holds_after(error, key, whole)
            else:
                return
            if not ours:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None

        self._repeated(put)

    def replace(self, path: str, data: Buffer) -> None:
        key, whole = self._key(path), bytes(data)

        def put() -> None:
            try:
                self._put(key, whole, create=False)
            except UploadEndedError as error:
                if not self._holds_after(error, key, whole):
                    raise

        self._repeated(put)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        key = self._key(path)
        if length == 0:
            length = 1  # a range can't be empty, but a missing object must raise
            return self._repeated(lambda: self._get(key, offset, length))[:0]
        return self._repeated(lambda: self._get(key, offset, length))

    def size(self, path: str) -> int:
        key = self._key(path)
        found = self._repeated(lambda: self._call("head", f"{key}: its size can't be read", "_info", key))
        if found["type"] != "file":
            raise _absent(path)
        return int(found["size"])

    def written_seconds(self, path: str) -> float | None:
        """See :class:`~wal.storage.protocol.DatesObjects`."""
        key = self._key(path)
        found = self._repeated(lambda: self._call("head", f"{key}: its time can't be read", "_info", key))
        if found["type"] != "file":
            raise _absent(path)
        written = next((found[name] for name in _WRITTEN if found.get(name) is not None), None)
        return written.timestamp() if isinstance(written, datetime) else None

    def exists(self, path: str) -> bool:
        """Return whether the object exists, by one request. The file system's own method would also look for a folder of that
        name."""
        return bool(self.existing([path]))

    def existing(self, paths: Sequence[str]) -> Paths:
        """See :class:`~wal.storage.protocol.AsksTogether`."""
        there: list[str] = []
        for at in range(0, len(paths), _ASKED_TOGETHER):
            asked = paths[at : at + _ASKED_TOGETHER]
            found = self._repeated(partial(self._exist, [self._key(path) for path in asked]))
            there += (path for path, exists in zip(asked, found, strict=True) if exists)
        return there

    def list(self, prefix: str) -> Paths:
        folder = f"{self._root}/{check_path(prefix)}" if prefix else self._root
        bucket, _, start = f"{folder}/".partition("/")
        above = len(f"{self._root}/") - len(f"{bucket}/")  # of the root's own prefix
        what = f"{folder} can't be listed"
        paths: list[str] = []
        before, token = None, ""
        while before is None or token:
            if token == before:
                raise StoreError(f"{self._scheme}://{what}: the store answers the same page again")
            before = token
            page = partial(self._call, "list", what, PAGES[self._scheme], bucket, start, token)
            try:
                names, token = self._repeated(page)
            except FileNotFoundError:
                raise StoreError(f"{self._scheme}://{what}: there is no bucket or container {bucket!r}") from None
            paths += (path for name in names if name.startswith(start) and is_path(path := name[above:]))
        return sorted(paths)

    def delete(self, path: str) -> None:
        key = self._key(path)

        def delete() -> None:
            try:
                self._call("delete", f"{key} can't be deleted", "_rm_file", key)
            except FileNotFoundError:
                return

        self._repeated(delete)

    def free_bytes(self) -> int | None:
        return None

    @property
    def requests(self) -> Mapping[str, int]:
        process = self._process()
        with process.lock:
            return dict(process.requests)

    # ---- one request -------------------------------------------------------------------------------------------------

    def _put(self, key: str, data: bytes, create: bool) -> None:
        options = dict(_CREATE[self._scheme]) if create else {}
        if self._scheme == "s3":
            options |= {"chunksize": self._limits.part_bytes, "max_concurrency": PARTS_AT_ONCE}
        try:
            self._call("put", f"{key} can't be written", "_pipe_file", key, data, bytes_out=len(data), **options)
        except FileNotFoundError as error:
            raise UploadEndedError(f"{self._scheme}://{key} can't be written: {error}") from None

    def _put_in_one_part(self, key: str, data: bytes) -> None:
        """Send the object by a multipart upload, as s3fs sends a large object, but with a single part. S3 accepts a last part
        of any size."""

        async def send(files: Any) -> None:
            bucket, name, _ = files.split_path(key)
            place = {"Bucket": bucket, "Key": name}
            upload = await files._call_s3("create_multipart_upload", **place)
            place["UploadId"] = upload["UploadId"]
            try:
                part = await files._call_s3("upload_part", PartNumber=1, Body=data, **place)
                parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
                await files._call_s3("complete_multipart_upload", MultipartUpload=parts, IfNoneMatch="*", **place)
            except Exception:
                with suppress(Exception):
                    await files._call_s3("abort_multipart_upload", **place)
                raise

        try:
            self._call("put", f"{key} can't be written in parts", send, bytes_out=len(data))
        except FileNotFoundError as error:
            raise UploadEndedError(f"{self._scheme}://{key} can't be written in parts: {error}") from None

    def _holds(self, key: str, whole: bytes) -> bool:
        try:
            return self._get(key, 0, len(whole) + 1) == whole
        except FileNotFoundError:  # deleted since
            raise TransientError(f"{self._scheme}://{key} was deleted between two requests") from None

    def _holds_after(self, error: StoreError, key: str, whole: bytes) -> bool:
        """Return whether a put that ended with ``error`` has stored the object. Raises ``error`` if the store does not answer."""
        try:
            return self._holds(key, whole)
        except StoreError:
            raise error from None

    def _get(self, key: str, offset: int, length: int | None) -> bytes:
        until = None if length is None else offset + length
        try:
            data: bytes = self._call(
                "get", f"{key} can't be read", "_cat_file", key, start=offset, end=until, bytes_in=length or 0
            )
        except BeyondTheEndError:
            return b""
        if length is not None and len(data) > length:
            raise StoreError(f"{self._scheme}://{key} can't be read: {_NO_RANGE}")
        self._process().count("bytes_in", len(data))
        return data

    def _exist(self, keys: Sequence[str]) -> Sequence[bool]:
        """Return for each key whether its object exists, by one request each, all at the same time."""

        async def ask(files: Any) -> Sequence[Any]:
            first_bytes = (files._cat_file(key, start=0, end=1) for key in keys)
            return await asyncio.gather(*first_bytes, return_exceptions=True)

        found: list[bool] = []
        more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        answers = self._call("get", f"{keys[0]}{more} can't be read", ask, times=len(keys))
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, Exception):
                error = translated(answer, f"{self._scheme}://{key} can't be read", self._limits.request_seconds)
                if not isinstance(error, FileNotFoundError | BeyondTheEndError):
                    raise error from None
                found.append(isinstance(error, BeyondTheEndError))
            else:
                self._process().count("bytes_in", len(answer))
                found.append(True)
        return found

    def _call(
        self,
        kind: str,
        what: str,
        method: str | Callable[..., Any],
        *arguments: Any,
        bytes_out: int = 0,
        bytes_in: int = 0,
        times: int = 1,
        **options: Any,
    ) -> Any:
        """Run one call: a method of the file system by its name, or a function that gets the file system and sends ``times``
        requests.

        Its time-out grows with the bytes sent and received. Raises FileExistsError, FileNotFoundError, BeyondTheEndError,
        TransientError, StoreError.
        """
        process = self._process()
        if self._scheme != "s3":  # s3: counted request by request
            process.count(kind, times)
        if bytes_out:
            process.count("bytes_out", bytes_out)
        seconds = self._limits.request_seconds + max(bytes_out, bytes_in) / BYTES_PER_SECOND_MIN
        try:
            call = partial(method, process.files) if callable(method) else getattr(process.files, method)
            return sync(process.files.loop, call, *arguments, timeout=seconds, **options)
        except (KeyboardInterrupt, SystemExit):
            raise
        except Exception as error:
            raise translated(error, f"{self._scheme}://{what}", seconds) from None

    def _repeated(self, request: Callable[[], T]) -> T:
        attempts = retrying(
            seconds=self._retry_seconds,
            attempts_min=2,
            wait=tenacity.wait_random_exponential(RETRY_SECONDS_MIN, RETRY_SECONDS_MAX),
            sleep=self._pause,
        )
        return attempts(request)

    def _pause(self, seconds: float) -> None:
        """Wait between two attempts."""
        tenacity.nap.sleep(seconds)

    # ---- the client --------------------------------------------------------------------------------------------------

    def _process(self) -> _Process:
        """Return this process's client, opened at first use: Spark's workers fork, and no connection survives a fork."""
        pid = os.getpid()
        process = self._processes.get(pid)
        return process or self._processes.setdefault(pid, _Process(self._open()))

    def _open(self) -> Any:
        options = dict(self._options)
        if self._scheme == "s3":
            own = {
                "connect_timeout": CONNECT_SECONDS,
                "read_timeout": self._limits.request_seconds,
                "max_pool_connections": CONNECTIONS_MAX,
                "retries": {"total_max_attempts": 1},
            }
            given = dict(options.get("config_kwargs", {}))
            # as over TLS: the request has a checksum of the body, and a signature of it would cost both sides
            given["s3"] = {"payload_signing_enabled": False, **given.get("s3", {})}
            options["config_kwargs"] = {**own, **given}
        try:
            if self._scheme == "s3":
                refuse_unknown(options)
            own = {"skip_instance_cache": True, "use_listings_cache": False}
            files = _file_system(self._scheme)(**own, **options)
        except ImportError:
            package = _PACKAGES[self._scheme]
            raise UsageError(f"{self.url} needs the package {package}: pip install 'forebay[{self._scheme}]'") from None
        except (TypeError, ValueError, KeyError) as error:
            raise UsageError(
                f"[storage.{self._scheme}]: the client refuses these settings: {error}; correct the section"
            ) from None
        if self._scheme == "s3":
            files.retries = 1
            self._attend_each(files)
        return files

    def _attend_each(self, files: Any) -> None:
        """Wrap each request of s3fs: count it, verify that a requested range was answered, and send bodies as plain bytes.

        botocore would convert a body to a file. It would ask the store for permission to send it, which costs a round trip, and
        then read it in pieces in another thread.
        """
        from botocore.handlers import convert_body_to_file_like_object  # type: ignore[import-untyped]

        call = files._call_s3
        known: Any = None

        async def attended(method: str, *arguments: Any, **options: Any) -> Any:
            nonlocal known
            self._process().count(_KINDS.get(method, "other"))
            client = await files.set_session()
            if client is not known:  # the first, or one with new credentials
                for request in ("PutObject", "UploadPart"):
                    client.meta.events.unregister(
                        f"before-parameter-build.s3.{request}", convert_body_to_file_like_object
                    )
                known = client
            answer = await call(method, *arguments, **options)
            if method == "get_object" and not _is_range(answer, options.get("Range", "")):
                answer["Body"].close()
                raise StoreError(f"{self._scheme}://{options['Bucket']}/{options['Key']} can't be read: {_NO_RANGE}")
            return answer

        files._call_s3 = attended

    def _key(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}"


def _file_system(scheme: str) -> Any:
    """Return the class of the file system. Raises ImportError if its package is missing."""
    if scheme != "gs":
        return fsspec.get_filesystem_class(scheme)
    from gcsfs.core import GCSFileSystem  # type: ignore[import-untyped]

    # gcsfs registers a class that asks for the bucket's kind by gRPC first, which neither a proxy nor another endpoint answers
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs a stack for every answer that is not 200
    return GCSFileSystem


def _is_range(answer: Any, asked: str) -> bool:
    """Return whether the answer contains the range ``asked``. If the range begins at the first byte, the whole object is
    accepted too."""
    whole = not asked or asked.startswith("bytes=0-")
    return whole or answer["ResponseMetadata"]["HTTPStatusCode"] == 206


def _absent(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
