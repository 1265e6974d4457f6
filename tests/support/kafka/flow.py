"""Records that flow into Kafka during a test's faults, and the list of them with which batches are compared."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.embedded.loader import offset_of
from forebay.model.values import TopicPartition
from tests.support.kafka.polling import await_markers
from tests.support.state.columns import schema_of

#: how long a producer may stay without an answer (a broker restarts meanwhile)
_FLUSH_SECONDS = 90.0
_READ_SECONDS = 60.0
#: between two small portions, so that records flow and don't come in bursts
_PORTION_SECONDS = 0.05

SCHEMA = schema_of(topic=pa.string(), partition=pa.int32(), offset=pa.int64(), key=pa.binary(), value=pa.binary())


class Truth:
    """The records in Kafka by the brokers' acknowledgements: topic, partition, offset, key and value."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._columns: tuple[list[Any], ...] = tuple([] for _ in SCHEMA)
        self._following: dict[tuple[str, int], int] = {}  # the offset after the newest acknowledgement

    def add(self, topic: str, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        with self._lock:
            for column, item in zip(self._columns, (topic, partition, offset, key, value), strict=True):
                column.append(item)

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """A delivery callback. It raises in the thread that polls the producer if a record was refused."""
        if error is not None:
            raise AssertionError(f"the broker refused a record: {error.str()}")
        topic, partition = message.topic(), message.partition()
        assert topic is not None and partition is not None
        following = self._following.get((topic, partition))
        offset = message.offset()
        assert offset is not None or following is not None, (
            f"the first record of {topic}/{partition} was acknowledged without an offset"
        )
        offset = offset_of(offset, following or 0)
        self._following[topic, partition] = offset + 1
        self.add(topic, partition, offset, message.key(), message.value())

    def extend(self, other: Truth) -> None:
        for row in zip(*other._columns, strict=True):
            self.add(*row)

    def __len__(self) -> int:
        with self._lock:
            return len(self._columns[0])

    def table(self) -> pa.Table:
        with self._lock:
            return pa.table([pa.array(c, f.type) for c, f in zip(self._columns, SCHEMA, strict=True)], schema=SCHEMA)

    def ends(self) -> dict[tuple[str, int], int]:
        """Return (topic, partition) → the offset after its last record."""
        with self._lock:
            ends: dict[tuple[str, int], int] = {}
            for topic, partition, offset in zip(*self._columns[:3], strict=True):
                ends[topic, partition] = max(ends.get((topic, partition), 0), offset + 1)
            return ends


def produce(
    options: Mapping[str, str],
    topic: str,
    records: Iterable[tuple[bytes | None, bytes | None]],
    truth: Truth,
    *,
    partitions: Sequence[int] = (0, 1, 2, 3),
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Produce ``records`` to ``partitions`` in turn; on return all are acknowledged and in ``truth``."""
    producer = _producer(options, settings)
    for number, (key, value) in enumerate(records):
        producer.produce(topic, value, key, partitions[number % len(partitions)], on_delivery=truth.delivered)
        if number % 1000 == 999:
            producer.poll(0)
    assert producer.flush(_FLUSH_SECONDS) == 0, "the broker did not acknowledge every record"


def numbered(count: int, start: int = 0, padding: int = 0) -> Iterable[tuple[bytes, bytes]]:
    """Return ``count`` records, each with a different value."""
    return ((b"k%d" % (n % 97), b"%d %s" % (n, b"." * padding)) for n in range(start, start + count))


class Flow:
    """Produces in its own thread at ``rate`` records a second until it is stopped (or ``total`` records are in).

    ``with Flow(…) as flow``: leaving the context stops it and waits for every acknowledgement.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        topic: str,
        *,
        rate: int = 600,
        total: int | None = None,
        partitions: Sequence[int] = (0, 1, 2, 3),
        padding: int = 40,
    ) -> None:
        self.truth = Truth()
        self._producer = _producer(options, None)
        self._topic = topic
        self._portion = max(1, round(rate * _PORTION_SECONDS))
        self._total = total
        self._partitions = partitions
        self._padding = padding
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="flow")

    @property
    def records(self) -> int:
        """Return the number of acknowledged records."""
        if self._failure is not None:
            raise AssertionError("the flow of records broke off") from self._failure
        return len(self.truth)

    @property
    def finished(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop, and wait until all produced records are acknowledged."""
        self._stopping.set()
        self._thread.join()
        if self._failure is not None:
            raise AssertionError("the flow of records broke off") from self._failure

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            sent = 0
            while not self._stopping.wait(_PORTION_SECONDS):
                left = self._portion if self._total is None else min(self._portion, self._total - sent)
                if not left:
                    break
                for key, value in numbered(left, sent, self._padding):
                    self._produce(key, value, self._partitions[sent % len(self._partitions)])
                    sent += 1
                self._producer.poll(0)
            if self._producer.flush(_FLUSH_SECONDS):
                raise AssertionError("the broker did not acknowledge every record")
        except BaseException as error:
            self._failure = error

    def _produce(self, key: bytes, value: bytes, partition: int) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, key, partition, on_delivery=self.truth.delivered)
                return
            except BufferError:
                self._producer.poll(0.1)


def read_topic(options: Mapping[str, str], ends: Mapping[tuple[str, int], int], low: int = 0) -> Truth:
    """Return what a plain consumer of committed records reads of each partition up to its end, when no transaction is open.

    It is the expected result where brokers remove records (compaction, aborted transactions).
    """
    await_markers(options, [TopicPartition(*tp) for tp in ends])
    truth = Truth()
    consumer = Consumer({
        **options, "group.id": "truth", "enable.auto.commit": "false", "enable.partition.eof": "true",
        "isolation.level": "read_committed", "auto.offset.reset": "earliest",
    })  # fmt: skip
    try:
        consumer.assign([WirePartition(topic, partition, low) for topic, partition in ends])
        waiting = {tp for tp, end in ends.items() if end > low}
        deadline = time.monotonic() + _READ_SECONDS
        while waiting:
            assert time.monotonic() < deadline, f"the ends of {waiting} never came"
            for message in consumer.consume(10_000, 0.1):
                error = message.error()
                where = (message.topic() or "", message.partition() or 0)
                if error is None:
                    truth.delivered(None, message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(where)
                else:
                    raise AssertionError(error.str())
    finally:
        consumer.close()
    return truth


def _producer(options: Mapping[str, str], settings: Mapping[str, Any] | None) -> Producer:
    return Producer({
        "linger.ms": 5, "acks": "all", "enable.idempotence": True, "message.timeout.ms": int(_FLUSH_SECONDS * 1000),
        "queue.buffering.max.messages": 500_000, **options, **(settings or {}),
    })  # fmt: skip
