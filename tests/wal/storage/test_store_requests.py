"""Requests to stores over HTTP, with faults on the way: which are tried again, and how many there are."""

from __future__ import annotations

import re
from random import Random

import pytest

from forebay.model.errors import StoreError
from tests.support.stores.contract import Store
from wal.storage import existing, object_pages, objects, retries


@pytest.mark.parametrize("kind", ["reset", "reset-after", "silence", "silence-after", "half-answer", "half-request"])
@pytest.mark.parametrize("verb", ["PUT", "GET", "DELETE"])
def test_unanswered_request_is_retried(proxied: Store, kind: str, verb: str) -> None:
    """Whether it was carried out or not: the outcome is the same, and the object is this writer's."""
    assert proxied.proxy is not None
    proxied.open().put_new("s/before", b"before")
    storage = proxied.open(request_timeout="400ms")
    fault = proxied.proxy.arm(kind, verb, times=1)  # type: ignore[arg-type]
    if verb == "PUT":
        storage.put_new("s/a", b"mine" * 100)
        storage.replace("lease", b"l")
        assert storage.read("s/a") == b"mine" * 100
    elif verb == "GET":
        assert storage.read("s/before") == b"before"
        assert storage.exists("s/before")
        assert existing(storage, ["s/a", "s/before"]) == ["s/before"]
        assert storage.list("s") == ["s/before"]
    else:
        storage.delete("s/before")
        assert not storage.exists("s/before")
    assert fault.met == 1


@pytest.mark.parametrize("kind", ["reset-after", "silence-after"])
def test_put_without_answer_is_refused_if_another_writers_object_exists(proxied: Store, kind: str) -> None:
    """INV-4: only an object with equal bytes counts as the writer's own."""
    assert proxied.proxy is not None
    proxied.open().put_new("epochs/1", b"another writer's")
    storage = proxied.open(request_timeout="400ms")
    proxied.proxy.arm(kind, "PUT", times=1)  # type: ignore[arg-type]
    with pytest.raises(FileExistsError):
        storage.put_new("epochs/1", b"mine")
    assert storage.read("epochs/1") == b"another writer's"


def test_time_of_a_request_does_not_limit_how_many_objects_are_listed(
    proxied: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proxied.proxy is not None
    monkeypatch.setattr(object_pages, "NAMES_MAX", 1)
    names = [f"s/{number}" for number in range(6)]
    storage = proxied.open(request_timeout="1s")
    for name in names:
        storage.put_new(name, b"x")
    proxied.proxy.arm("latency", "GET", seconds=0.3)
    assert storage.list("s") == names


def test_page_of_a_listing_that_has_no_answer_is_asked_for_again_alone(
    proxied: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proxied.proxy is not None
    monkeypatch.setattr(object_pages, "NAMES_MAX", 2)
    names = [f"s/{number}" for number in range(7)]
    storage = proxied.open(request_timeout="1s")
    for name in names:
        storage.put_new(name, b"x")
    fault = proxied.proxy.arm("silence", "GET", skip=2, times=1)
    proxied.proxy.counts.clear()
    assert storage.list("s") == names
    assert fault.met == 1
    assert proxied.proxy.counts["GET"] == 5


def test_store_that_answers_the_same_page_again_is_refused(proxied: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def page(files: object, bucket: str, prefix: str, token: str) -> object_pages.Page:
        return [f"{prefix}a"], "next"

    monkeypatch.setattr(objects, "PAGES", dict.fromkeys(object_pages.PAGES, page))
    with pytest.raises(StoreError, match="can't be listed: the store answers the same page again"):
        proxied.open().list("s")


@pytest.mark.parametrize("status", [500, 503, 409])
def test_slow_down_answer_is_retried(proxied: Store, status: int) -> None:
    assert proxied.proxy is not None
    storage = proxied.open()
    proxied.proxy.arm("status", status=status, times=3)
    storage.put_new("s/a", b"x")
    proxied.proxy.arm("status", status=status, times=2)
    assert storage.read("s/a") == b"x"


def test_large_object_is_found_after_its_last_answer_was_lost(in_parts: Store) -> None:
    assert in_parts.proxy is not None
    whole = Random(2).randbytes(11 << 20)
    storage = in_parts.open(request_timeout="2s", part_size="5MiB")
    storage.put_new("s/first", whole)
    for kind in ("silence-after", "reset-after", "half-answer"):
        fault = in_parts.proxy.arm(kind, "POST", skip=1, times=1)  # the second POST ends the upload
        storage.put_new(f"s/{kind}", whole)
        assert fault.met == 1
        assert storage.read(f"s/{kind}") == whole
    with pytest.raises(FileExistsError):
        storage.put_new("s/first", whole[:-1])


def test_upload_in_parts_through_a_repeating_proxy_is_found_or_refused(in_parts: Store) -> None:
    """INV-4: the second request to abort an upload is answered that there is none, whichever writer's object exists."""
    assert in_parts.proxy is not None
    whole = Random(3).randbytes(11 << 20)
    storage = in_parts.open(request_timeout="20s", part_size="5MiB")
    in_parts.proxy.arm("twice")
    storage.put_new("s/large", whole)
    with pytest.raises(FileExistsError):
        storage.put_new("s/large", whole[:-1])
    storage.replace("s/large", whole[1:])
    assert storage.read("s/large") == whole[1:]


def test_a_slow_answer_is_waited_for_and_a_stuck_one_is_not(proxied: Store) -> None:
    assert proxied.proxy is not None
    proxied.open().put_new("s/a", bytes(100_000))
    storage = proxied.open(request_timeout="600ms")
    proxied.proxy.arm("slow", "GET", bytes_per_second=1_000_000, times=1)
    assert storage.read("s/a") == bytes(100_000)
    stuck = proxied.proxy.arm("slow", "GET", bytes_per_second=20_000, times=1)
    proxied.proxy.counts.clear()
    assert storage.read("s/a", 0, 100_000) == bytes(100_000)
    assert stuck.met == 1
    assert proxied.proxy.counts["GET"] > 1


def test_request_to_absent_store_fails_after_its_retry_time(proxied: Store) -> None:
    """INV-6. The error names what did not answer."""
    assert proxied.proxy is not None
    storage = proxied.open(retry_timeout="1s")
    assert storage.list("s") == []  # its client is made: the time is that of the requests
    fault = proxied.proxy.arm("status", status=503)
    with pytest.raises(StoreError, match=r"s3://.*s/a can't be written.*503"):
        storage.put_new("s/a", b"x")
    assert fault.met > 1
    with pytest.raises(StoreError, match="can't be listed"):
        storage.list("s")


def test_request_that_is_retried_for_some_time_is_named_once_in_the_log(
    proxied: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver that waits for its journal at its start has nothing else to show."""
    assert proxied.proxy is not None
    storage = proxied.open(retry_timeout="900s")
    for seconds, path in ((800.0, "s/short"), (0.0, "s/long")):
        monkeypatch.setattr(retries, "WARNED_AFTER_SECONDS", seconds)
        proxied.proxy.arm("status", status=503, times=3)
        storage.put_new(path, b"x")
    (warning,) = caplog.messages
    assert re.fullmatch(
        r"s3://\S*s/long can't be written: .*503.*; the request is tried again for \d{3} s more", warning
    )


def test_client_below_does_not_retry_by_itself(proxied: Store) -> None:
    """INV-6: with no time for it, a failed request is repeated once, by the layer that knows what a repetition means."""
    assert proxied.proxy is not None
    storage = proxied.open(retry_timeout="0ms", request_timeout="60s")
    for verb, use in (("PUT", lambda: storage.put_new("s/a", b"x")), ("GET", lambda: storage.read("s/a"))):
        fault = proxied.proxy.arm("status", verb, status=503)
        with pytest.raises(StoreError, match="503"):
            use()
        assert fault.met == 2


def test_each_read_is_one_request_and_requests_are_counted(counted: Store) -> None:
    assert counted.proxy is not None
    storage = counted.open(request_timeout="60s")  # a time-out would be one more request
    storage.put_new("s/a", bytes(1000))
    storage.put_new("s/b", bytes(1000))
    counted.proxy.counts.clear()
    assert storage.read("s/a", 100, 200) == bytes(200)
    assert storage.exists("s/a")
    assert not storage.exists("s/c")
    assert existing(storage, ["s/a", "s/c"]) == ["s/a"]
    assert counted.proxy.counts == {"GET": 5}
    storage.put_new("s/c", bytes(500))
    assert counted.proxy.counts == {"GET": 5, "PUT": 1}
    requests = storage.requests
    assert (requests["put"], requests["get"]) == (3, 5)
    assert (requests["bytes_out"], requests["bytes_in"]) == (2500, 202)
