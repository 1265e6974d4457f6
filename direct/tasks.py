"""What runs inside Spark tasks: reading ranges from Kafka, and from an intake what Kafka has lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from direct.deserializers import Deserializer, deserializer
from direct.intake import Through, read_through
from driver.batches.decoding import DeadLetterPlan, Decoder, Part, decode_parts
from driver.batches.tasks import KafkaRecord, records
from forebay.kafka.consume.range_reader import Reading
from forebay.kafka.consume.spans import Span
from forebay.kafka.options.access import KafkaAccess
from forebay.model.errors import RecordError
from forebay.process.worker_process import freeze_modules

_decoder = msgspec.msgpack.Decoder(Span)
_task_decoder = msgspec.msgpack.Decoder(tuple[int, Span, int])


@dataclass(frozen=True, slots=True)
class TaskReading:
    """How tasks read. Goes to them pickled, passwords included, and shows none."""

    access: KafkaAccess
    reading: Reading
    key: Deserializer = None
    value: Deserializer = None
    through: Through | None = None

    def read(self, span: Span, *, fresh: bool = False) -> Iterator[pa.RecordBatch]:
        """As ``direct.intake.read_through``."""
        return read_through(self.through, self.access, span, self.reading, fresh=fresh)


def encode(range_: Span) -> bytes:
    return msgspec.msgpack.encode(range_)


def encode_task(number: int, range_: Span, incarnation: int) -> bytes:
    """With which task of its batch it is, from 0, and the life of its partition."""
    return msgspec.msgpack.encode((number, range_, incarnation))


def decode_span(how: TaskReading, row: bytes, decoder: Decoder, place: DeadLetterPlan) -> Iterator[pa.RecordBatch]:
    """As ``driver.batches.decoding.decode_task``. ``row``: of :func:`encode_task`."""
    number, span, incarnation = _task_decoder.decode(row)
    part = Part(read_batches(how, number, [encode(span)]), {(span.topic, span.partition): incarnation})
    yield from decode_parts([part], number, span.size, decoder, place)


def read_batches(how: TaskReading, split: int, rows: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """``rows``: encoded ranges. A task that is tried again takes no consumer that somebody used before."""
    context = TaskContext.get()
    fresh = context is not None and context.attemptNumber() > 0
    if context is not None:
        freeze_modules()
    for row in rows:
        yield from how.read(_decoder.decode(row), fresh=fresh)


def read_records(how: TaskReading, split: int, rows: Iterable[bytes]) -> Iterator[KafkaRecord]:
    """Raises RecordError for a record whose key or value can't be deserialised."""
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
        raise RecordError(f"{where}: its {name} can't be deserialised: {type(error).__name__}: {error}") from error
