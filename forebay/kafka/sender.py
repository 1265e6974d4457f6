"""Sends whole records back into a topic: key, value, headers and timestamp as they were, each acknowledged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from forebay.errors import ForebayError, UnreachableError
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


class _Sender:
    def __init__(self, options: Mapping[str, str], topic: str) -> None:
        self._topic = topic
        self._producer = Producer({
            "linger.ms": 20, "compression.type": "zstd", "acks": "all", "enable.idempotence": True,
            "partitioner": "murmur2_random", "queue.buffering.max.messages": 100_000,
            "message.timeout.ms": int(_SILENCE_SECONDS * 1000),
            **client_options(options, "forebay-export"),
        }, logger=_log)  # fmt: skip
        self._failure: KafkaError | None = None
        self._told = 0
        self.sent = 0

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
            record: dict[str, Any] = {"key": key, "value": value, "on_delivery": self._delivered}
            if same_partitions:
                record["partition"] = partition
            if time > 0:
                record["timestamp"] = time
            if own:
                record["headers"] = [(header["key"], header["value"]) for header in own]
            self._produce(record)
        self._producer.poll(0)
        self._check()

    def _produce(self, record: dict[str, Any]) -> None:
        while True:
            try:
                self._producer.produce(self._topic, **record)
                return
            except BufferError:  # full: until the brokers have taken some, each within its time-out
                self._producer.poll(0.1)
                self._check()
            except KafkaException as error:
                raise ForebayError(f"topic {self._topic}: a record was refused: {error.args[0].str()}") from None

    def flush(self) -> None:
        left = self._producer.flush(_SILENCE_SECONDS + 5)
        self._check()
        if left:
            raise UnreachableError(f"topic {self._topic}: {left} records were not acknowledged")

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.sent += 1
        elif self._failure is None:
            self._failure = error

    def _check(self) -> None:
        if self._failure is None:
            return
        words = f"topic {self._topic}: after {self.sent} records one was not taken: {self._failure.str()}"
        if self._failure.code() == KafkaError._MSG_TIMED_OUT:
            raise UnreachableError(words)
        if self._failure.code() == KafkaError.INVALID_TIMESTAMP:
            words += " (the topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms bound them)"
        raise ForebayError(words)
