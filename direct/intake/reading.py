"""Reading of an offset range from Kafka in a task, and from an intake's WAL where Kafka has lost records."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain

import msgspec
import numpy as np
import pyarrow as pa

from direct.intake.access import IntakeEndpoint
from direct.intake.coverage import COMMITTED, find_coverage
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.log_cuts import LogPoint
from forebay.kafka.consume.range_reader import Reading, read_range
from forebay.kafka.consume.spans import OffsetRange, part_of, without
from forebay.kafka.options.access import KafkaAccess
from forebay.model.errors import LostBlockError, OffsetGapError, RangeNotHeldError, UnknownTopicError
from pyspark_forebay.intake.planning import read_plan
from pyspark_forebay.intake.reading import read_parts

log = logging.getLogger(__name__)


def read_through(
    intake: IntakeEndpoint | None, access: KafkaAccess, span: OffsetRange, reading: Reading, *, fresh: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the records of ``span`` from Kafka, as ``read_range`` does; records that Kafka has lost, from blocks of
    ``intake``.

    ``intake``: None to read only Kafka. If neither has a record, the error is the one for Kafka's loss, and also names
    the ranges that the WAL does not have.
    """
    if intake is None:
        yield from read_range(access, span, reading, fresh=fresh)
        return
    rest, rows = part_of(span, span.from_offset, span.until_offset), 0
    while rest.size:
        position = rest.from_offset
        try:
            for batch in read_range(access, rest, reading, fresh=fresh):
                rows += batch.num_rows
                yield batch
                position = batch.column("offset")[-1].as_py() + 1
            break
        except RangeNotHeldError as error:
            lost = lost_in_kafka(access, rest, position)
            if lost is None:
                raise
            why = error
        before = part_of(rest, position, lost.from_offset)
        for batch in chain(
            read_range(access, before, reading, fresh=fresh) if before.size else (),
            _read_from_wal(intake, access, lost, reading, why),
        ):
            rows += batch.num_rows
            yield batch
        rest = part_of(rest, lost.until_offset, rest.until_offset)
    if span.records is not None and rows != span.records:
        raise RangeNotHeldError(f"{span}: Kafka and the intake hold {rows} records instead of {span.records}")


def lost_in_kafka(access: KafkaAccess, rest: OffsetRange, position: int) -> OffsetRange | None:
    """Return the first part of ``rest`` at or after ``position`` that Kafka no longer has, with the topic's id.

    That is what is before the log's first offset, or else what is behind the place where the log was cut back since ``rest``
    was chosen. None if Kafka has all and the read failed for another reason; and if the records read so far may be of another
    topic, so that the task must start again.
    """
    begun = position > rest.from_offset
    with KafkaAdmin(access.options, timeout_seconds=access.timeout_seconds, client_id="forebay-task-admin") as admin:
        now = admin.topic_ids([rest.topic])[rest.topic]
        try:
            if rest.topic_id and now != rest.topic_id:
                raise UnknownTopicError(f"topic {rest.topic} was created again")
            low, _ = admin.watermarks([rest.tp])[rest.tp]
            begin, until = position, min(low, rest.until_offset)
            if position >= low and rest.leader_epoch >= 0:
                cuts = admin.cuts({rest.tp: LogPoint(rest.until_offset, rest.leader_epoch)})
                begin, until = max(position, cuts.get(rest.tp, rest.until_offset)), rest.until_offset
        except UnknownTopicError:
            return None if begun else rest
    if begin >= until:
        return None
    return msgspec.structs.replace(part_of(rest, begin, until), topic_id=rest.topic_id or now)


def _read_from_wal(
    endpoint: IntakeEndpoint, access: KafkaAccess, lost: OffsetRange, reading: Reading, why: RangeNotHeldError
) -> Iterator[pa.RecordBatch]:
    intake = endpoint.connect()
    try:
        found = find_coverage(intake, lost, access.options.get("isolation.level", COMMITTED))
    finally:
        intake.close()
    missing = without([lost], found.kept)
    if missing:
        ranges = ", ".join(map(str, missing))
        raise type(why)(f"{why}; and the WAL of stream {found.answer.stream} does not hold {ranges}") from None
    if reading.headers and not found.answer.headers:
        log.warning(
            "%s comes from the WAL of stream %s without headers, because the stream does not take them in (kafka.headers)",
            lost,
            found.answer.stream,
        )
    plan = read_plan(found.answer, endpoint.access, reading.headers)
    position = lost.from_offset

    def on_lost(error: LostBlockError) -> None:  # its segment was deleted meanwhile
        raise type(why)(f"{why}; {error}") from None

    for batch in read_parts(found.parts, plan, reading.headers, on_lost):
        position = _after(batch, position, lost, reading)
        yield batch
    if position < lost.until_offset and not reading.allow_offset_gaps:
        raise OffsetGapError(f"{lost}: from offset {position} on there is no record in the WAL{_GAP_ADVICE}")


_GAP_ADVICE = ": offsets without a record were compacted or belong to a transaction; set allow_offset_gaps to skip them"


def _after(batch: pa.RecordBatch, position: int, lost: OffsetRange, reading: Reading) -> int:
    """Return the offset after ``batch``.

    Raises OffsetGapError unless it has all offsets from ``position`` on, or gaps are allowed.
    """
    offsets = batch.column("offset").to_numpy()
    if not reading.allow_offset_gaps:
        expected = np.arange(position, position + len(offsets))
        gaps = np.flatnonzero(offsets != expected)
        if len(gaps):
            place = int(gaps[0])
            raise OffsetGapError(
                f"{lost}: from offset {position + place} on the next record is {int(offsets[place])}{_GAP_ADVICE}"
            )
    return int(offsets[-1]) + 1
