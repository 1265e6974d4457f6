"""Rows into topics, in every output mode as if it were append: at least once, as Spark's Kafka sink writes them, or each batch in
one transaction.

**In transactions** a task sends nothing: it gives its rows to the query's own process, in the message by which Spark learns that
it is done. :meth:`TransactionalWriter.commit` sends those of all tasks in one transaction, together with a marker that names the
batch. So a task may run as often as it likes, and a batch that is run again is recognised, whatever its rows are by then.
"""

from __future__ import annotations

import io
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
)

from forebay.kafka.options.java import translate
from forebay.kafka.produce.rows import check_topics, records_of
from forebay.kafka.produce.sender import send_rows
from forebay.kafka.produce.transactions import TransactionalSender, transactional_group
from forebay.model.errors import UnreachableError, UsageError
from forebay.process import failpoints
from pyspark_forebay.options import flag, kafka_options, unknown_options

_log = logging.getLogger("forebay.sink")

KNOWN = ("topic", "transactional", "groupIdPrefix", "checkpointLocation")
_REFUSED = {
    "key.serializer": "keys are written as bytes or text: serialise them by DataFrame operations",
    "value.serializer": "values are written as bytes or text: serialise them by DataFrame operations",
    "transactional.id": "it is made of the query's id: set the option transactional to true, and groupIdPrefix for how it begins",
}
#: the broker's default for the longest transaction that it allows is 15 minutes
_TRANSACTION_SECONDS = 60.0
#: local properties by which Spark tells its tasks of a streaming query
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """``topic``: None if each row names its own. ``kafka``: for librdkafka; it may hold passwords, so nothing shows it.
    ``told``: a sentence for each option that does nothing or something else here."""

    topic: str | None
    transactional: bool
    prefix: str
    transaction_seconds: float
    kafka: Mapping[str, str] = field(repr=False)
    told: tuple[str, ...]


def read_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Raises UsageError for what Spark's Kafka sink refuses."""
    given = {name.lower(): value for name, value in options.items()}
    translated = translate(kafka_options(given, _REFUSED))
    kafka = dict(translated.options)
    told = [*unknown_options(given, KNOWN), *translated.changes]
    transactional = flag(given, "transactional", False)
    seconds = _TRANSACTION_SECONDS
    if transactional:
        milliseconds = kafka.pop("transaction.timeout.ms", str(round(seconds * 1000))).strip()
        if not milliseconds.isascii() or not milliseconds.isdigit() or not int(milliseconds):
            raise UsageError(f"option kafka.transaction.timeout.ms: {milliseconds!r}: allowed are whole numbers from 1")
        seconds = int(milliseconds) / 1000
        ignored = [name for name in ("delivery.timeout.ms", "message.timeout.ms") if kafka.pop(name, None) is not None]
        told += [f"option kafka.{name} is ignored: kafka.transaction.timeout.ms is the limit" for name in ignored]
    elif kafka.get("acks", "all").strip() not in ("all", "-1") and "enable.idempotence" not in kafka:
        told.append("enable.idempotence is false, as kafka.acks is not all: what is sent again may be there twice")
    return SinkOptions(
        topic=given.get("topic", "").strip() or None,
        transactional=transactional,
        prefix=given.get("groupidprefix", "forebay-sink").strip(),
        transaction_seconds=seconds,
        kafka=kafka,
        told=tuple(told),
    )


def writer_of(
    options: Mapping[str, str], schema: StructType, *, streaming: bool
) -> AtLeastOnceWriter | TransactionalWriter:
    """Made in the planner's process. Raises UsageError for options and columns that Spark's Kafka sink refuses."""
    found = read_sink_options(options)
    check_columns({column.name: column.dataType for column in schema.fields}, found.topic)
    for sentence in found.told:
        _tell(sentence)
    return TransactionalWriter(found, streaming=streaming) if found.transactional else AtLeastOnceWriter(found)


@cache
def _tell(sentence: str) -> None:
    _log.warning("%s", sentence)  # once in a process, which may make the writers of many batches


class AtLeastOnceWriter(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """:meth:`write` runs in the tasks. What a task that failed has sent stays in the topic."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Returns when every record is acknowledged. Raises UnreachableError, ForebayError, UsageError."""
        send_rows(self._options.kafka, self._options.topic, iterator)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803 - Spark's name
        pass  # acknowledged is written

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        pass  # at least once: nothing is taken back


@dataclass  # as Spark's own, which it shall be one of
class TaskRows(WriterCommitMessage):
    """What a task gives to be committed. ``rows``: an Arrow stream, b"" if there are none. ``query``, ``batch``: as Spark tells
    the task; a batch query has no ``batch``, and an id of its own."""

    query: str
    batch: int | None
    rows: bytes = field(repr=False)


class TransactionalWriter(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """:meth:`write` runs in the tasks, :meth:`commit` in a process on the query's driver."""

    def __init__(self, options: SinkOptions, *, streaming: bool) -> None:
        self._options = options
        self._streaming = streaming
        self._own_id = uuid.uuid4().hex  # of a batch query, which nobody runs again by the same name

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskRows:  # type: ignore[override]
        """Sends nothing. Raises UsageError for a row without a topic."""
        query, batch = _place_in_query() if self._streaming else (self._own_id, None)
        message = TaskRows(query, batch, packed(iterator, self._options.topic))
        failpoints.hit("sink.task-end")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """All rows and the marker, or nothing. Raises UnreachableError, StoreError, ForebayError, UsageError."""
        given = [message for message in messages if isinstance(message, TaskRows)]
        full = [message.rows for message in given if message.rows]
        if not full:
            return  # there is nothing to write, and nothing to leave a marker of
        options = self._options
        number = batchId if self._streaming else 0
        if self._streaming and {message.batch for message in given} != {batchId}:
            raise UsageError(
                f"the tasks of batch {batchId} say that they ran in another batch; this Spark is not supported"
            )
        name = f"{options.prefix}-{given[0].query}"
        sender = TransactionalSender(
            options.kafka, options.topic, name, transactional_group(name), options.transaction_seconds
        )
        marker = sender.open()
        try:
            if marker is not None and marker.number >= number:
                _log.warning("batch %d was committed before it was run again: nothing is written", number)
                return
            try:
                self._send(sender, full, number)
            except UnreachableError as error:
                # brokers may have other leaders by now. The same sender: a new one would take the id from a newer query (INV-4)
                if not sender.abort():
                    raise
                _log.warning("batch %d is sent once more: %s", number, error)
                self._send(sender, full, number)
        except BaseException:
            sender.abort()
            raise
        finally:
            sender.close()

    def _send(self, sender: TransactionalSender, full: Sequence[bytes], number: int) -> None:
        sender.begin()
        failpoints.hit("sink.before-rows")
        for rows in full:
            for batch in _unpacked(rows):
                sender.put(records_of(batch, self._options.topic))
            failpoints.hit("sink.mid-rows")
        failpoints.hit("sink.before-commit")
        sender.commit(f"batch {number}", number)
        failpoints.hit("sink.after-commit")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        pass  # nothing was sent, or :meth:`commit` has given it up


def _place_in_query() -> tuple[str, int]:
    task = TaskContext.get()
    query, batch = (task and task.getLocalProperty(name) for name in (_QUERY, _BATCH))
    if not query or not batch:
        raise UsageError(
            f"Spark does not tell the task's query and batch ({_QUERY}, {_BATCH}): transactional can't be had"
        )
    return query, int(batch)


def packed(batches: Iterable[pa.RecordBatch], topic: str | None) -> bytes:
    """The columns that are written, as an Arrow stream."""
    buffer = io.BytesIO()
    stream: pa.RecordBatchStreamWriter | None = None
    for batch in batches:
        columns = batch.select([name for name in batch.schema.names if name in _TYPES])
        check_topics(columns, topic)
        if stream is None:
            stream = pa.ipc.new_stream(buffer, columns.schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))
        if columns.num_rows:
            stream.write_batch(columns)
    if stream is not None:
        stream.close()
    return buffer.getvalue()


def _unpacked(rows: bytes) -> Sequence[pa.RecordBatch]:
    with pa.ipc.open_stream(rows) as stream:
        return list(stream)


def check_columns(columns: Mapping[str, Any], topic: str | None) -> None:
    """Raises UsageError unless there are columns that records can be made of; others are not written."""
    if topic is None and "topic" not in columns:
        raise UsageError("the option topic must say where to write, or a column topic for each row")
    if "value" not in columns:
        raise UsageError("a column value is needed")
    for name, allowed in _TYPES.items():
        if name in columns and not any(_is(columns[name], type_) for type_ in allowed):
            raise UsageError(
                f"column {name} is {columns[name].simpleString()}: allowed is "
                f"{' or '.join(type_.simpleString() for type_ in allowed)}"
            )


_TYPES: dict[str, tuple[DataType, ...]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (ArrayType(StructType().add("key", StringType()).add("value", BinaryType())),),
    "partition": (IntegerType(),),
}


def _is(found: Any, wanted: DataType) -> bool:
    """Whether they are the same, whatever may be null in them."""
    return bool(found.simpleString() == wanted.simpleString())
