"""One task's records: what runs in Spark's workers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.range_reader import Reading, read_range
from forebay.kafka.consume.spans import Span
from forebay.kafka.options.access import KafkaAccess
from forebay.model.errors import RangeNotHeldError, UnknownTopicError
from pyspark_forebay.options import SourceOptions

_log = logging.getLogger("forebay.source")


def read_spans(options: SourceOptions, spans: Iterable[Span]) -> Iterator[pa.RecordBatch]:
    """Of each of ``spans`` in turn what :func:`read_span` gives, decoded if ``options`` say so."""
    found = chain.from_iterable(read_span(options, span) for span in spans)
    return found if options.decoding is None else options.decoding.decoded(found)


def read_span(options: SourceOptions, span: Span) -> Iterator[pa.RecordBatch]:
    """Batches of ``DATAFRAME_SCHEMA``. Offsets without a record (compacted, or of a transaction) are read over.

    What Kafka no longer holds raises RangeNotHeldError with ``failOnDataLoss``, and is told and left out without; what it says to
    hold and does not give raises it always. Raises UnreachableError.
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
                raise  # Kafka has all of it and does not give it now: that is no loss, and the task may be tried again
            _log.warning("%s. failOnDataLoss is false: going on with what is left", error)
            if left is None:
                return
            span, fresh = left, True


FAIL_ON_DATA_LOSS = (
    "Some data may have been lost because they are not available in Kafka any more: either the data was aged out by Kafka or "
    "the topic may have been deleted before all the data in the topic was processed. If you don't want your query to fail "
    'on such cases, set the source option "failOnDataLoss" to "false"'
)


def _left(access: KafkaAccess, span: Span, position: int) -> Span | None:
    """What Kafka still has of ``span`` from ``position`` on; None if nothing, or of another topic by the same name."""
    with KafkaAdmin(access.options, timeout_seconds=access.timeout_seconds, client_id="forebay-task-admin") as admin:
        try:
            # "": no broker tells it now, as while nobody is the controller; that is no other topic
            if span.topic_id and admin.topic_ids([span.topic])[span.topic] not in ("", span.topic_id):
                return None
            low, _ = admin.watermarks([span.tp])[span.tp]
            end = admin.ends([span.tp])[span.tp]
        except UnknownTopicError:
            return None
    begin, until = max(position, low), min(span.until_offset, end)
    return Span(span.topic, span.partition, begin, until, span.topic_id) if begin < until else None
