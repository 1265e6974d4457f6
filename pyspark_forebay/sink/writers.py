"""The writers that Spark calls: at least once, as Spark's Kafka sink writes, or each batch in one transaction.

Rows are appended in every output mode.

**In transactions** a task sends nothing to Kafka. It returns its rows to the query's process, in the message that reports
the task as done. :meth:`TransactionalWriter.commit` sends the rows of all tasks in one transaction, together with a marker
that names the batch. So a task may run any number of times, and a batch that runs again is recognized by its marker, even
if its rows differ.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from forebay.kafka.produce.rows import records_of
from forebay.kafka.produce.sender import send_rows
from forebay.kafka.produce.transactions import TransactionalSender, transactional_group
from forebay.model.errors import UnreachableError, UsageError
from forebay.process import failpoints
from pyspark_forebay.sink.options import SinkOptions, read_sink_options
from pyspark_forebay.sink.rows import check_columns, pack_rows, unpack_rows

_log = logging.getLogger("forebay.sink")

#: local properties in which Spark gives tasks their streaming query and batch
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


def writer_of(
    options: Mapping[str, str], schema: StructType, *, streaming: bool
) -> AtLeastOnceWriter | TransactionalWriter:
    """Return the writer of a query, and log the warnings of its options. Runs in the process that plans the query.

    Raises UsageError for options and columns that Spark's Kafka sink refuses.
    """
    found = read_sink_options(options)
    check_columns({column.name: column.dataType for column in schema.fields}, found.topic)
    for warning in found.warnings:
        _warn_once(warning)
    return TransactionalWriter(found, streaming=streaming) if found.transactional else AtLeastOnceWriter(found)


@cache
def _warn_once(warning: str) -> None:
    _log.warning("%s", warning)  # one process makes the writers of many batches


class AtLeastOnceWriter(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """Writes at least once. :meth:`write` runs in the tasks; records that a failed task has sent stay in the topic."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Send the rows, and return when Kafka has acknowledged all records.

        Raises UnreachableError, ForebayError, UsageError.
        """
        send_rows(self._options.kafka, self._options.topic, iterator)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803 - Spark's name
        pass  # all records are acknowledged

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        pass  # sent records cannot be removed


@dataclass  # like the class of Spark that it derives from
class TaskRows(WriterCommitMessage):
    """The rows of one task, for the commit.

    ``query``, ``batch``: the ids that Spark gave the task; in a batch query, an id of the writer and None. ``rows``: an
    Arrow stream, b"" if there are none.
    """

    query: str
    batch: int | None
    rows: bytes = field(repr=False)


class TransactionalWriter(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """Writes each batch in one transaction. :meth:`write` runs in the tasks, :meth:`commit` in a process on the query's
    driver."""

    def __init__(self, options: SinkOptions, *, streaming: bool) -> None:
        self._options = options
        self._streaming = streaming
        self._own_id = uuid.uuid4().hex  # of a batch query, which never runs again under the same id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskRows:  # type: ignore[override]
        """Return the rows of this task; nothing is sent yet. Raises UsageError for a row without a topic."""
        query, batch = _place_in_query() if self._streaming else (self._own_id, None)
        message = TaskRows(query, batch, pack_rows(iterator, self._options.topic))
        failpoints.hit("sink.task-end")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Send all rows and the marker of the batch in one transaction, or nothing.

        A batch that was committed before is not sent again. Raises UnreachableError, StoreError, ForebayError, UsageError.
        """
        given = [message for message in messages if isinstance(message, TaskRows)]
        full = [message.rows for message in given if message.rows]
        if not full:
            return  # there is nothing to write, and nothing to leave a marker of
        options = self._options
        number = batchId if self._streaming else 0
        if self._streaming and {message.batch for message in given} != {batchId}:
            raise UsageError(
                f"the tasks of batch {batchId} ran in another batch; this release of Spark is not supported"
            )
        name = f"{options.prefix}-{given[0].query}"
        sender = TransactionalSender(
            options.kafka,
            options.topic,
            transactional_id=name,
            group=transactional_group(name),
            timeout_seconds=options.transaction_seconds,
        )
        marker = sender.open()
        try:
            if marker is not None and marker.number >= number:
                _log.warning("batch %d was already committed and is not written again", number)
                return
            try:
                self._send(sender, full, number)
            except UnreachableError as error:
                # leaders may have changed. The sender stays: a new one would fence a newer query with the same id (INV-4)
                if not sender.abort():
                    raise
                _log.warning("batch %d is sent again after a failure: %s", number, error)
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
            for batch in unpack_rows(rows):
                sender.put(records_of(batch, self._options.topic))
            failpoints.hit("sink.mid-rows")
        failpoints.hit("sink.before-commit")
        sender.commit(f"batch {number}", number)
        failpoints.hit("sink.after-commit")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        pass  # nothing was sent, or :meth:`commit` has aborted the transaction


def _place_in_query() -> tuple[str, int]:
    task = TaskContext.get()
    query, batch = (task and task.getLocalProperty(name) for name in (_QUERY, _BATCH))
    if not query or not batch:
        raise UsageError(
            f"Spark did not set the task's query and batch ({_QUERY}, {_BATCH}): remove the option transactional"
        )
    return query, int(batch)
