"""Sends whole records back into a topic: key, value, headers and timestamp as they were, each acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from forebay.errors import ForebayError, SettingsError, UnreachableError, UsageError
from forebay.kafka.options import client_options

_log = logging.getLogger("forebay.kafka")

#: without an acknowledgement for so long the brokers count as out of reach
_SILENCE_SECONDS = 60.0
_ROWS_AT_ONCE = 5_000


def send(
    options: Mapping[str, str],
    topic: str,
    batches: Iterable[pa.RecordBatch],
    *,
    same_partitions: bool = True,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Produces the rows of ``batches`` (``DATAFRAME_SCHEMA``) into ``topic``; how many, when all are acknowledged.

    ``same_partitions``: into the partition that each row names; else the key decides, as by Java's client. A record without a
    timestamp, or with 0 (which librdkafka takes for none), gets the time of sending. ``progress`` gets the number acknowledged
    since its last call. Raises UnreachableError if acknowledgements stay out, ForebayError if a record is refused: what was
    acknowledged until then stays in the topic.
    """
    sender = _Sender(options, topic)
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            sender.put(batch.slice(start, _ROWS_AT_ONCE), same_partitions)
            progress(sender.acknowledged())
    sender.flush()
    progress(sender.acknowledged())
    return sender.sent


def send_rows(options: Mapping[str, str], topic: str | None, batches: Iterable[pa.RecordBatch]) -> int:
    """Produces each row as a record: ``value``, and ``key``, ``headers`` and ``partition`` where there are such columns, into
    ``topic``, or the one that the row's column ``topic`` names; how many, when all are acknowledged.

    ``options`` may set how: without, the acknowledgement is of all replicas, and a retry gives no duplicate. Keys without a
    partition choose it as Java's client does. Raises UsageError for a row without a topic; else as :func:`send`.
    """
    sender = _RowSender(options, topic)
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            sender.put(batch.slice(start, _ROWS_AT_ONCE))
    sender.flush()
    return sender.sent


class _Producing:
    """A producer, and what became of its records."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Raises SettingsError for an option that librdkafka refuses."""
        try:
            self._producer = Producer({**options}, logger=_log)
        except KafkaException as error:
            raise SettingsError(f"kafka: {error.args[0].str()}") from None
        self._failure: tuple[KafkaError, str] | None = None
        self.sent = 0

    def _produce(self, topic: str, record: dict[str, Any]) -> None:
        while True:
            try:
                self._producer.produce(topic, on_delivery=self._delivered, **record)
                return
            except BufferError:  # full: until the brokers have taken some, each within its time-out
                self._producer.poll(0.1)
                self._check()
            except KafkaException as error:
                raise ForebayError(f"topic {topic}: a record was refused: {error.args[0].str()}") from None

    def flush(self) -> None:
        left = self._producer.flush(_SILENCE_SECONDS + 5)
        self._check()
        if left:
            raise UnreachableError(f"{left} records were not acknowledged")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.sent += 1
        elif self._failure is None:
            self._failure = error, message.topic() or ""

    def _check(self) -> None:
        if self._failure is None:
            return
        error, topic = self._failure
        words = f"topic {topic}: after {self.sent} records one was not taken: {error.str()}"
        if error.code() == KafkaError._MSG_TIMED_OUT:
            raise UnreachableError(words)
        if error.code() == KafkaError.INVALID_TIMESTAMP:
            words += " (the topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms bound them)"
        raise ForebayError(words)


class _Sender(_Producing):
    def __init__(self, options: Mapping[str, str], topic: str) -> None:
        self._topic = topic
        super().__init__({
            "linger.ms": 20, "compression.type": "zstd", "acks": "all", "enable.idempotence": True,
            "partitioner": "murmur2_random", "queue.buffering.max.messages": 100_000,
            "message.timeout.ms": int(_SILENCE_SECONDS * 1000),
            **client_options(options, "forebay-export"),
        })  # fmt: skip
        self._told = 0

    def acknowledged(self) -> int:
        """How many since the last call."""
        new, self._told = self.sent - self._told, self.sent
        return new

    def put(self, batch: pa.RecordBatch, same_partitions: bool) -> None:
        columns = {name: batch.column(name).to_pylist() for name in ("key", "value", "partition")}
        milliseconds: Any = batch.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False)
        times = milliseconds.view(pa.int64()).to_pylist()
        has_headers = "headers" in batch.schema.names
        headers = batch.column("headers").to_pylist() if has_headers else [None] * batch.num_rows
        for key, value, partition, time, own in zip(*columns.values(), times, headers, strict=True):
            record: dict[str, Any] = {"key": key, "value": value}
            if same_partitions:
                record["partition"] = partition
            if time > 0:
                record["timestamp"] = time
            if own:
                record["headers"] = [(header["key"], header["value"]) for header in own]
            self._produce(self._topic, record)
        self._producer.poll(0)
        self._check()


class _RowSender(_Producing):
    def __init__(self, options: Mapping[str, str], topic: str | None) -> None:
        self._topic = topic
        own = {
            "partitioner": "murmur2_random", "queue.buffering.max.messages": 100_000, "enable.idempotence": True,
            "delivery.timeout.ms": int(_SILENCE_SECONDS * 1000),
        }  # fmt: skip
        if options.get("acks", "all") not in ("all", "-1"):
            del own["enable.idempotence"]  # as in Java's client: what was asked for without it is done without it
        given = client_options(options, "forebay-sink")
        if "message.timeout.ms" in given:  # librdkafka's other name of the same option
            given["delivery.timeout.ms"] = given.pop("message.timeout.ms")
        super().__init__({**own, **given})

    def put(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        nothing: list[Any] = [None] * batch.num_rows
        key, value, partition, headers, topic = (
            batch.column(name).to_pylist() if name in names else nothing
            for name in ("key", "value", "partition", "headers", "topic")
        )
        if self._topic is not None:
            topic = [self._topic] * batch.num_rows
        for own_key, own_value, number, own_headers, name in zip(key, value, partition, headers, topic, strict=True):
            if name is None:
                raise UsageError("null topic present in the data: use the option topic to set one for all rows")
            record: dict[str, Any] = {"key": own_key, "value": own_value}
            if number is not None:
                record["partition"] = number
            if own_headers:
                record["headers"] = [(header["key"], header["value"]) for header in own_headers]
            self._produce(name, record)
        self._producer.poll(0)
        self._check()
