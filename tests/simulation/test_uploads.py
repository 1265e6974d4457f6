"""The simulated requests of an upload in parts, under the product's store."""

from __future__ import annotations

import itertools

import pytest

from forebay.model.errors import StoreError
from tests.simulation import upload_faults
from tests.simulation.faulty import FaultyStorage
from tests.simulation.upload_faults import ANSWERED, CREATING, LATE
from tests.simulation.uploads import Bucket, UploadedStorage
from tests.support.stores.forgetful import Crash

DATA = bytes(range(250))
PART_BYTES = 100
#: requests of one attempt: the begin, three parts, the completion
REQUESTS = 5


class Chosen:
    """Answers all requests except those in ``faults``: the number of the request → what happens. ``asked``: all requests."""

    def __init__(self, faults: dict[int, str] | None = None) -> None:
        self._faults = faults or {}
        self.asked: list[str] = []

    def __call__(self, method: str) -> str:
        fault = self._faults.get(len(self.asked), ANSWERED)
        self.asked.append(method)
        return fault if fault != LATE or method in CREATING else ANSWERED


def opened(chosen: Chosen) -> tuple[FaultyStorage, Bucket, UploadedStorage]:
    storage = FaultyStorage("forgetful://wal", lambda _: None, appendable=False)
    bucket = Bucket(storage)
    return storage, bucket, UploadedStorage(bucket, PART_BYTES, chosen)


FAULTS = list(itertools.product(range(REQUESTS), (*upload_faults.FAULTS, LATE)))


def test_large_object_is_sent_in_parts_and_a_small_one_in_one_request() -> None:
    chosen = Chosen()
    storage, bucket, store = opened(chosen)
    store.put_new("a/large", DATA)
    assert chosen.asked == ["create_multipart_upload", *["upload_part"] * 3, "complete_multipart_upload"]
    store.put_new("a/small", b"small")
    assert chosen.asked[REQUESTS:] == ["put_object"]
    assert (storage.read("a/large"), storage.read("a/small")) == (DATA, b"small")
    assert not bucket.uploads


@pytest.mark.parametrize(("nth", "fault"), FAULTS)
def test_one_fault_of_any_request_leaves_the_whole_object(nth: int, fault: str) -> None:
    """The second attempt stores it, or finds that the first one has."""
    storage, _, store = opened(Chosen({nth: fault}))
    store.put_new("a/b", DATA)
    assert storage.read("a/b") == DATA


def test_object_is_stored_although_neither_its_completion_nor_its_first_comparison_is_answered() -> None:
    chosen = Chosen({REQUESTS - 1: upload_faults.UNANSWERED, REQUESTS + 1: upload_faults.BROKEN})
    storage, _, store = opened(chosen)
    store.put_new("a/b", DATA)
    assert chosen.asked[REQUESTS - 1 : REQUESTS + 2] == [
        "complete_multipart_upload",
        "abort_multipart_upload",
        "get_object",
    ]
    assert storage.read("a/b") == DATA


@pytest.mark.parametrize(("nth", "fault"), FAULTS)
def test_object_of_another_writer_is_kept_and_raised(nth: int, fault: str) -> None:
    storage, _, store = opened(Chosen({nth: fault}))
    storage.put_new("a/b", b"of another writer")
    with pytest.raises(FileExistsError):
        store.put_new("a/b", DATA)
    assert storage.read("a/b") == b"of another writer"


def test_replacement_whose_every_completion_is_repeated_is_found() -> None:
    """INV-4. A proxy repeats all requests, and the store does not know a completed upload any more."""
    storage, _, store = opened(Chosen(dict.fromkeys(range(100), upload_faults.REPEATED)))
    storage.put_new("a/b", b"before")
    store.replace("a/b", DATA)
    assert storage.read("a/b") == DATA


def test_replacement_whose_upload_was_aborted_is_sent_again() -> None:
    """The store's answer says only that there is no such upload."""
    aborted: list[str] = []

    def choose(method: str) -> str:
        if method == "complete_multipart_upload" and not aborted:
            aborted.extend(bucket.uploads)
            bucket.uploads.clear()
        return ANSWERED

    storage, bucket, _ = opened(Chosen())
    storage.put_new("a/b", b"before")
    UploadedStorage(bucket, PART_BYTES, choose).replace("a/b", DATA)
    assert aborted
    assert storage.read("a/b") == DATA


def test_completion_that_is_late_stores_nothing_after_its_upload_was_aborted() -> None:
    storage, bucket, store = opened(Chosen({REQUESTS - 1: LATE}))
    store.put_new("a/b", DATA)
    assert not storage.late
    assert not bucket.uploads


def test_store_that_is_away_raises_and_begins_no_upload() -> None:
    storage, bucket, store = opened(Chosen())
    storage.is_away = True
    with pytest.raises(StoreError, match="ServiceUnavailable"):
        store.put_new("a/b", DATA)
    assert not storage.holds("a/b")
    assert not bucket.uploads


def test_writer_that_is_killed_leaves_an_upload_and_no_object() -> None:
    def killed(method: str) -> str:
        if method == "complete_multipart_upload":
            raise Crash("before the completion")
        return ANSWERED

    storage, bucket, store = opened(Chosen())
    with pytest.raises(Crash):
        UploadedStorage(bucket, PART_BYTES, killed).put_new("a/b", DATA)
    assert not storage.holds("a/b")
    assert [sorted(upload.parts) for upload in bucket.uploads.values()] == [[1, 2, 3]]
    store.put_new("a/b", DATA)
    assert storage.read("a/b") == DATA
