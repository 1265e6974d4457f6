"""Reading of offset ranges from Kafka inside Spark's tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.log_cuts import LogPoint
from forebay.kafka.consume.range_reader import Reading, read_range
from forebay.kafka.consume.spans import OffsetRange, part_of, without
from forebay.kafka.options.access import KafkaAccess
from forebay.model.errors import RangeNotHeldError, UnknownTopicError
from pyspark_forebay.options.source import FAIL_ON_DATA_LOSS, SourceOptions

_log = logging.getLogger("forebay.source")


def read_spans(options: SourceOptions, spans: Iterable[OffsetRange]) -> Iterator[pa.RecordBatch]:
    """Yield the records of ``spans``, one after the other, as :func:`read_span` does, as the query's rows."""
    return options.rows(chain.from_iterable(read_span(options, span) for span in spans))


def read_span(options: SourceOptions, span: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Yield the records of ``span`` as batches of ``DATAFRAME_SCHEMA``.

    Offsets without a record are skipped: Kafka compacted them, or they belong to a transaction. Raises RangeNotHeldError if Kafka
    no longer holds part of ``span``, also for a deleted topic, and ``failOnDataLoss`` is true; if it is false, that part is
    logged and omitted. Raises RangeNotHeldError in any case if Kafka holds the range but does not return it. Raises
    UnreachableError.
    """
    access = KafkaAccess(options.kafka, options.group, options.poll_timeout_seconds)
    task = TaskContext.get()
    reading = Reading(headers=options.include_headers, allow_offset_gaps=True)
    fresh = task is not None and task.attemptNumber() > 0
    while True:
        position = span.from_offset
        try:
            for batch in read_range(access, span, reading, fresh=fresh):
                yield batch
                position = batch.column("offset")[-1].as_py() + 1
            return
        except RangeNotHeldError as error:
            if options.fail_on_data_loss:
                raise RangeNotHeldError(f"{error}. {FAIL_ON_DATA_LOSS}") from None
            left = _left(access, span, position)
            if left == span:
                raise  # Kafka holds all of it, so nothing is lost, and Spark may retry the task
            rest = part_of(span, position, span.until_offset)
            lost = ", ".join(map(str, without([rest], [] if left is None else [left]))) or "nothing"
            _log.warning("%s. failOnDataLoss is false: continuing with the remaining records. Lost: %s", error, lost)
            if left is None:
                return
            span, fresh = left, True


def _left(access: KafkaAccess, span: OffsetRange, position: int) -> OffsetRange | None:
    """Return the part of ``span`` from ``position`` on that Kafka still holds; None if it holds nothing, or another topic, or no
    topic of that name. Records that a later leader wrote at these offsets are not part of it: the next batch reads them."""
    with KafkaAdmin(access.options, timeout_seconds=access.timeout_seconds, client_id="forebay-task-admin") as admin:
        try:
            # "": no broker knows the id at present, for example without a controller; the topic need not be another one
            if span.topic_id and admin.topic_ids([span.topic])[span.topic] not in ("", span.topic_id):
                return None
            low, _ = admin.watermarks([span.tp])[span.tp]
            end = admin.ends([span.tp])[span.tp]
            if span.leader_epoch >= 0:
                end = admin.cuts({span.tp: LogPoint(span.until_offset, span.leader_epoch)}).get(span.tp, end)
        except UnknownTopicError:
            return None
    begin, until = max(position, low), min(span.until_offset, end)
    return part_of(span, begin, until) if begin < until else None
