"""Stores of whole objects: URLs, options, a client for each process, and the probe of create-if-absent."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError, NoCredentialsError  # type: ignore[import-untyped]

from forebay.model.errors import DeniedError, StoreError, UsageError
from tests.support.stores.contract import STORES, Store
from wal.storage import MemoryStorage, SendsParts, check_path, existing, open_storage, tried_for
from wal.storage.object_errors import translated
from wal.storage.objects import ObjectStorage
from wal.storage.probe import probe

_names = itertools.count()

_FORKING_CLIENT = """
import json, os, sys
from wal.storage import open_storage
storage = open_storage(sys.argv[1], json.loads(sys.argv[2]))
storage.put_new("parent", b"1")
children = []
for number in range(2):
    child = os.fork()
    if child == 0:
        try:
            assert storage.read("parent") == b"1"
            storage.put_new(f"child-{number}", b"2")
            assert storage.requests["put"] == 1, storage.requests
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
assert codes == [0, 0], codes
assert storage.list("") == ["child-0", "child-1", "parent"]
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with STORES["s3"](tmp_path_factory.mktemp("s3")) as store:
        yield store


def test_a_forked_process_opens_connections_of_its_own(s3: Store) -> None:
    """Spark's workers fork, and no connection, lock or event loop survives that."""
    s3.begin()
    options = {"s3": {**s3.options["s3"], "request_timeout": "60s"}}  # each request is to be counted once
    command = [sys.executable, "-W", "ignore", "-c", _FORKING_CLIENT, s3.url, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_body_is_sent_without_waiting_and_with_its_checksum(s3: Store) -> None:
    """A request with ``Expect`` would cost each object of the log one more round trip."""
    s3.begin()
    assert s3.proxy is not None
    s3.open(request_timeout="60s").put_new("big", bytes(3 << 20))
    (put,) = [head.lower() for head in s3.proxy.heads if head.startswith(b"PUT")]
    assert b"expect" not in put
    assert b"x-amz-checksum-crc32" in put


def test_several_names_are_asked_for_at_the_same_time(s3: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.begin()
    storage = s3.open()
    assert isinstance(storage, ObjectStorage)
    storage.put_new("b", b"2")
    read, asked, all_asked = storage._process().files._cat_file, [0], asyncio.Event()

    async def with_all_others(key: str, **part: int) -> bytes:
        asked[0] += 1
        if asked[0] == 3:
            all_asked.set()
        await all_asked.wait()
        found: bytes = await read(key, **part)
        return found

    monkeypatch.setattr(storage._process().files, "_cat_file", with_all_others)
    assert existing(storage, ["a", "b", "c"]) == ["b"]
    assert asked == [3]  # one after the other, the first would have to be repeated


def test_many_names_are_asked_for_in_groups_that_each_have_the_time_of_one_request(
    s3: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6: thousands at the same time would exceed it whatever the store does, and so would each repetition."""
    s3.begin()
    storage = s3.open()
    assert isinstance(storage, ObjectStorage)
    names = [f"n{number}" for number in range(600)]
    groups: list[int] = []
    waiting: list[str] = []

    async def absent(key: str, start: int, end: int) -> bytes:
        waiting.append(key)
        await asyncio.sleep(0)  # all others of the group are sent before one is answered
        if waiting:
            groups.append(len(waiting))
            waiting.clear()
        raise FileNotFoundError(key)

    monkeypatch.setattr(storage._process().files, "_cat_file", absent)
    assert existing(storage, names) == []
    assert groups == [256, 256, 88]


def test_the_failure_of_one_of_several_questions_is_raised(s3: Store) -> None:
    """INV-4: a driver that was not answered does not go on as if nothing existed."""
    s3.begin()
    assert s3.proxy is not None
    storage = s3.open(request_timeout="400ms", retry_timeout="100ms")
    storage.put_new("b", b"2")
    s3.proxy.arm("status", "GET", status=403, times=1)
    with pytest.raises(DeniedError):
        existing(storage, ["a", "b"])


def test_tried_for_uses_the_same_client(s3: Store) -> None:
    s3.begin()
    storage = s3.open(request_timeout="60s")
    storage.put_new("name", b"1")
    assert tried_for(storage, 0.1).requests["put"] == 1
    memory = open_storage("memory://x")
    assert tried_for(memory, 0.1) is memory


def test_constructing_does_no_io_and_needs_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    storage = open_storage("s3://bucket/prefix/", {"s3": {"endpoint_url": "http://127.0.0.1:1"}})
    assert storage.url == "s3://bucket/prefix"
    assert not storage.appendable
    assert storage.free_bytes() is None


def test_endpoint_without_server_is_store_error(s3: Store) -> None:
    storage = open_storage("s3://bucket", {"s3": {"endpoint_url": "http://127.0.0.1:1", "retry_timeout": "100ms"}})
    with pytest.raises(StoreError, match="s3://bucket/a can't be written"):
        storage.put_new("a", b"x")


def test_missing_bucket_is_not_retried(s3: Store) -> None:
    assert s3.proxy is not None
    s3.begin()
    storage = open_storage("s3://nowhere/x", {"s3": {**s3.options["s3"], "request_timeout": "60s"}})
    for use in (lambda: storage.put_new("a", b"x"), lambda: storage.read("a"), lambda: storage.list("")):
        with pytest.raises(StoreError, match="bucket"):
            use()
    assert sum(s3.proxy.counts.values()) == 3


def test_wrong_credentials_are_reported_and_not_shown(s3: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-and-secret")
    with pytest.raises(StoreError, match="403") as caught:
        open_storage(s3.root, s3.options).put_new("a", b"x")
    assert "wrong-and-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong-and-secret", "SignatureDoesNotMatch"),
        ("AWS_ACCESS_KEY_ID", "nobody", "XAdminUserNotFound"),  # this server's word; AWS says InvalidAccessKeyId
    ],
)
def test_probe_with_wrong_credentials_says_what_is_denied_and_what_to_check(
    s3: Store, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError) as caught:
        probe(open_storage(s3.root, s3.options), "s", lambda: 7)
    message = str(caught.value)
    assert message.startswith(f"cannot write to {s3.root}: access denied ({reason}); check the credentials ")
    assert "probes" not in message and "wrong-and-secret" not in message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            ClientError(
                {"Error": {"Code": "InvalidAccessKeyId"}, "ResponseMetadata": {"HTTPStatusCode": 403}}, "PutObject"
            ),
            "InvalidAccessKeyId",
        ),
        (
            ClientError({"Error": {"Code": "403"}, "ResponseMetadata": {"HTTPStatusCode": 403}}, "HeadObject"),
            "HTTP 403",
        ),
        (NoCredentialsError(), "Unable to locate credentials"),
    ],
    ids=str,
)
def test_denied_access_raises_denied_error_with_the_stores_reason(error: Exception, reason: str) -> None:
    denied = translated(error, "s3://b/x can't be written", 1.0)
    assert isinstance(denied, DeniedError)
    assert denied.reason == reason
    assert str(denied).startswith("s3://b/x can't be written: ")
    copied = pickle.loads(pickle.dumps(denied))
    assert (str(copied), copied.reason) == (str(denied), reason)


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3:///x", "s3://key:secret@bucket/x", "s3://bucket/x?versionId=1", "s3://bucket/../x", "gs://b/.x"],
)
def test_invalid_urls_are_refused_without_showing_them(url: str) -> None:
    """A url may hold a secret."""
    with pytest.raises(UsageError, match="bucket/prefix") as caught:
        open_storage(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"request_timeout": "soon"}, "storage.s3.request_timeout"),
        ({"request_timeout": "0ms"}, "longer than 0ms"),
        ({"part_size": "1MB"}, "at least 5MiB"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_storage("s3://bucket/x", {"s3": options})


def test_error_names_the_missing_package_of_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.setitem(sys.modules, "gcsfs.core", None)
    with pytest.raises(UsageError, match=r"needs the package gcsfs: pip install 'forebay\[gs\]'"):
        open_storage("gs://bucket/x").exists("a")


def test_account_of_azure_is_no_part_of_the_containers_name() -> None:
    """adlfs would take it for one, and list nothing."""
    storage = open_storage("abfs://box@account.dfs.core.windows.net/some/folder")
    assert isinstance(storage, ObjectStorage)
    assert storage._key("a") == "box/some/folder/a"
    assert storage._options == {"account_name": "account", "account_host": "account.blob.core.windows.net"}


# ---- the probe -------------------------------------------------------------------------------------------------------


class Overwriting(MemoryStorage):
    """Accepts the condition, and checks it only among requests that arrive at the same time."""

    def put_new(self, path: str, data: object) -> None:
        if path.endswith("race"):
            super().put_new(path, data)  # type: ignore[arg-type]
        else:
            self.replace(path, data)  # type: ignore[arg-type]


class Racing(MemoryStorage):
    """Checks whether the name exists, and then writes it."""

    def __init__(self, name: str) -> None:
        super().__init__(name, appendable=False)
        self._all_looked = threading.Barrier(2)

    def put_new(self, path: str, data: object) -> None:
        if self.exists(check_path(path)):
            raise FileExistsError(path)
        if path.endswith("race"):
            with contextlib.suppress(threading.BrokenBarrierError):
                self._all_looked.wait(1.0)
        self.replace(path, data)  # type: ignore[arg-type]


def test_probe_refuses_store_that_overwrites() -> None:
    """INV-4."""
    storage = Overwriting(f"overwriting-{next(_names)}", appendable=False)
    with pytest.raises(UsageError, match=r"overwrote an object.*If-None-Match"):
        probe(storage, "s", itertools.count().__next__)
    assert storage.list("") == []


def test_probe_refuses_store_where_two_win_a_race() -> None:
    """INV-4."""
    storage = Racing(f"racing-{next(_names)}")
    with pytest.raises(UsageError, match=r"let \d of 8 create one name"):
        probe(storage, "s", itertools.count().__next__)


def test_probe_refuses_store_whose_listings_lack_a_new_object() -> None:
    class Stale(MemoryStorage):
        def list(self, prefix: str) -> list[str]:
            return [path for path in super().list(prefix) if not path.endswith("race")]

    with pytest.raises(UsageError, match="a listing of this store lacks an object"):
        probe(Stale(f"stale-{next(_names)}", appendable=False), "s", itertools.count().__next__)


_COMPLETED = b"""<?xml version="1.0" encoding="UTF-8"?>
<CompleteMultipartUploadResult><Bucket>forebay</Bucket><Key>k</Key><ETag>"e-1"</ETag></CompleteMultipartUploadResult>"""


@pytest.mark.parametrize(
    ("honoured", "message"), [(1, "overwrote an object.*in parts"), (2, r"let \d of 8 create one name.*in parts")]
)
def test_probe_refuses_store_that_ignores_the_condition_for_parts(s3: Store, honoured: int, message: str) -> None:
    """INV-4: small objects are created only if absent; of large ones the second completion overwrites the first."""
    assert s3.proxy is not None
    s3.begin()
    s3.proxy.arm("answer", "POST", part_of_path="uploadId=", skip=honoured, status=200, body=_COMPLETED)
    with pytest.raises(UsageError, match=rf"(?s){message}.*CompleteMultipartUpload.*part_size"):
        probe(s3.open(), "s", itertools.count().__next__)
    s3.proxy.calm()
    assert s3.open().list("") == []


def test_probe_sends_no_parts_to_store_without_parts(s3: Store) -> None:
    assert s3.proxy is not None
    s3.begin()
    probe(s3.open(part_size="3GiB", request_timeout="60s"), "s", itertools.count().__next__)
    assert s3.proxy.counts["POST"] == 0
    probe(s3.open(request_timeout="60s"), "s", itertools.count().__next__)
    assert s3.proxy.counts["POST"] == 20, "ten uploads, begun and completed"


def test_object_in_parts_is_created_once_and_may_be_repeated(s3: Store) -> None:
    """INV-4."""
    s3.begin()
    storage = s3.open(request_timeout="60s")
    assert isinstance(storage, SendsParts)
    storage.put_new_in_parts("a", b"mine")
    storage.put_new_in_parts("a", b"mine")
    storage.put_new("a", b"mine")
    for put in (storage.put_new_in_parts, storage.put_new):
        with pytest.raises(FileExistsError):
            put("a", b"other")
    assert storage.read("a") == b"mine"


@pytest.mark.parametrize(("offset", "length"), [(2, 3), (2, None), (5, 100), (0, 3)])
def test_a_store_that_ignores_range_is_refused_and_nothing_is_misread(
    s3: Store, offset: int, length: int | None
) -> None:
    """INV-5: the whole object in place of a range is other bytes, also where it is no longer than the range."""
    assert s3.proxy is not None
    s3.begin()
    storage = s3.open(request_timeout="60s")
    storage.put_new("a", b"abcdefg")
    s3.proxy.arm("answer", "GET", status=200, body=b"abcdefg")
    with pytest.raises(StoreError, match="the store ignores the requested range"):
        storage.read("a", offset, length)
    assert storage.read("a") == b"abcdefg"
    assert storage.read("a", 0, 7) == b"abcdefg"


def test_probe_does_nothing_on_appendable_store() -> None:
    storage = MemoryStorage(f"appendable-{next(_names)}")
    probe(storage, "s", lambda: pytest.fail("it was"))


def test_probe_of_silent_store_raises_store_error(s3: Store) -> None:
    assert s3.proxy is not None
    s3.begin()
    s3.proxy.arm("status", "PUT", status=503)
    with pytest.raises(StoreError, match="503"):
        probe(s3.open(retry_timeout="100ms"), "s", itertools.count().__next__)
