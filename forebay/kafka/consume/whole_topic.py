"""Reads a topic to its current end, without a group."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.consume.messages import record_batch
from forebay.kafka.options.librdkafka import consumer_options
from forebay.model.errors import SettingsError, UsageError
from forebay.model.records import DATAFRAME_SCHEMA, to_dataframe
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock

_log = logging.getLogger("forebay.kafka")
_MESSAGES_MAX = 1_000
_POLL_SECONDS = 0.1
_MEMORY_BYTES = 64_000_000


def read_topic(
    options: Mapping[str, str], topic: str, group: str, begin: Mapping[TopicPartition, int], timeout_seconds: float
) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Return the records of each partition from ``begin`` (or its beginning) to its current end, in offset order.

    Batches are of ``DATAFRAME_SCHEMA`` with headers. ``group`` is never joined. Raises UsageError if the topic does not exist,
    UnreachableError if the brokers return no data for ``timeout_seconds``, SettingsError.
    """
    with KafkaAdmin(options, timeout_seconds=timeout_seconds, client_id="forebay-reader") as admin:
        found = admin.topics()
        if topic not in found:
            raise UsageError(f"topic {topic} does not exist")
        held = admin.watermarks([TopicPartition(topic, number) for number in range(found[topic])])
    positions = {tp: max(low, begin.get(tp, 0)) for tp, (low, _) in held.items()}
    ends = {tp: high for tp, (_, high) in held.items()}
    left = {tp for tp, position in positions.items() if position < ends[tp]}
    settings = consumer_options(options, group=group, memory_bytes=_MEMORY_BYTES, client_id="forebay-reader")
    errors = ClientErrors(_log)
    try:
        consumer = Consumer({**settings, "error_cb": errors}, logger=errors)
    except KafkaException as error:
        raise SettingsError(f"cannot create a Kafka client: {error.args[0].str()}; correct the Kafka options") from None
    clock = SystemClock()
    try:
        consumer.assign([WirePartition(topic, tp.partition, positions[tp]) for tp in left])
        deadline = clock.monotonic() + timeout_seconds
        while left:
            messages: dict[TopicPartition, list[Message]] = {}
            for message in consumer.consume(_MESSAGES_MAX, _POLL_SECONDS):
                tp = TopicPartition(message.topic() or "", message.partition() or 0)
                failure, offset = message.error(), message.offset() or 0
                if tp not in left or (failure is not None and failure.code() != KafkaError._PARTITION_EOF):
                    continue
                if failure is None and offset < ends[tp]:
                    messages.setdefault(tp, []).append(message)
                if offset >= ends[tp] - (failure is None):
                    left.discard(tp)
                deadline = clock.monotonic() + timeout_seconds
                errors.forget()
            for tp, own in messages.items():
                yield tp, _shown(record_batch(own, headers=True), tp)
            if left and clock.monotonic() > deadline:
                address = options.get("bootstrap.servers", "")
                raise errors.unreachable(
                    f"Kafka at {address}: topic {topic}: the brokers returned no data for {timeout_seconds:g} s"
                )
    finally:
        consumer.close()


def _shown(batch: Any, tp: TopicPartition) -> pa.RecordBatch:
    """Return columns of ``SOURCE_SCHEMA`` as ``DATAFRAME_SCHEMA``."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["topic"] = pa.nulls(batch.num_rows)
    columns["partition"] = pa.array([tp.partition] * batch.num_rows, pa.int32())
    columns["timestamp"] = columns["timestamp"].cast(pa.timestamp("ms", "UTC"))
    names = DATAFRAME_SCHEMA(True).names
    return to_dataframe(pa.RecordBatch.from_arrays([columns[name] for name in names], names), tp.topic)
