"""The records of a consumer's partitions as columns, past the consumer's own queue."""

from __future__ import annotations

import ctypes as c
import os
import weakref
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError

from forebay.kafka.native.library import GROUP, ITEM, Library
from forebay.kafka.native.received import CLIENT, Event, Received, Records
from forebay.model.arrow_columns import bytes_column, numbers_column
from forebay.model.errors import ForebayError
from forebay.model.records import SOURCE_SCHEMA
from forebay.model.values import TopicPartition

#: maximum number of messages that are held at a time
MESSAGES_MAX = 20_000
#: Kafka's maximum length of a topic's name
TOPIC_LENGTH_MAX = 249


class RecordQueue:
    """A queue to which librdkafka puts the records and events of partitions, instead of the consumer's queue.

    Events of the group and of the client stay in the consumer's queue: the caller polls both. For one thread. :meth:`close` it
    before the consumer.
    """

    def __init__(self, library: Library, client: int, headers: bool) -> None:
        """``client``: the consumer's handle, from :meth:`Library.take_client`. ``headers``: whether records have that column."""
        self._library = library
        self._client = client
        self._headers = headers
        self._queue: int = library.kafka.rd_kafka_queue_new(client)
        # a consumer can't be destroyed while this queue holds its records
        self._end = weakref.finalize(self, _destroy, library, self._queue, os.getpid())
        self._end.atexit = False
        self._items: Any = np.zeros(MESSAGES_MAX, ITEM)
        self._groups: Any = np.zeros(MESSAGES_MAX, GROUP)

    def redirect(self, partitions: Iterable[TopicPartition]) -> None:
        """Put the records of these partitions into this queue from now on, after those that wait in the partitions' own queues.

        Before an assignment, no record of it can get into the consumer's queue.
        """
        kafka = self._library.kafka
        for tp in partitions:
            own = kafka.rd_kafka_queue_get_partition(self._client, tp.topic.encode(), tp.partition)
            if not own:
                raise ForebayError(f"Kafka client: no queue for {tp}")
            kafka.rd_kafka_queue_forward(own, self._queue)
            kafka.rd_kafka_queue_destroy(own)

    def receive(self, max_records: int, timeout_seconds: float, gather_seconds: float) -> list[Received]:
        """Wait ``timeout_seconds`` at most for a record or event. Return it, and what follows within ``gather_seconds``, up to
        ``max_records`` in all. The call takes no longer than ``timeout_seconds``, also if records arrive at its end.

        The items of a partition follow each other, in order. Its records are one item, except around an event
        and above 1 GiB.
        """
        count = self._library.gather.forebay_receive(
            self._queue, round(timeout_seconds * 1000), round(gather_seconds * 1000), _address(self._items),
            min(max_records, MESSAGES_MAX),
        )  # fmt: skip
        if not count:
            return []
        try:
            return self._received(count)
        finally:
            self._library.gather.forebay_destroy(_address(self._items), count)

    def close(self) -> None:
        """Drop the records that wait. The object can't be used any more."""
        self._end()

    def _received(self, count: int) -> list[Received]:
        groups = self._measured(count)
        places: dict[TopicPartition, int] = {}
        order = [places.setdefault(self._partition(group), len(places)) for group in groups]
        if order != sorted(order):
            # side by side, the records of a partition are copied once, into one column
            by_partition = sorted(zip(order, groups, strict=True), key=itemgetter(0))
            moved: Any = np.concatenate([self._items[group["begin"] : group["end"]] for _, group in by_partition])
            self._items[:count] = moved
            groups = self._measured(count)
        return [self._one(group) for group in groups]

    def _measured(self, count: int) -> Any:
        found = self._library.gather.forebay_measure(
            _address(self._items), count, int(self._headers), _address(self._groups)
        )
        return self._groups[:found]

    def _partition(self, group: Any) -> TopicPartition:
        if group["is_error"]:
            return self._event(group).tp
        topic = self._library.kafka.rd_kafka_topic_name(int(group["topic"])).decode()
        return TopicPartition(topic, int(group["partition"]))

    def _one(self, group: Any) -> Received:
        if group["is_error"]:
            return self._event(group)
        return Records(self._partition(group), self._batch(group), int(group["leader_epoch"]))

    def _event(self, group: Any) -> Event:
        event = int(self._items[group["begin"]]["event"])
        topic, partition, offset, text = (
            c.create_string_buffer(TOPIC_LENGTH_MAX + 1),
            c.c_int32(),
            c.c_int64(),
            c.c_char_p(),
        )
        code = self._library.gather.forebay_error(
            event, topic, len(topic), c.byref(partition), c.byref(offset), c.byref(text)
        )
        message = (text.value or b"").decode(errors="replace")
        tp = TopicPartition(topic.value.decode(), partition.value)
        # with this prefix, it is one that librdkafka passes to the error callback of the client
        if message.startswith(f"{tp.topic} [{tp.partition}]: "):
            tp = CLIENT
        return Event(tp, KafkaError(code, message), offset.value)

    def _batch(self, group: Any) -> pa.RecordBatch:
        begin, count = int(group["begin"]), int(group["end"] - group["begin"])
        keys, values = (
            _Bytes(count, group["key_bytes"], group["null_keys"]),
            _Bytes(count, group["value_bytes"], group["null_values"]),
        )
        offsets, times, kinds = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int32)
        place = _address(self._items[begin:])
        self._library.gather.forebay_fill(
            place, count, *keys.addresses, *values.addresses, *map(_address, (offsets, times, kinds))
        )
        columns = [keys.column(pa.binary()), values.column(pa.binary())]
        columns += [
            numbers_column(numbers, type_)
            for numbers, type_ in ((offsets, pa.int64()), (times, pa.int64()), (kinds, pa.int32()))
        ]
        if self._headers:
            columns.append(self._header_column(group, place, count))
        return pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA(self._headers))

    def _header_column(self, group: Any, place: Any, count: int) -> Any:
        entries = int(group["header_count"])
        names, values = _Bytes(entries, group["header_name_bytes"], 0), _Bytes(entries, group["header_value_bytes"], 1)
        ends: Any = np.empty(count + 1, np.int32)
        valid = _bitmap(count)
        self._library.gather.forebay_fill_headers(
            place, count, _address(ends), _address(valid), *names.addresses[:2], *values.addresses
        )
        type_ = SOURCE_SCHEMA(True).field("headers").type
        pairs = pa.StructArray.from_arrays(
            [_as_text(names.column(pa.binary())), values.column(pa.binary())], fields=list(type_.value_type.fields)
        )
        return pa.Array.from_buffers(type_, count, [pa.py_buffer(valid), pa.py_buffer(ends)], children=[pairs])


def _destroy(library: Library, queue: int, process: int) -> None:
    if os.getpid() == process:  # a forked child has none of librdkafka's threads
        library.kafka.rd_kafka_queue_destroy(queue)


def _as_text(names: Any) -> Any:
    """Return binary values as strings. What is not UTF-8 is replaced, as Kafka's Java client does it."""
    text = names.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return bytes_column([name.decode(errors="replace").encode() for name in names.to_pylist()], pa.string())
    return text


class _Bytes:
    """The buffers of a column of ``count`` values, ``size`` bytes in all. Without ``nulls``, it has no bitmap."""

    def __init__(self, count: int, size: Any, nulls: Any) -> None:
        self._count = count
        self._data: Any = np.empty(int(size), np.uint8)
        self._ends: Any = np.empty(count + 1, np.int32)
        self._valid: Any = _bitmap(count) if nulls else None

    @property
    def addresses(self) -> tuple[int, int, int | None]:
        return _address(self._data), _address(self._ends), None if self._valid is None else _address(self._valid)

    def column(self, type_: Any) -> Any:
        valid = None if self._valid is None else pa.py_buffer(self._valid)
        return pa.Array.from_buffers(type_, self._count, [valid, pa.py_buffer(self._ends), pa.py_buffer(self._data)])


def _bitmap(count: int) -> Any:
    return np.zeros((count + 7) // 8, np.uint8)


def _address(array: Any) -> int:
    return int(array.ctypes.data)
