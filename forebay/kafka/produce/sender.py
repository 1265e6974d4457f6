"""Sends records into a topic without transactions, and waits until each is acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.client.denials import is_denied, missing_right
from forebay.kafka.client.leaders import why_not_accepted
from forebay.kafka.options.librdkafka import client_options
from forebay.kafka.options.rights import ANY_NAME, writer_rights
from forebay.kafka.produce.rows import records_of
from forebay.model.errors import ForebayError, SettingsError, UnreachableError
from forebay.model.values import TopicPartition

_log = logging.getLogger("forebay.kafka")

#: default of ``delivery.timeout.ms``: how long a record may stay unacknowledged before the brokers count as unreachable
_SILENCE_SECONDS = 60.0
#: time after the delivery timeout for the client to report it
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
    """Send whole records: key, value, headers and timestamp of the rows of ``batches`` (``DATAFRAME_SCHEMA``).

    Return their number when all are acknowledged. ``same_partitions``: send each to the partition that its row names; otherwise
    the key decides, as in Java's client. A record without a timestamp, or with 0 (which means none to librdkafka), gets the time
    of sending. ``progress``: called with the number acknowledged since its last call.

    Raises UnreachableError if acknowledgements are missing, ForebayError if a record is refused. Acknowledged records stay in the
    topic.
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
    """Send each row as a record, as :func:`forebay.kafka.produce.rows.records_of` does. Return their number when all are
    acknowledged.

    By default all replicas acknowledge, and a retry makes no duplicate; ``options`` may change both. A key without a partition
    chooses it as in Java's client. Raises UsageError for a row without a topic; otherwise as :func:`send`.
    """
    sender = _RowSender(options, topic)
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            sender.put(batch.slice(start, _ROWS_AT_ONCE))
    sender.flush()
    return sender.sent


class _Producing:
    """A producer, and the results of its records."""

    def __init__(self, own: Mapping[str, Any], given: Mapping[str, str]) -> None:
        """``given`` has precedence over ``own``. Raises SettingsError for an option that librdkafka refuses."""
        given = dict(given)
        if "message.timeout.ms" in given:  # librdkafka's other name for the same option
            given["delivery.timeout.ms"] = given.pop("message.timeout.ms")
        self._client_errors = ClientErrors(_log, options=given)
        made = {"delivery.timeout.ms": round(_SILENCE_SECONDS * 1000), **own, **given}
        try:
            self._producer = Producer({**made, "error_cb": self._client_errors}, logger=self._client_errors)
        except KafkaException as error:
            raise SettingsError(
                f"cannot create a Kafka client: {error.args[0].str()}; correct the Kafka options"
            ) from None
        self._delivery_seconds = int(made["delivery.timeout.ms"]) / 1000  # 0: no limit
        self._address = given.get("bootstrap.servers", "")
        self._failure: tuple[KafkaError, TopicPartition] | None = None
        self._last_topic = ANY_NAME
        self.sent = 0
        self._checked = 0  # value of ``sent`` at the last check

    def _produce(self, topic: str, record: dict[str, Any]) -> None:
        self._last_topic = topic
        while True:
            try:
                self._producer.produce(topic, on_delivery=self._delivered, **record)
                return
            except BufferError:  # the queue is full: wait until brokers accept some records, each within its timeout
                self._serve(0.1)
            except KafkaException as error:
                raise ForebayError(f"topic {topic}: the client refused a record: {error.args[0].str()}") from None

    def flush(self) -> None:
        """Wait until each record is acknowledged, or has failed within its delivery timeout."""
        try:
            with self._client_errors.fatal():
                left = self._producer.flush(self._delivery_seconds + _REPORTS_SECONDS if self._delivery_seconds else -1)
        except KafkaException as error:
            raise self._ended(error) from None
        self._check()
        if left:
            raise self._unreachable(f"{left} records were not acknowledged")

    def _serve(self, seconds: float) -> None:
        """Process acknowledgements for at most ``seconds``. Raises the error of a refused record."""
        try:
            with self._client_errors.fatal():
                self._producer.poll(seconds)
        except KafkaException as error:
            raise self._ended(error) from None
        self._check()

    def _ended(self, error: KafkaException) -> ForebayError:
        """Return the error of a client that ended: the authorizer denies it, or it no longer knows which records the brokers
        accepted."""
        message = f"Kafka at {self._address}: after {self.sent} records: {error.args[0].str()}"
        if is_denied(error.args[0]):
            return missing_right(message, error.args[0], writer_rights(self._last_topic))
        return ForebayError(message)

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
        one = "one" if tp.partition < 0 else f"one of {tp}"  # -1: no broker returned the topic's partitions
        message = f"topic {tp.topic}: after {self.sent} records {one} was not accepted: {error.str()}"
        if error.code() == KafkaError._MSG_TIMED_OUT:
            why = why_not_accepted(self._producer, tp) or f"no broker accepted it within {self._delivery_seconds:g} s"
            raise self._unreachable(f"{message}: {why}")
        if error.code() == KafkaError.INVALID_TIMESTAMP:
            message += (
                " (the topic limits timestamps by message.timestamp.before.max.ms and message.timestamp.after.max.ms)"
            )
        if is_denied(error):
            raise missing_right(f"Kafka at {self._address}: {message}", error, writer_rights(tp.topic))
        raise ForebayError(message)

    def _unreachable(self, message: str) -> UnreachableError:
        return self._client_errors.unreachable(f"Kafka at {self._address}: {message}")


class _Sender(_Producing):
    def __init__(self, options: Mapping[str, str], topic: str) -> None:
        self._topic = topic
        own = {
            "linger.ms": 20, "compression.type": "zstd", "acks": "all", "enable.idempotence": True,
            "partitioner": "murmur2_random", "queue.buffering.max.messages": 100_000,
        }  # fmt: skip
        super().__init__(own, client_options(options, "forebay-export"))
        self._reported = 0

    def acknowledged(self) -> int:
        """Return the number of acknowledged records since the last call."""
        new, self._reported = self.sent - self._reported, self.sent
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
        self._serve(0)


class _RowSender(_Producing):
    def __init__(self, options: Mapping[str, str], topic: str | None) -> None:
        self._topic = topic
        own = {
            "partitioner": "murmur2_random", "queue.buffering.max.messages": 100_000, "enable.idempotence": True,
        }  # fmt: skip
        if options.get("acks", "all") not in ("all", "-1"):
            del own["enable.idempotence"]  # as in Java's client: other acknowledgements exclude idempotence
        super().__init__(own, client_options(options, "forebay-sink"))

    def put(self, batch: pa.RecordBatch) -> None:
        for topic, key, value, partition, headers in records_of(batch, self._topic):
            record: dict[str, Any] = {"key": key, "value": value}
            if partition is not None:
                record["partition"] = partition
            if headers:
                record["headers"] = headers
            self._produce(topic, record)
        self._serve(0)
