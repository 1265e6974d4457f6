"""Native code against Python beyond one consumer: every reader's rows, and errors among records."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import Message as WireMessage
from confluent_kafka import TopicPartition as WirePartition
from confluent_kafka.admin import AdminClient

from forebay.kafka.consume import block_ranges, fetching
from forebay.kafka.consume.block_ranges import read_ranges
from forebay.kafka.consume.messages import received
from forebay.kafka.consume.range_reader import Reading, read_range
from forebay.kafka.consume.spans import OffsetRange
from forebay.kafka.consume.whole_topic import read_topic
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.native import library as native_library
from forebay.kafka.native.library import Functions, Library, MessageStruct, library
from forebay.kafka.native.received import Event, Received, Records
from forebay.kafka.native.record_queue import RecordQueue
from forebay.kafka.options.access import KafkaAccess
from forebay.model.values import TopicPartition
from tests.support.kafka.polling import PATIENCE_SECONDS, await_markers
from tests.support.state.again import produce, produce_every_kind, taken_in

_PARTITIONS = 4
_END, _DENIED = KafkaError._PARTITION_EOF, KafkaError.TOPIC_AUTHORIZATION_FAILED
_TEXT = ctypes.create_string_buffer(b"the end")
#: Kafka's number of requests to fetch
_FETCH = 1


@pytest.fixture
def native() -> Iterator[Library]:
    found = library()
    assert found is not None, "the package was built without its native library: python scripts/compile_native.py"
    yield found
    found.use(found.functions)


@pytest.mark.kafka
@pytest.mark.usefixtures("no_reader_kept")
def test_every_reader_returns_the_same_rows_in_both_ways(
    native: Library, kafka_broker: KafkaBroker, topic_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact ranges, ranges of blocks and whole topics, over records of every kind and aborted transactions."""
    topic = topic_name()
    kafka_broker.create_topic(topic, _PARTITIONS)
    produce_every_kind(kafka_broker.options, topic, _PARTITIONS, seed=13, transactions=True)
    tps = [TopicPartition(topic, number) for number in range(_PARTITIONS)]
    await_markers(kafka_broker.options, tps)
    access = KafkaAccess({**kafka_broker.options, "isolation.level": "read_committed"}, "g")
    wanted = [taken_in(access.options, tp, headers=True)[0] for tp in tps]
    reading = Reading(headers=True, allow_offset_gaps=True, keep=False)
    found = []
    for way in (native, None):
        monkeypatch.setattr(fetching, "library", lambda way=way: way)
        rows: dict[str, list[pa.RecordBatch]] = {}
        for one in wanted:
            span = OffsetRange(topic, one.range.partition, one.range.from_offset, one.range.until_offset)
            rows[f"range {span.partition}"] = list(read_range(access, span, reading))
        for ranged in read_ranges(access, wanted, True):
            rows[f"block {ranged.tp.partition}"] = list(ranged.batches)
        for tp, batch in read_topic(access.options, topic, "g", {}, PATIENCE_SECONDS):
            rows.setdefault(f"topic {tp.partition}", []).append(batch)
        block_ranges.kept_readers.clear()
        found.append({name: pa.Table.from_batches(batches).combine_chunks() for name, batches in rows.items()})
    by_columns, by_messages = found
    assert by_columns.keys() == by_messages.keys() and len(by_columns) == 3 * _PARTITIONS
    for name, table in by_columns.items():
        assert table.equals(by_messages[name]), name
        partition = int(name.split()[1])
        assert table.num_rows == wanted[partition].range.records > 0


def test_errors_among_records_keep_their_places_in_both_ways(native: Library) -> None:
    """Made-up records and errors of several partitions, in any order: each partition has the same items from both ways."""
    random_ = random.Random(17)
    for _ in range(300):
        order = [(random_.random() < 0.2, random_.randrange(3)) for _ in range(random_.randrange(1, 40))]
        by_columns = _items_of(_by_columns(native, order))
        by_messages = _items_of(received([_message(*one, offset) for offset, one in enumerate(order)], headers=False))
        assert by_columns == by_messages
        assert sum(len(items) for items in by_columns.values()) == len(order)


def _items_of(items: Sequence[Received]) -> dict[TopicPartition, list[object]]:
    """Return the offsets of records and the errors of each partition, in order."""
    found: dict[TopicPartition, list[object]] = {}
    for item in items:
        if isinstance(item, Event):
            found.setdefault(item.tp, []).append((item.error.code(), item.error.str(), item.offset))
        else:
            found.setdefault(item.tp, []).extend(item.batch.column("offset").to_pylist())
    return found


def _message(is_error: bool, partition: int, offset: int) -> WireMessage:
    if is_error:
        return WireMessage(topic="t", partition=partition, offset=offset, error=KafkaError(_END, "the end"))
    return WireMessage(topic="t", partition=partition, offset=offset, value=b"v", timestamp=(0, 0))


class _Place(ctypes.Structure):
    """``rd_kafka_topic_partition_t``, as far as gather.c reads it."""

    _fields_ = [("topic", ctypes.c_char_p), ("partition", ctypes.c_int32), ("offset", ctypes.c_int64)]


def _by_columns(native: Library, order: Sequence[tuple[bool, int]]) -> list[Received]:
    """Return what native code makes of items: whether each is an error, and its partition; their numbers are the offsets."""
    places = [_Place(b"t", partition, offset) for offset, (_, partition) in enumerate(order)]
    made = [MessageStruct(topic=1, partition=partition, offset=offset) for offset, (_, partition) in enumerate(order)]
    pointer = ctypes.c_void_p
    callbacks = {
        "timestamp": native_library._TIMESTAMP(lambda _, kind: 0),
        "leader_epoch": native_library._EPOCH(lambda _: 0),
        "place_of": ctypes.CFUNCTYPE(pointer, pointer)(lambda event: ctypes.addressof(places[event - 1])),
        "destroy_place": ctypes.CFUNCTYPE(None, pointer)(lambda _: None),
        "error": ctypes.CFUNCTYPE(ctypes.c_int, pointer)(lambda _: _END),
        "error_text": ctypes.CFUNCTYPE(pointer, pointer)(lambda _: ctypes.addressof(_TEXT)),
    }
    queue = RecordQueue.__new__(RecordQueue)
    queue._headers = False
    queue._library = SimpleNamespace(  # type: ignore[assignment]
        gather=native.gather, kafka=SimpleNamespace(rd_kafka_topic_name=lambda _: b"t")
    )
    native.use(Functions(**{name: ctypes.cast(callback, pointer) for name, callback in callbacks.items()}))
    queue._items = np.zeros(len(made), native_library.ITEM)
    queue._items["message"] = [
        0 if is_error else ctypes.addressof(message) for message, (is_error, _) in zip(made, order, strict=True)
    ]
    queue._items["event"] = range(1, len(made) + 1)
    queue._groups = np.zeros(len(made), native_library.GROUP)
    return queue._received(len(made))


def test_error_among_the_records_of_one_fetch_is_an_item_of_its_own(
    native: Library, topic_name: Callable[[], str]
) -> None:
    """The mock broker refuses one fetch between two runs of records; all wait in the queue when they are received."""
    cluster_client = AdminClient(native.options({"test.mock.num.brokers": 1, "log_level": 4}))
    cluster = native.kafka.rd_kafka_handle_mock_cluster(native.take_client())
    (broker,) = cluster_client.list_topics(timeout=10).brokers.values()
    options = {"bootstrap.servers": f"{broker.host}:{broker.port}"}
    tp = TopicPartition(topic_name(), 0)
    cluster_client.list_topics(tp.topic, timeout=10)  # creates it
    produce(options, tp, 500)
    own = {**options, "group.id": "none", "enable.auto.commit": False, "auto.offset.reset": "error"}
    consumer = Consumer(native.options(own))
    client = native.take_client()
    assert client is not None
    queue = RecordQueue(native, client, headers=False)
    queue.redirect([tp])
    consumer.assign([WirePartition(tp.topic, tp.partition, 0)])
    _await_length(native, queue, 500)
    push = native.kafka.rd_kafka_mock_push_request_errors_array
    push.argtypes = [ctypes.c_void_p, ctypes.c_int16, ctypes.c_size_t, ctypes.c_void_p]
    push(cluster, _FETCH, 1, (ctypes.c_int * 1)(_DENIED))
    _await_length(native, queue, 501)
    produce(options, tp, 100)
    _await_length(native, queue, 601)
    items = queue.receive(10_000, 0.0, 0.0)
    assert [type(item) for item in items] == [Records, Event, Records]
    found = _items_of(items)[tp]
    (code, _, offset) = cast("tuple[int, str, int]", found.pop(500))
    assert (code, offset) == (_DENIED, 500)
    assert found == list(range(600))
    queue.close()
    consumer.close()


def _await_length(native: Library, queue: RecordQueue, length: int) -> None:
    """Wait until the queue has so many items."""
    measure = native.kafka.rd_kafka_queue_length
    measure.argtypes, measure.restype = [ctypes.c_void_p], ctypes.c_size_t
    deadline = time.monotonic() + PATIENCE_SECONDS
    while measure(queue._queue) < length:
        assert time.monotonic() < deadline, f"{measure(queue._queue)} of {length} items arrived"
        threading.Event().wait(0.01)
