"""The WAL's store as a receiver writes to it: the product's ``ObjectStorage`` and s3fs, request by request.

Objects of at least two parts are sent in parts. Before each request the writing thread pauses, and the scheduler chooses what
happens to it: an answer, no answer, a connection that is cut, or a proxy that repeats it. All other processes use the same
objects without requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import s3fs.core  # type: ignore[import-untyped]
from botocore.exceptions import (  # type: ignore[import-untyped]
    ClientError,
    ConnectionClosedError,
    ReadTimeoutError,
)
from fsspec.asyn import sync  # type: ignore[import-untyped]

from forebay.model.errors import OutOfSpaceError, StoreError
from tests.simulation.faulty import FaultyStorage
from tests.simulation.upload_faults import BROKEN, CUT, LATE, LOST, REPEATED, UNANSWERED
from wal.storage import objects
from wal.storage.object_options import ObjectLimits
from wal.storage.objects import ObjectStorage

_ENDPOINT = "http://store"


@dataclass(slots=True)
class _Upload:
    """An upload in parts. ``late``: the object of a completion that is carried out later."""

    path: str
    parts: dict[int, bytes] = field(default_factory=dict)
    late: tuple[str, bytes] | None = None


class Bucket:
    """The requests of S3's protocol over ``storage``. Uploads that no process completes or aborts stay."""

    def __init__(self, storage: FaultyStorage) -> None:
        self.storage = storage
        self.uploads: dict[str, _Upload] = {}
        self._count = 0

    def perform(self, method: str, request: dict[str, Any]) -> Any:
        """Carry a request out. Raises the errors of botocore."""
        try:
            self.storage.exists(request["Key"])  # raises if the store is away
            return getattr(self, f"_{method}")(request["Key"], request)
        except FileExistsError:
            raise _refused(412, "PreconditionFailed", method, Condition="If-None-Match") from None
        except FileNotFoundError:
            raise _refused(404, "NoSuchKey", method) from None
        except OutOfSpaceError:
            raise _refused(507, "QuotaExceeded", method) from None
        except StoreError:
            raise _refused(503, "ServiceUnavailable", method) from None

    def send_late(self, method: str, request: dict[str, Any]) -> None:
        """Let a request that creates an object be carried out later, or never."""
        path = request["Key"]
        if method == "put_object":
            self.storage.send_late(path, bytes(request["Body"]))
            return
        upload = self._of(request)
        upload.late = path, self._joined(upload, request)
        self.storage.send_late(*upload.late)

    def _put_object(self, path: str, request: dict[str, Any]) -> Any:
        self._create(path, bytes(request["Body"]), request)
        return {}

    def _create_multipart_upload(self, path: str, request: dict[str, Any]) -> Any:
        self._count += 1
        self.uploads[f"u{self._count}"] = _Upload(path)
        return {"UploadId": f"u{self._count}"}

    def _upload_part(self, path: str, request: dict[str, Any]) -> Any:
        number, data = request["PartNumber"], bytes(request["Body"])
        self._of(request).parts[number] = data
        return {"ETag": f"{number}:{len(data)}"}

    def _complete_multipart_upload(self, path: str, request: dict[str, Any]) -> Any:
        self._create(path, self._joined(self._of(request), request), request)
        del self.uploads[request["UploadId"]]
        return {}

    def _abort_multipart_upload(self, path: str, request: dict[str, Any]) -> Any:
        upload = self._of(request)
        del self.uploads[request["UploadId"]]
        if upload.late is not None:
            self.storage.late.remove(upload.late)
        return {}

    def _get_object(self, path: str, request: dict[str, Any]) -> Any:
        begin, end = map(int, request["Range"].removeprefix("bytes=").split("-"))
        data = self.storage.read(path, begin, end + 1 - begin)

        async def read() -> bytes:
            return data

        body = SimpleNamespace(read=read, close=lambda: None)
        return {"Body": body, "ResponseMetadata": {"HTTPStatusCode": 206}}

    def _of(self, request: dict[str, Any]) -> _Upload:
        """Return the upload that a request names. Raises ClientError if it was completed or aborted."""
        upload = self.uploads.get(request["UploadId"])
        if upload is not None and upload.late is not None and upload.late not in self.storage.late:
            del self.uploads[request["UploadId"]]  # its completion was carried out meanwhile, or never will be
            upload = None
        if upload is None:
            raise _refused(404, "NoSuchUpload", "an upload in parts")
        return upload

    def _joined(self, upload: _Upload, request: dict[str, Any]) -> bytes:
        return b"".join(upload.parts[part["PartNumber"]] for part in request["MultipartUpload"]["Parts"])

    def _create(self, path: str, data: bytes, request: dict[str, Any]) -> None:
        if request.get("IfNoneMatch") != "*":
            self.storage.replace(path, data)
        elif self.storage.holds(path):
            raise FileExistsError(path)  # also if the bytes are the same
        else:
            self.storage.put_new(path, data)


class Requests(s3fs.core.S3FileSystem):  # type: ignore[misc]  # it ships no types
    """s3fs over a bucket. ``choose``: pauses before a request, and returns what happens to it."""

    cachable = False  # fsspec would keep each instance, and so its world

    def __init__(self, bucket: Bucket, choose: Callable[[str], str]) -> None:
        super().__init__(asynchronous=True, use_listings_cache=False)
        self.retries = 1
        self._bucket = bucket
        self._choose = choose
        self._client = SimpleNamespace(meta=SimpleNamespace(events=SimpleNamespace(unregister=lambda *_: None)))

    async def set_session(self, refresh: bool = False, kwargs: Any = None) -> Any:
        return self._client

    async def _call_s3(self, method: str, *_: Any, **request: Any) -> Any:
        try:
            return self._performed(method, request)
        except ClientError as error:
            raise s3fs.core.translate_boto_error(error) from None

    def _performed(self, method: str, request: dict[str, Any]) -> Any:
        chosen = self._choose(method)
        if chosen == LATE:
            self._bucket.send_late(method, request)
        elif chosen == REPEATED:
            self._bucket.perform(method, request)
        if chosen in (LATE, LOST):
            raise ReadTimeoutError(endpoint_url=_ENDPOINT)
        if chosen == BROKEN:
            raise ConnectionClosedError(endpoint_url=_ENDPOINT)
        answer = self._bucket.perform(method, request)
        if chosen == UNANSWERED:
            raise ReadTimeoutError(endpoint_url=_ENDPOINT)
        if chosen == CUT:
            raise ConnectionClosedError(endpoint_url=_ENDPOINT)
        return answer


class UploadedStorage(ObjectStorage):
    """The product's store of objects over ``bucket``, which sends objects of two times ``part_bytes`` in parts."""

    def __init__(self, bucket: Bucket, part_bytes: int, choose: Callable[[str], str]) -> None:
        super().__init__("s3", "wal", {})
        self.url = bucket.storage.url
        self._limits = ObjectLimits(part_bytes=part_bytes)
        self._retry_seconds = 0.0
        self._bucket = bucket
        self._choose = choose

    def _open(self) -> Any:
        files = Requests(self._bucket, self._choose)
        self._attend_each(files)
        return files

    def _pause(self, seconds: float) -> None:
        """Repeat a request without a wait."""


def _refused(status: int, code: str, method: str, **more: str) -> ClientError:
    answer = {"Error": {"Code": code, "Message": code, **more}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, method)


def _finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in this thread: a simulated request pauses the thread, and never the coroutine."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a simulated request awaits something")


def _stepped_sync(loop: Any, call: Callable[..., Any], *arguments: Any, timeout: float, **options: Any) -> Any:
    if loop is None:  # of ``Requests``
        return _finished(call(*arguments, **options))
    return sync(loop, call, *arguments, timeout=timeout, **options)


class _Asyncio:
    """The module asyncio, whose ``gather`` and ``sleep`` also work without an event loop: in turn, and without a wait."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def gather(self, *coroutines: Coroutine[Any, Any, Any], **options: Any) -> Any:
        if asyncio._get_running_loop() is not None:
            return await asyncio.gather(*coroutines, **options)
        try:
            return [await coroutine for coroutine in coroutines]
        finally:
            for coroutine in coroutines:
                coroutine.close()

    async def sleep(self, delay: float) -> None:
        if asyncio._get_running_loop() is not None:
            await asyncio.sleep(delay)


objects.sync = _stepped_sync  # type: ignore[attr-defined]
s3fs.core.asyncio = _Asyncio()
