"""Guards of the native code: what keeps it correct where ordinary reading does not lead."""

from __future__ import annotations

import ctypes
import shutil
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forebay.kafka.embedded.broker import MockBroker
from forebay.kafka.native import library as native_library
from forebay.kafka.native.library import GROUP, ITEM, PATH, Functions, Library, MessageStruct, library
from forebay.kafka.native.record_queue import RecordQueue
from tests.support.kafka.polling import Reader, partitions_of, poll_until
from tests.support.processes.child import exit_code_of_child

_HEADERS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
_HEADER_AT = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
)  # fmt: skip

MEGABYTE = 1_000_000


@pytest.fixture
def native() -> Library:
    found = library()
    assert found is not None
    return found


@pytest.mark.parametrize("column", ["key", "value", "header name", "header value"])
def test_columns_stay_below_the_two_gibibytes_that_arrow_can_address(native: Library, column: str) -> None:
    """Three records of 600 MB, whose bytes are not touched: a group ends as soon as it has more than 1 GiB."""
    name = ctypes.create_string_buffer(b"n" * MEGABYTE)
    count = 600 if column.startswith("header") else 0

    def headers(_: Any, found: Any) -> int:
        found[0] = 1
        return 0

    def header_at(_: Any, index: int, name_found: Any, value: Any, size: Any) -> int:
        if index >= count:
            return -1
        name_found[0] = ctypes.cast(name, ctypes.c_char_p) if column == "header name" else ctypes.c_char_p(b"")
        value[0], size[0] = ctypes.addressof(name), MEGABYTE if column == "header value" else 0
        return 0

    callbacks = native_library._EPOCH(lambda _: 1), _HEADERS(headers), _HEADER_AT(header_at)
    pointers = [ctypes.cast(callback, ctypes.c_void_p) for callback in callbacks]
    sizes = {f"{column}_size": 600 * MEGABYTE, column: ctypes.addressof(name)} if not count else {}
    made = [MessageStruct(topic=1, partition=2, offset=number, **sizes) for number in range(3)]
    items: Any = np.zeros(3, ITEM)
    items["message"] = [ctypes.addressof(message) for message in made]
    groups: Any = np.zeros(3, GROUP)
    native.use(Functions(**dict(zip(("leader_epoch", "headers", "header_at"), pointers, strict=True))))
    try:
        found = native.gather.forebay_measure(items.ctypes.data, 3, 1, groups.ctypes.data)
    finally:
        native.use(native.functions)
    measured = [int(group[f"{column.replace(' ', '_')}_bytes"]) for group in groups[:found]]
    assert sum(measured) == 1_800 * MEGABYTE
    assert len(measured) > 1
    assert max(measured) < 1 << 31


def test_receive_gathers_no_longer_than_its_timeout(native: Library) -> None:
    """A receiver polls until the time to seal a block. Each millisecond after that delays the block, which may miss its batch."""
    timeout_ms, gather_ms = 5, 1_000
    waits: list[int] = []
    never = threading.Event()

    def poll(_: Any, wait_ms: int) -> int | None:
        if not wait_ms:
            return None
        waits.append(wait_ms)
        never.wait(wait_ms / 1000)
        return 1 if len(waits) == 1 else None  # the first record arrives at the end of the timeout

    poll_type = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    type_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    callbacks = poll_type(poll), type_type(lambda _: 0x8)  # an event of an error, which is an item without a message
    pointers = [ctypes.cast(callback, ctypes.c_void_p) for callback in callbacks]
    items: Any = np.zeros(3, ITEM)
    native.use(Functions(**dict(zip(("poll", "type"), pointers, strict=True))))
    try:
        assert native.gather.forebay_receive(1, timeout_ms, gather_ms, items.ctypes.data, 3) == 1
    finally:
        native.use(native.functions)
    assert sum(waits) <= timeout_ms + 1, "the clock of the library has whole milliseconds"


def test_events_that_are_no_records_do_not_lengthen_the_wait_for_the_first_record(native: Library) -> None:
    timeout_ms = 20
    waits: list[int] = []
    never = threading.Event()

    def poll(_: Any, wait_ms: int) -> int | None:
        if not wait_ms:
            return None
        waits.append(wait_ms)
        never.wait(min(wait_ms, 5) / 1000)
        return 1 if len(waits) < 50 else None

    poll_type = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    type_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    destroy_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    callbacks = poll_type(poll), type_type(lambda _: 0x20), destroy_type(lambda _: None)  # an event of a commit
    pointers = [ctypes.cast(callback, ctypes.c_void_p) for callback in callbacks]
    items: Any = np.zeros(3, ITEM)
    native.use(Functions(**dict(zip(("poll", "type", "destroy"), pointers, strict=True))))
    try:
        assert native.gather.forebay_receive(1, timeout_ms, 1, items.ctypes.data, 3) == 0
    finally:
        native.use(native.functions)
    assert len(waits) < 50
    assert waits == sorted(waits, reverse=True), "each wait is for what is left of the timeout"
    assert waits[0] <= timeout_ms
    assert all(wait < timeout_ms for wait in waits[1:])


def test_threads_load_the_library_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check at loading replaces the functions that the library calls: no other thread may use it meanwhile."""
    free: list[bool] = []

    def check(found: Library) -> None:
        asked = threading.Thread(target=lambda: free.append(native_library._lock.acquire(blocking=False)))
        asked.start()
        asked.join()

    monkeypatch.setattr(native_library, "check", check)
    monkeypatch.setattr(native_library, "_load", cache(native_library._load.__wrapped__))
    assert library() is not None
    assert library() is not None
    assert free == [False], "checked once, while other threads wait"


def test_plug_in_that_no_python_has_set_up_lets_a_client_start(tmp_path: Path) -> None:
    """librdkafka may load the file before this process does, as from an option of the user."""
    fresh = shutil.copy(PATH, tmp_path / "fresh.so")  # its own variables: no functions yet
    assert exit_code_of_child(lambda: int(ctypes.CDLL(str(fresh)).conf_init(None, None, None, 0))) == 0


def test_forked_child_does_not_end_the_queue_of_its_parent() -> None:
    """The child has none of librdkafka's threads, and their locks may be held."""
    ended: list[int] = []
    kafka = SimpleNamespace(rd_kafka_queue_new=lambda client: 7, rd_kafka_queue_destroy=ended.append)
    queue = RecordQueue(SimpleNamespace(kafka=kafka), client=1, headers=False)  # type: ignore[arg-type]

    def close_in_child() -> int:
        queue.close()
        return len(ended)

    assert exit_code_of_child(close_in_child) == 0
    queue.close()
    assert ended == [7]


def test_revocation_that_comes_after_leaving_began_is_answered(
    mock_broker: MockBroker, topic_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka calls back while the group is left, when the queue of records has ended."""
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    topic = topic_name()
    mock_broker.create_topic(topic)
    with Reader(mock_broker.options, topic, [topic]) as reader:
        poll_until(lambda: bool(reader.source.owned), reader)
        reader.start(dict.fromkeys(partitions_of(topic)[: len(reader.source.owned)], 0))
        assert reader.source._assignment.partitions
        reader.source.close()
        assert not reader.source.owned, "the revocation came"
    assert not raised
