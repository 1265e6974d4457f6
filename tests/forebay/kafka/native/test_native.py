"""Native code against Python: the same records, events and errors, whatever is read and however it is cut."""

from __future__ import annotations

import ctypes
import logging
import os
import random
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.consume import fetching
from forebay.kafka.consume.fetching import ColumnFetcher, Fetcher, MessageFetcher, fetcher
from forebay.kafka.consume.messages import FAULTS
from forebay.kafka.embedded.broker import KafkaBroker, MockBroker
from forebay.kafka.native import library as native_library
from forebay.kafka.native.library import Functions, Library, MessageStruct, library
from forebay.kafka.native.received import Event, Records
from forebay.kafka.native.record_queue import RecordQueue, _as_text
from forebay.model.arrow_columns import bytes_column, one_batch
from forebay.model.columns import Columns
from forebay.model.errors import ForebayError
from forebay.model.records import SOURCE_SCHEMA
from forebay.model.values import TopicPartition
from tests.conftest import missing
from tests.support.kafka.polling import Reader, poll_until
from tests.support.state.again import produce_every_kind

_FOLDER = Path(native_library.__file__).parent
_PARTITIONS = 4
_TEXT = ctypes.create_string_buffer(b"the end")
_TEXT_ADDRESS = ctypes.addressof(_TEXT)


@pytest.fixture(scope="module")
def native() -> Library:
    found = library()
    assert found is not None, "the package was built without its native library: python scripts/compile_native.py"
    return found


@pytest.fixture(params=["mock", pytest.param("kafka", marks=pytest.mark.kafka)])
def broker(request: pytest.FixtureRequest) -> KafkaBroker | MockBroker:
    found: KafkaBroker | MockBroker = request.getfixturevalue(f"{request.param}_broker")
    return found


class Fetching:
    """A consumer of all partitions of a topic, by one of the two ways."""

    def __init__(
        self, options: dict[str, str], topic: str, native: Library | None, headers: bool, begin: dict[int, int]
    ) -> None:
        self.topic = topic
        own = {
            **options, "group.id": "none", "enable.auto.commit": False, "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }  # fmt: skip
        self.consumer = Consumer(own if native is None else native.options(own))
        self.fetcher: Fetcher = fetcher(self.consumer, native, headers)
        assert isinstance(self.fetcher, MessageFetcher if native is None else ColumnFetcher)
        self.assign(begin)

    def assign(self, begin: dict[int, int]) -> None:
        tps = [TopicPartition(self.topic, number) for number in begin]
        self.fetcher.assigning(tps, tps)
        self.consumer.assign([WirePartition(self.topic, number, offset) for number, offset in begin.items()])

    def read(self, until: set[int], sizes: Callable[[], int]) -> tuple[dict[int, pa.Table], dict[int, list[object]]]:
        """Read until the end of each partition of ``until``. Return the records and the events of each partition."""
        batches: dict[int, list[pa.RecordBatch]] = {}
        events: dict[int, list[object]] = {}
        left = set(until)
        while left:
            for item in self.fetcher.fetch(sizes(), 1.0):
                assert item.tp.topic == self.topic
                if isinstance(item, Event):
                    events.setdefault(item.tp.partition, []).append((item.error.code(), item.error.str(), item.offset))
                    if item.error.code() == KafkaError._PARTITION_EOF:
                        left.discard(item.tp.partition)
                else:
                    assert item.batch.num_rows
                    item.batch.validate(full=True)
                    batches.setdefault(item.tp.partition, []).append(item.batch)
        return {number: pa.Table.from_batches(found) for number, found in batches.items()}, events

    def close(self) -> None:
        self.fetcher.close()
        self.consumer.close()


@pytest.mark.parametrize("headers", [False, True])
def test_columns_have_what_messages_have(
    native: Library, broker: KafkaBroker | MockBroker, topic_name: Callable[[], str], headers: bool
) -> None:
    topic = topic_name()
    broker.create_topic(topic, _PARTITIONS)
    produce_every_kind(
        broker.options, topic, _PARTITIONS, seed=7 + headers, transactions=isinstance(broker, KafkaBroker)
    )
    random_ = random.Random(3)
    options = {**broker.options, "isolation.level": "read_committed"}
    everything = set(range(_PARTITIONS))
    found = []
    for way in (None, native):
        reading = Fetching(options, topic, way, headers, dict.fromkeys(everything, 0))
        found.append(reading.read(everything, lambda: random_.choice([1, 7, 100, 10_000])))
        reading.close()
    (by_messages, events), (by_columns, same_events) = found
    assert same_events == events and all(len(list_) == 1 for list_ in events.values())
    for number in everything:
        assert by_columns[number].schema == SOURCE_SCHEMA(headers)
        assert by_columns[number].equals(by_messages[number]), number


def test_partitions_assigned_again_and_again_are_read_from_their_new_positions(
    native: Library, broker: KafkaBroker | MockBroker, topic_name: Callable[[], str]
) -> None:
    """librdkafka ends the redirection of a partition that it stops, some time later."""
    topic = topic_name()
    broker.create_topic(topic, _PARTITIONS)
    producer = Producer(broker.options)
    for number in range(_PARTITIONS * 500):
        producer.produce(topic, b"%d" % number, None, number % _PARTITIONS)
    assert producer.flush(30) == 0
    random_ = random.Random(11)
    reading = Fetching(broker.options, topic, native, False, dict.fromkeys(range(_PARTITIONS), 0))
    for _ in range(12):
        begin = {
            number: random_.randrange(501) for number in random_.sample(range(_PARTITIONS), random_.randrange(1, 5))
        }
        reading.assign(begin)
        if random_.random() < 0.3:
            reading.fetcher.fetch(random_.randrange(1, 50), 0.01)
            reading.assign(begin)
        tables, events = reading.read(set(begin), lambda: random_.choice([1, 50, 10_000]))
        for number, offset in begin.items():
            found = tables[number].column("offset").to_pylist() if number in tables else []
            # what a fetch before the second assignment returned is not returned a second time; the rest is complete
            assert found == list(range(offset, 500)), (number, offset)
            assert events[number] == [(KafkaError._PARTITION_EOF, events[number][0][1], 500)]  # type: ignore[index]
    reading.close()


def test_errors_of_partitions_are_events_with_kafkas_text(
    native: Library, broker: KafkaBroker | MockBroker, topic_name: Callable[[], str]
) -> None:
    topic = topic_name()
    broker.create_topic(topic, _PARTITIONS)
    producer = Producer(broker.options)
    producer.produce(topic, b"v", b"k", 0)
    assert producer.flush(30) == 0
    said = []
    for way in (None, native):
        reading = Fetching(broker.options, topic, way, False, {0: 1000, 1: 0})
        items: list[Event] = []
        while not any(item.tp.partition == 0 for item in items):
            items += [item for item in reading.fetcher.fetch(100, 1.0) if isinstance(item, Event)]
        said.append(next((e.error.code(), e.error.str(), e.offset) for e in items if e.tp.partition == 0))
        reading.close()
    assert said[0] == said[1] and said[0][0] in FAULTS


def test_queues_full_of_records_keep_no_consumer_from_closing(
    native: Library, mock_broker: MockBroker, topic_name: Callable[[], str]
) -> None:
    """And their memory is freed: rounds that drop and read 4 MB each leave the process as it was after the first."""
    topic = topic_name()
    mock_broker.create_topic(topic)
    producer = Producer(mock_broker.options)
    for _ in range(80):  # the mock broker keeps 5 MB
        producer.produce(topic, os.urandom(50_000), None, 0)
        producer.poll(0)
    assert producer.flush(60) == 0
    resident = []
    for _ in range(30):
        for _ in range(2):
            reading = Fetching(mock_broker.options, topic, native, False, {0: 0})
            reading.fetcher.fetch(3, 5.0)
            reading.close()
        reading = Fetching(mock_broker.options, topic, native, False, {0: 0})
        reading.read({0}, lambda: 10_000)
        reading.close()
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
    assert resident[-1] - resident[4] < 60_000_000, resident


def test_fetch_waits_for_its_whole_timeout_also_before_the_first_record_of_an_assignment() -> None:
    tp = TopicPartition("t", 0)
    answers: list[list[Any]] = [[], [], [SimpleNamespace(tp=tp)]]
    queue = SimpleNamespace(redirect=lambda _: None, receive=lambda *_: answers.pop(0))
    messages = SimpleNamespace(assigning=lambda *_: None, fetch=lambda *_: [])
    fetching_ = ColumnFetcher(cast(Any, messages), cast(Any, queue))
    fetching_.assigning([tp], [tp])
    assert [item.tp for item in fetching_.fetch(3, 60.0)] == [tp]
    answers.append([])
    assert fetching_.fetch(3, 60.0) == [], "the queue itself waits, once the assignment is proven"
    assert not answers


def test_consumer_that_is_dropped_with_records_waiting_ends(
    native: Library, mock_broker: MockBroker, topic_name: Callable[[], str]
) -> None:
    topic = topic_name()
    mock_broker.create_topic(topic)
    producer = Producer(mock_broker.options)
    for number in range(2_000):
        producer.produce(topic, b"%d" % number, None, number % _PARTITIONS)
    assert producer.flush(30) == 0
    reading = Fetching(mock_broker.options, topic, native, False, dict.fromkeys(range(_PARTITIONS), 0))
    assert reading.fetcher.fetch(3, 10.0)
    dropping = threading.Thread(target=lambda made: made.clear(), args=([reading],), daemon=True)
    del reading
    dropping.start()
    dropping.join(30)
    assert not dropping.is_alive()


def _produce_header_names(options: dict[str, str], topic: str, *records: tuple[bytes, ...]) -> None:
    """One record for each tuple of header names, which confluent-kafka's own producer takes only as text."""
    (path,) = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "librdkafka" in line}
    kafka, number, size = ctypes.CDLL(path), ctypes.c_int, ctypes.c_size_t
    kafka.rd_kafka_conf_new.restype = kafka.rd_kafka_new.restype = ctypes.c_void_p
    conf, error = ctypes.c_void_p(kafka.rd_kafka_conf_new()), ctypes.create_string_buffer(256)
    servers = options["bootstrap.servers"].encode()
    assert kafka.rd_kafka_conf_set(conf, b"bootstrap.servers", servers, error, size(256)) == 0, error.value
    producer = ctypes.c_void_p(kafka.rd_kafka_new(0, conf, error, size(256)))
    for names in records:  # RD_KAFKA_V_TOPIC, _PARTITION, _HEADER, _END
        headers = [part for name in names for part in (number(9), name, b"x", size(1))]
        assert (
            kafka.rd_kafka_producev(producer, number(1), topic.encode(), number(3), number(0), *headers, number(0)) == 0
        )
    assert kafka.rd_kafka_flush(producer, 30_000) == 0
    kafka.rd_kafka_destroy(producer)


def test_names_of_headers_that_are_not_utf_8_are_replaced_in_both_ways(
    native: Library, mock_broker: MockBroker, topic_name: Callable[[], str]
) -> None:
    """As Kafka's Java client does it, so a record has the same headers, and a block the same digest, wherever it is read."""
    topic, several = topic_name(), topic_name()
    for name in (topic, several):
        mock_broker.create_topic(name)
    _produce_header_names(
        mock_broker.options, topic, (b"plain", b"\xff\xfea", "ä".encode()), (), (b"b\xe2\x82",), (b"c",)
    )
    _produce_header_names(mock_broker.options, several, (b"\xff", b"d", b"\xfe"))
    found = []
    for way in (native, None):
        reading = Fetching(mock_broker.options, topic, way, True, {0: 0})
        found.append(reading.read({0}, lambda: 10)[0][0]["headers"].to_pylist())
        reading.close()
    names = [[header["key"] for header in headers or ()] for headers in found[0]]
    assert names == [["plain", "\ufffd\ufffda", "ä"], [], ["b\ufffd"], ["c"]]
    assert found[0] == found[1]

    reading = Fetching(mock_broker.options, several, native, True, {0: 0})
    (headers,) = reading.read({0}, lambda: 10)[0][0]["headers"].to_pylist()
    assert [header["key"] for header in headers or ()] == ["\ufffd", "d", "\ufffd"]
    reading.close()
    reading = Fetching(mock_broker.options, several, None, True, {0: 0})
    with pytest.raises(ForebayError, match=rf"offset 0 of {several}/0 has several header names that are not UTF-8"):
        reading.read({0}, lambda: 10)
    reading.close()


def test_names_of_headers_as_text_column_are_valid(native: Library) -> None:
    names = [b"plain", "ä".encode(), b"\xff\xfea", b""]
    text = _as_text(bytes_column(names))
    assert text.type == pa.string()
    assert text.to_pylist() == ["plain", "ä", "\ufffd\ufffda", ""]
    text.validate(full=True)


def test_columns_of_two_gibibytes_are_refused_instead_of_cut() -> None:
    data = pa.py_buffer(memoryview(bytearray(1_200_000_000)))
    slots: Any = np.array([0, 1_200_000_000], np.int32)
    ends = pa.py_buffer(slots)
    half = pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.binary(), 1, [None, ends, data])], ["value"])
    with pytest.raises(ValueError, match="2 GiB"):
        one_batch([half, half])


def test_items_come_out_per_partition_and_in_order(native: Library) -> None:
    """Also if partitions are interleaved message by message."""
    random_ = random.Random(5)
    payload = ctypes.create_string_buffer(b"0123456789")
    queue = RecordQueue.__new__(RecordQueue)
    queue._headers = False
    callbacks = native_library._TIMESTAMP(lambda _, kind: 0), native_library._EPOCH(lambda message: message % 7)
    functions = Functions(
        **dict(zip(("timestamp", "leader_epoch"), (ctypes.cast(f, ctypes.c_void_p) for f in callbacks), strict=True))
    )
    names = SimpleNamespace(rd_kafka_topic_name=lambda pointer: b"topic-%d" % pointer)
    queue._library = SimpleNamespace(gather=native.gather, kafka=names)  # type: ignore[assignment]
    native.use(functions)
    for _ in range(300):
        made = [
            MessageStruct(
                topic=random_.randrange(1, 3), partition=random_.randrange(2), offset=number, value=ctypes.addressof(payload),
                value_size=random_.randrange(10),
            )
            for number in range(random_.randrange(1, 40))
        ]  # fmt: skip
        queue._items = np.zeros(len(made), native_library.ITEM)
        queue._items["message"] = [ctypes.addressof(message) for message in made]
        queue._groups = np.zeros(len(made), native_library.GROUP)
        found = [item for item in queue._received(len(made)) if isinstance(item, Records)]
        wanted: dict[TopicPartition, list[MessageStruct]] = {}
        for message in made:
            wanted.setdefault(TopicPartition(f"topic-{message.topic}", message.partition), []).append(message)
        assert [item.tp for item in found] == list(wanted), (
            "one item for each partition, in the order of the first record"
        )
        for item, messages in zip(found, wanted.values(), strict=True):
            assert item.batch.column("offset").to_pylist() == [message.offset for message in messages]
            assert item.batch.column("value").to_pylist() == [
                b"0123456789"[: message.value_size] for message in messages
            ]
            assert item.leader_epoch == ctypes.addressof(messages[-1]) % 7


def test_a_compilers_sanitizers_find_nothing(tmp_path: Path) -> None:
    """Columns of exactly the measured size, made of random messages, under the sanitizers of addresses and of behaviour."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        missing("no compiler with sanitizers: install gcc or clang")
    assert compiler is not None
    program = tmp_path / "harness"
    subprocess.run(
        [compiler, "-std=gnu11", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{_FOLDER}",
         "-o", str(program), str(Path(__file__).with_name("native_harness.c"))],
        check=True,
    )  # fmt: skip
    done = subprocess.run([str(program), "2000"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "2000 rounds"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("missing", "it is missing"),
        ("foreign", "undefined symbol"),
        ("stale", "interface"),
        ("wrong", "made-up messages"),
    ],
)
def test_source_reads_by_python_and_says_so_where_the_library_is_of_no_use(
    tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, damage: str, message: str,
) -> None:  # fmt: skip
    if shutil.which("cc") is None:
        missing("no C compiler: install gcc")
    path = tmp_path / "gather.so.1"
    source = (_FOLDER / "gather.c").read_text()
    changed = {
        "missing": None,
        "foreign": "int unrelated(void) { return 1; }",
        "stale": source.replace("return 2; }", "return 99; }", 1),
        "wrong": source.replace("offsets[i] = m->offset;", "offsets[i] = m->offset + 1;", 1),
    }[damage]
    if changed is not None:
        assert changed != source
        (tmp_path / "changed.c").write_text(changed)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path), str(tmp_path / "changed.c")], check=True)
    monkeypatch.setattr(native_library, "PATH", path)
    monkeypatch.setattr(fetching, "library", native_library._load.__wrapped__)
    topic = topic_name()
    mock_broker.create_topic(topic)
    producer = Producer(mock_broker.options)
    producer.produce(topic, b"v", b"k", 0)
    assert producer.flush(30) == 0
    tp = TopicPartition(topic, 0)
    with caplog.at_level(logging.WARNING, "forebay.kafka"), Reader(mock_broker.options, topic, [topic]) as reader:
        assert isinstance(reader.source._fetcher, MessageFetcher)
        poll_until(lambda: tp in reader.source.owned, reader)
        reader.start({tp: 0})
        poll_until(lambda: any(isinstance(item, Columns) for item in reader.polled), reader)
        assert reader.rows(tp, "value") == [b"v"]
    assert "gathered in Python" in caplog.text and message in caplog.text


def test_library_is_the_librdkafka_that_confluent_kafka_uses(native: Library) -> None:
    assert native.kafka.rd_kafka_version() == confluent_kafka.libversion()[1]


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    found = library()
    if found is not None:
        found.use(found.functions)
