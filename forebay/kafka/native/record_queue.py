"""The records of a consumer's partitions as columns, past the consumer's own queue."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError

from forebay.kafka.consume.received import Event, Received, Records
from forebay.kafka.native.library import GROUP, Library, Message
from forebay.model.arrow_columns import numbers_column
from forebay.model.errors import ForebayError
from forebay.model.records import SOURCE_SCHEMA
from forebay.model.values import TopicPartition

#: maximum number of messages that are held at a time
MESSAGES_MAX = 10_000


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
        self._queue: int | None = library.kafka.rd_kafka_queue_new(client)
        self._messages = (c.c_void_p * MESSAGES_MAX)()
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

    def receive(self, max_records: int, timeout_seconds: float) -> list[Received]:
        """Return up to ``max_records`` records and events, all that arrive until ``timeout_seconds`` have passed.

        The items of a partition follow each other, in order. Only an event separates records of one partition into two items.
        """
        size = min(max_records, MESSAGES_MAX)
        count = self._library.kafka.rd_kafka_consume_batch_queue(
            self._queue, round(timeout_seconds * 1000), self._messages, size
        )
        if count <= 0:
            return []
        try:
            return list(self._items(count))
        finally:
            self._library.gather.forebay_destroy(self._messages, count)

    def close(self) -> None:
        if self._queue is not None:
            self._library.kafka.rd_kafka_queue_destroy(self._queue)
            self._queue = None

    def _items(self, count: int) -> Iterator[Received]:
        topics: dict[int, str] = {}
        for group in self._measure(count):
            pointer = int(group["topic"])
            if pointer not in topics:
                name = self._library.kafka.rd_kafka_topic_name(pointer) if pointer else b""
                topics[pointer] = name.decode()
            tp = TopicPartition(topics[pointer], int(group["partition"]))
            if group["error"]:
                yield self._event(tp, self._messages[int(group["begin"])], int(group["error"]))
            else:
                yield Records(tp, self._batch(group), int(group["leader_epoch"]))

    def _measure(self, count: int) -> Any:
        """Bring the messages of each partition together, in order, and return their groups."""
        groups = self._runs(count)
        _, which = np.unique(groups[["topic", "partition"]], return_inverse=True)
        order = np.argsort(which, kind="stable")
        if (order[:-1] < order[1:]).all():
            return groups
        pointers = np.frombuffer(memoryview(self._messages), np.uint64)
        pointers[:count] = np.concatenate([pointers[group["begin"] : group["end"]] for group in groups[order]])
        return self._runs(count)

    def _runs(self, count: int) -> Any:
        found = self._library.gather.forebay_measure(
            self._messages, count, int(self._headers), _address(self._groups), len(self._groups)
        )
        return self._groups[:found]

    def _event(self, tp: TopicPartition, pointer: Any, code: int) -> Event:
        text = self._library.kafka.rd_kafka_message_errstr(pointer) or b""
        offset = Message.from_address(pointer).offset
        return Event(tp, KafkaError(code, text.decode(errors="replace")), offset)

    def _batch(self, group: Any) -> pa.RecordBatch:
        begin, count = int(group["begin"]), int(group["end"] - group["begin"])
        keys, values = (
            _Bytes(count, group["key_bytes"], group["null_keys"]),
            _Bytes(count, group["value_bytes"], group["null_values"]),
        )
        offsets, times, kinds = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int32)
        place = c.byref(self._messages, begin * c.sizeof(c.c_void_p))
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
            [names.column(pa.string()), values.column(pa.binary())], fields=list(type_.value_type.fields)
        )
        return pa.Array.from_buffers(type_, count, [pa.py_buffer(valid), pa.py_buffer(ends)], children=[pairs])


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
