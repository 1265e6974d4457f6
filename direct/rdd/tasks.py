"""The code inside Spark's tasks: it reads ranges from Kafka, and records that Kafka has lost from an intake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from direct.intake.access import IntakeEndpoint
from direct.intake.reading import read_through
from direct.rdd.deserializers import Deserializer, deserializer
from driver.batches.tasks.decoding import DeadLetterPlan, Decoder, Part, decode_parts
from driver.batches.tasks.reading import KafkaRecord, records
from forebay.kafka.consume.range_reader import Reading
from forebay.kafka.consume.spans import OffsetRange
from forebay.kafka.options.access import KafkaAccess
from forebay.model.errors import RecordError
from forebay.process.worker_process import freeze_modules

_decoder = msgspec.msgpack.Decoder(OffsetRange)
_task_decoder = msgspec.msgpack.Decoder(tuple[int, OffsetRange, int])


@dataclass(frozen=True, slots=True)
class TaskReading:
    """How tasks read. It is pickled to them with passwords, which ``repr`` omits.

    ``key``, ``value``: deserializers. ``intake``: where to read records that Kafka has lost, None for none.
    """

    access: KafkaAccess
    reading: Reading
    key: Deserializer = None
    value: Deserializer = None
    intake: IntakeEndpoint | None = None

    def read(self, span: OffsetRange, *, fresh: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the records of ``span``, as :func:`direct.intake.reading.read_through` does."""
        return read_through(self.intake, self.access, span, self.reading, fresh=fresh)


def encode(range_: OffsetRange) -> bytes:
    """Return a row for :func:`read_batches`."""
    return msgspec.msgpack.encode(range_)


def encode_task(number: int, range_: OffsetRange, incarnation: int) -> bytes:
    """Return a row for :func:`decode_span`.

    ``number``: the task's number within its batch, from 0. ``incarnation``: the partition's.
    """
    return msgspec.msgpack.encode((number, range_, incarnation))


def decode_span(how: TaskReading, row: bytes, decoder: Decoder, place: DeadLetterPlan) -> Iterator[pa.RecordBatch]:
    """Yield the decoded records of ``row``, a result of :func:`encode_task`.

    Decodes as ``driver.batches.tasks.decoding.decode_task`` does.
    """
    number, span, incarnation = _task_decoder.decode(row)
    part = Part(read_batches(how, number, [encode(span)]), {(span.topic, span.partition): incarnation})
    yield from decode_parts([part], number, span.size, decoder, place)


def read_batches(how: TaskReading, split: int, rows: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the records of the ranges in ``rows``, each a result of :func:`encode`.

    The first attempt of a task may reuse an idle consumer; a retried task creates a new one.
    """
    context = TaskContext.get()
    fresh = context is not None and context.attemptNumber() > 0
    if context is not None:
        freeze_modules()
    for row in rows:
        yield from how.read(_decoder.decode(row), fresh=fresh)


def read_records(how: TaskReading, split: int, rows: Iterable[bytes]) -> Iterator[KafkaRecord]:
    """Yield the records of ``rows``, deserialized. Raises RecordError if a key or value cannot be deserialized."""
    found = records(read_batches(how, split, rows))
    for name, given in (("key", how.key), ("value", how.value)):
        function = deserializer(f"{name}_deserializer", given)
        if function is not None:
            found = map(partial(_deserialized, name, function), found)
    return found


def _deserialized(name: str, function: Callable[[bytes], Any], record: KafkaRecord) -> KafkaRecord:
    data = getattr(record, name)
    if data is None:
        return record
    try:
        return record._replace(**{name: function(data)})
    except Exception as error:
        where = f"{record.topic}/{record.partition} offset {record.offset}"
        raise RecordError(f"{where}: cannot deserialize the {name}: {type(error).__name__}: {error}") from error
