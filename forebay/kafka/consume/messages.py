"""Messages of librdkafka's consumer as Arrow columns, and their errors as kinds of partition faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter, methodcaller
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message

from forebay.kafka.native.received import Event, Received, Records
from forebay.model.arrow_columns import bytes_column, numbers_column
from forebay.model.errors import ForebayError
from forebay.model.records import SOURCE_SCHEMA
from forebay.model.values import TopicPartition

Int64s = npt.NDArray[np.int64]

#: confluent-kafka's number of a timestamp type → Spark's number (0 create time, 1 log append time, -1 none)
_TIMESTAMP_TYPES = np.full(3, -1, np.int32)
_TIMESTAMP_TYPES[TIMESTAMP_CREATE_TIME] = 0
_TIMESTAMP_TYPES[TIMESTAMP_LOG_APPEND_TIME] = 1

#: confluent-kafka returns headers with an error set if a name is not UTF-8. Where a method is called often, Python 3.11 and later
#: do not check for this; here they do.
_read_headers = methodcaller("headers")
#: in place of headers that can't be returned: no column takes it
_UNREADABLE: Any = (0, b"")

#: error of a message → kind of fault (``messages.Fault``); tests/forebay/kafka/consume/test_guards.py has a case for each row
FAULTS: dict[int, str] = {
    KafkaError.OFFSET_OUT_OF_RANGE: "out-of-range",
    KafkaError._AUTO_OFFSET_RESET: "out-of-range",
    KafkaError._NO_OFFSET: "out-of-range",
    KafkaError._LOG_TRUNCATION: "truncated",
    KafkaError._BAD_MSG: "corrupt",
    KafkaError._BAD_COMPRESSION: "corrupt",
    KafkaError.INVALID_MSG: "corrupt",
    KafkaError.INVALID_MSG_SIZE: "corrupt",
    KafkaError.INVALID_RECORD: "corrupt",
    KafkaError._UNKNOWN_TOPIC: "recreated",
    KafkaError._UNKNOWN_PARTITION: "recreated",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "recreated",
    KafkaError.UNKNOWN_TOPIC_ID: "recreated",
    103: "recreated",  # INCONSISTENT_TOPIC_ID, for which older releases of confluent-kafka have no name
}


def partition_of(message: Message) -> TopicPartition:
    """Return the partition of a record or event; an event of the whole client has partition -1."""
    partition = message.partition()
    return TopicPartition(message.topic() or "", -1 if partition is None else partition)


def record_batch(messages: Sequence[Message], headers: bool) -> pa.RecordBatch:
    """Return the records of one or more partitions as columns of ``SOURCE_SCHEMA``, in the given order.

    Each message must be a record: no error, no end of a partition.
    """
    count = len(messages)
    offsets: Int64s = np.fromiter(map(Message.offset, messages), np.int64, count)
    stamps = np.fromiter(chain.from_iterable(map(Message.timestamp, messages)), np.int64, 2 * count).reshape(count, 2)
    kinds = _TIMESTAMP_TYPES[stamps[:, 0]]
    times = np.where(kinds < 0, -1, stamps[:, 1])
    keys = bytes_column(cast("list[bytes | None]", list(map(Message.key, messages))))
    values = bytes_column(cast("list[bytes | None]", list(map(Message.value, messages))))
    numbers = [(offsets, pa.int64()), (times, pa.int64()), (kinds, pa.int32())]
    arrays: list[Any] = [keys, values, *(numbers_column(column, type_) for column, type_ in numbers)]
    if headers:
        arrays.append(pa.array(map(headers_of, messages), SOURCE_SCHEMA(True).field("headers").type))
    return pa.RecordBatch.from_arrays(arrays, schema=SOURCE_SCHEMA(headers))


def received(messages: list[Message], headers: bool) -> list[Received]:
    """Return messages of a consumer as columns and events. The items of a partition are in order."""
    if not messages:
        return []
    if not any(map(Message.error, messages)):
        return list(_records(messages, headers))
    found: list[Received] = []
    waiting: list[Message] = []
    for message in messages:
        error = message.error()
        if error is None:
            waiting.append(message)
            continue
        if waiting:
            found += _records(waiting, headers)
            waiting = []
        offset = message.offset()
        found.append(Event(partition_of(message), error, -1 if offset is None else offset))
    return [*found, *_records(waiting, headers)] if waiting else found


def _records(messages: list[Message], headers: bool) -> Iterator[Records]:
    messages, bounds = by_partition(messages)
    batch = record_batch(messages, headers)
    for begin, end in bounds:
        last = messages[end - 1]
        leader_epoch = last.leader_epoch()
        yield Records(partition_of(last), batch.slice(begin, end - begin), -1 if leader_epoch is None else leader_epoch)


def by_partition(messages: list[Message]) -> tuple[list[Message], list[tuple[int, int]]]:
    """Return the messages grouped by partition, in order within each, and the bounds of each group."""
    count = len(messages)
    numbers = np.fromiter(map(Message.partition, messages), np.int64, count)
    topics = cast("list[str]", list(map(Message.topic, messages)))
    names = set(topics)
    if len(names) > 1:
        index = {name: place << 32 for place, name in enumerate(sorted(names))}
        numbers += np.fromiter(map(index.__getitem__, topics), np.int64, count)
    cuts = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
    runs = sorted(zip([0, *cuts], [*cuts, count], numbers[[0, *cuts]].tolist(), strict=True), key=itemgetter(2))
    if len(runs) == 1:
        return messages, [(0, count)]
    grouped: list[Message] = []
    bounds: list[tuple[int, int]] = []
    previous = None
    for begin, end, number in runs:
        place = len(grouped)
        grouped += messages[begin:end]
        if number == previous:
            bounds[-1] = (bounds[-1][0], len(grouped))
        else:
            bounds.append((place, len(grouped)))
        previous = number
    return grouped, bounds


def headers_of(message: Message) -> Any:
    """Return the headers of a record as pairs, or None. A name that is not UTF-8 is replaced, as Kafka's Java client does it.

    confluent-kafka raises an error for such a name, and leaves the name out. Only the error has its bytes, and only those of one
    name. Raises ForebayError if a record has several such names.
    """
    try:
        return _read_headers(message)
    except SystemError as error:
        cause = error.__cause__
        while isinstance(cause, SystemError):  # of a further name
            cause = cause.__cause__
        if not isinstance(cause, UnicodeDecodeError):
            raise
        name = cause.object.decode("utf-8", "replace")
    pairs: list[Any] = cast(Any, message.headers())
    # reading the name that is left out would end the process, so its pair is known by its text
    replaced = [(name, pair[1]) if repr(pair).startswith("(<NULL>,") else pair for pair in pairs]
    several = sum(kept is not pair for kept, pair in zip(replaced, pairs, strict=True)) > 1
    message.set_headers([_UNREADABLE] if several else replaced)
    if several:
        raise ForebayError(
            f"the record at offset {message.offset()} of {partition_of(message)} has several header names that are not UTF-8: "
            "confluent-kafka can't return them; run where Forebay's native library loads, or set kafka.headers to false"
        )
    return replaced
