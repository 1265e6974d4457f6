"""Sends whole records back into a topic: key, value, headers and timestamp as they were, each acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.client.leaders import why_not_accepted
from forebay.kafka.options.librdkafka import client_options
from forebay.kafka.produce.rows import records_of
from forebay.model.errors import ForebayError, SettingsError, UnreachableError
from forebay.model.values import TopicPartition

_log = logging.getLogger("forebay.kafka")

#: without an acknowledgement for so long the brokers count as out of reach, unless ``delivery.timeout.ms`` says otherwise
_SILENCE_SECONDS = 60.0
#: beyond that, for the client to say so
_REPORTS_SECONDS = 5.0
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

    def __init__(self, own: Mapping[str, Any], given: Mapping[str, str]) -> None:
        """``given`` wins over ``own``. Raises SettingsError for an option that librdkafka refuses."""
        given = dict(given)
        if "message.timeout.ms" in given:  # librdkafka's other name of the same option
            given["delivery.timeout.ms"] = given.pop("message.timeout.ms")
        self._client_errors = ClientErrors(_log)
        made = {"delivery.timeout.ms": round(_SILENCE_SECONDS * 1000), **own, **given}
        try:
            self._producer = Producer({**made, "error_cb": self._client_errors}, logger=self._client_errors)
        except KafkaException as error:
            raise SettingsError(f"kafka: {error.args[0].str()}") from None
        self._delivery_seconds = int(made["delivery.timeout.ms"]) / 1000  # 0: no limit
        self._address = given.get("bootstrap.servers", "")
        self._failure: tuple[KafkaError, TopicPartition] | None = None
        self.sent = 0
        self._checked = 0  # of those that were sent

    def _produce(self, topic: str, record: dict[str, Any]) -> None:
        while True:
            try:
                self._producer.produce(topic, on_delivery=self._delivered, **record)
                return
            except BufferError:  # full: until the brokers have taken some, each within its time-out
                self._hear(0.1)
            except KafkaException as error:
                raise ForebayError(f"topic {topic}: a record was refused: {error.args[0].str()}") from None

    def flush(self) -> None:
        """Each record is acknowledged or given up within its delivery time-out."""
        try:
            left = self._producer.flush(self._delivery_seconds + _REPORTS_SECONDS if self._delivery_seconds else -1)
        except KafkaException as error:
            raise self._ended(error) from None
        self._check()
        if left:
            raise self._unreachable(f"{left} records were not acknowledged")

    def _hear(self, seconds: float) -> None:
        """Of acknowledgements, for so long at most. Raises what the brokers refused."""
        try:
            self._producer.poll(seconds)
        except KafkaException as error:
            raise self._ended(error) from None
        self._check()

    def _ended(self, error: KafkaException) -> ForebayError:
        """The client gives itself up where it can't tell any more what the brokers have taken."""
        return ForebayError(f"Kafka at {self._address}: after {self.sent} records: {error.args[0].str()}")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.sent += 1
        elif self._failure is None:
            partition = message.partition()
            self._failure = error, TopicPartition(message.topic() or "", -1 if partition is None else partition)

    def _check(self) -> None:
        if self._failure is None:
            if self.sent > self._checked:
                self._checked = self.sent
                self._client_errors.forget()
            return
        error, tp = self._failure
        one = "one" if tp.partition < 0 else f"one of {tp}"  # -1: no broker told the topic's partitions
        words = f"topic {tp.topic}: after {self.sent} records {one} was not taken: {error.str()}"
        if error.code() == KafkaError._MSG_TIMED_OUT:
            why = why_not_accepted(self._producer, tp) or f"no broker took it within {self._delivery_seconds:g} s"
            raise self._unreachable(f"{words}: {why}")
        if error.code() == KafkaError.INVALID_TIMESTAMP:
            words += " (the topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms bound them)"
        raise ForebayError(words)

    def _unreachable(self, words: str) -> UnreachableError:
        return self._client_errors.unreachable(f"Kafka at {self._address}: {words}")


class _Sender(_Producing):
    def __init__(self, options: Mapping[str, str], topic: str) -> None:
        self._topic = topic
        own = {
            "linger.ms": 20, "compression.type": "zstd", "acks": "all", "enable.idempotence": True,
            "partitioner": "murmur2_random", "queue.buffering.max.messages": 100_000,
        }  # fmt: skip
        super().__init__(own, client_options(options, "forebay-export"))
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
        self._hear(0)


class _RowSender(_Producing):
    def __init__(self, options: Mapping[str, str], topic: str | None) -> None:
        self._topic = topic
        own = {
            "partitioner": "murmur2_random", "queue.buffering.max.messages": 100_000, "enable.idempotence": True,
        }  # fmt: skip
        if options.get("acks", "all") not in ("all", "-1"):
            del own["enable.idempotence"]  # as in Java's client: what was asked for without it is done without it
        super().__init__(own, client_options(options, "forebay-sink"))

    def put(self, batch: pa.RecordBatch) -> None:
        for topic, key, value, partition, headers in records_of(batch, self._topic):
            record: dict[str, Any] = {"key": key, "value": value}
            if partition is not None:
                record["partition"] = partition
            if headers:
                record["headers"] = headers
            self._produce(topic, record)
        self._hear(0)
