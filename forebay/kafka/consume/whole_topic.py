"""Reads a topic to its current end, without a group."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.consume.fetching import opened
from forebay.kafka.native.received import Event, Records
from forebay.kafka.options.librdkafka import consumer_options
from forebay.model.arrow_columns import number_view
from forebay.model.errors import UsageError
from forebay.model.payload import block_rows
from forebay.model.records import RangeRows, to_dataframe
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock

_log = logging.getLogger("forebay.kafka")
_RECORDS_MAX = 10_000
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
            admin.check_visible([topic])
            raise UsageError(f"topic {topic} does not exist")
        held = admin.watermarks([TopicPartition(topic, number) for number in range(found[topic])])
    positions = {tp: max(low, begin.get(tp, 0)) for tp, (low, _) in held.items()}
    ends = {tp: high for tp, (_, high) in held.items()}
    left = {tp for tp, position in positions.items() if position < ends[tp]}
    settings = consumer_options(options, group=group, memory_bytes=_MEMORY_BYTES, client_id="forebay-reader")
    errors = ClientErrors(_log)
    consumer, fetcher = opened({**settings, "error_cb": errors}, errors, headers=True)
    clock = SystemClock()
    try:
        fetcher.assigning(left, left)
        consumer.assign([WirePartition(topic, tp.partition, positions[tp]) for tp in left])
        deadline = clock.monotonic() + timeout_seconds
        while left:
            for item in fetcher.fetch(_RECORDS_MAX, _POLL_SECONDS):
                tp = item.tp
                if tp not in left or (isinstance(item, Event) and item.error.code() != KafkaError._PARTITION_EOF):
                    continue
                if isinstance(item, Records):
                    offsets = number_view(item.batch.column("offset"), np.int64)
                    if inside := int(np.searchsorted(offsets, ends[tp])):
                        yield tp, _shown(item.batch.slice(0, inside), tp)
                    position = int(offsets[-1]) + 1
                else:
                    position = item.offset
                if position >= ends[tp]:
                    left.discard(tp)
                deadline = clock.monotonic() + timeout_seconds
                errors.forget()
            if left and clock.monotonic() > deadline:
                address = options.get("bootstrap.servers", "")
                raise errors.unreachable(
                    f"Kafka at {address}: topic {topic}: the brokers returned no data for {timeout_seconds:g} s"
                )
    finally:
        fetcher.close()
        consumer.close()


def _shown(batch: pa.RecordBatch, tp: TopicPartition) -> pa.RecordBatch:
    """Return a batch of ``SOURCE_SCHEMA`` as ``DATAFRAME_SCHEMA``."""
    (rows,) = block_rows(RangeRows(tp, [batch]), headers=True)
    return to_dataframe(rows, tp.topic)
