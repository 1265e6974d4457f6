"""What Kafka has lost, out of the WAL of an intake that took it in before (``tracker``).

The stream's driver is asked only where Kafka has lost something: by tasks for blocks, by a direct stream and its checkpoint for
what is not lost at all. An offset is that of the newest life of the topic with the span's id that has it, so what was taken in
of another topic by the same name, or of another cluster's, is never given.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.range_reader import Reading, read_range
from forebay.kafka.consume.spans import Span, without
from forebay.kafka.options.access import KafkaAccess
from forebay.messages import IncarnationSpan, IntakeAnswer, SpanRequest
from forebay.model.errors import (
    LostBlockError,
    OffsetGapError,
    RangeNotHeldError,
    UnknownTopicError,
    UnreachableError,
    UnreadableBlockError,
    UsageError,
)
from forebay.model.values import TopicPartition
from forebay.security.access import Access
from pyspark_forebay.intake import Intake
from pyspark_forebay.intake_plan import BlockPart, Cover, cover, read_plan
from pyspark_forebay.intake_reading import read_part
from pyspark_forebay.options import tracker_urls

log = logging.getLogger(__name__)

COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class IntakeAccess:
    """An intake that takes in what is read: where its driver is (with standbys all, with commas), and what that asks for. A
    query's token is enough; ``FOREBAY_TOKENS`` in the environment does as well. ``timeout_seconds``: how long it may be away."""

    url: str
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    timeout_seconds: float = 120.0


class Through(msgspec.Struct, frozen=True):
    """An :class:`IntakeAccess` as tasks get it: pickled, the token included, which nothing shows."""

    urls: tuple[str, ...]
    access: Access
    patience_seconds: float

    @classmethod
    def of(cls, tracker: IntakeAccess | str | None) -> Through | None:
        """``tracker``: a text is the url alone; None or "": Kafka alone is read. Raises UsageError, SettingsError."""
        if not tracker:
            return None
        given = IntakeAccess(tracker) if isinstance(tracker, str) else tracker
        access = Access(
            role="query",
            token_file=given.token_file,
            ca_file=given.ca_file,
            cert_file=given.cert_file,
            key_file=given.key_file,
        )
        return cls(tracker_urls(given.url, "tracker"), access.carried(), given.timeout_seconds)

    def intake(self, patience_seconds: float | None = None) -> Intake:
        """To be closed."""
        return Intake(self.urls, self.access, self.patience_seconds if patience_seconds is None else patience_seconds)


# ---- decisions -------------------------------------------------------------------------------------------------------


def kept_of(span: Span, wanted: Sequence[IncarnationSpan], covered: Cover) -> list[Span]:
    """The parts of ``span`` that blocks hold, in order. ``wanted``: those that were taken in."""
    holes = [str(Span(hole.topic, hole.partition, hole.from_offset, hole.until_offset)) for hole in covered.holes]
    parts = [Span(one.topic, one.partition, one.from_offset, one.until_offset, span.topic_id) for one in wanted]
    return without(parts, holes)


def in_order(parts: Sequence[BlockPart], span: Span) -> list[BlockPart]:
    """``parts``, of one partition, by their offsets."""

    return sorted(parts, key=lambda part: _bounds(part, span.tp))


def _bounds(part: BlockPart, tp: TopicPartition) -> tuple[int, int]:
    """Offsets from and until of what is read of ``part``, which is of one partition."""
    cut = part.cuts.get(str(tp))
    if cut is not None:
        return cut
    (read,) = (r for r in part.reference.ranges if r.tp == tp and r.label not in part.unwanted)
    return read.from_offset, read.until_offset


# ---- asking ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """``kept``: the parts of a span that ``parts`` hold, both in the order of offsets."""

    answer: IntakeAnswer
    kept: tuple[Span, ...]
    parts: tuple[BlockPart, ...]


def find(intake: Intake, span: Span, isolation: str) -> Found:
    """Raises UsageError for another ``isolation`` (of the reader) than the intake's, UnreachableError, RefusedError."""
    request = SpanRequest(
        topic=span.topic,
        partition=span.partition,
        from_offset=span.from_offset,
        until_offset=span.until_offset,
        topic_id=span.topic_id,
    )
    answer, found = intake.span(request)
    check_isolation(answer.intake, isolation)
    # what was lost before it was taken in is lost to this reader too
    covered = cover(answer.spans, dataclasses.replace(found, gaps=()))
    return Found(answer.intake, tuple(kept_of(span, answer.spans, covered)), tuple(in_order(covered.parts, span)))


def check_isolation(answer: IntakeAnswer, isolation: str) -> None:
    """Raises UsageError."""
    theirs = answer.kafka.get("isolation.level", COMMITTED)
    if theirs != isolation:
        raise UsageError(
            f"tracker: stream {answer.stream} takes in records by isolation.level = {theirs}, and here it is {isolation}: "
            "let both be the same"
        )


class KeptByIntake:
    """What is not lost, though Kafka has it no more. Thread-safe."""

    def __init__(self, through: Through, isolation: str, patience_seconds: float) -> None:
        self._intake = through.intake(patience_seconds)
        self._access = through.access
        self._isolation = isolation

    def close(self) -> None:
        self._intake.close()

    def kept(self, span: Span) -> list[tuple[int, int]]:
        """The parts of ``span`` that the WAL holds, as offsets from and until, in order. Raises as :func:`find`."""
        return [(part.from_offset, part.until_offset) for part in find(self._intake, span, self._isolation).kept]

    def lost(self, spans: Iterable[Span]) -> list[Span]:
        """The parts of ``spans`` that the WAL does not hold either: no block has them, or one that can't be read any more, as a
        try tells. Raises as :func:`find`."""
        left: list[Span] = []
        for span in spans:
            found = find(self._intake, span, self._isolation)
            left += without([span], map(str, without(found.kept, self._unreadable(span, found))))
        return left

    def _unreadable(self, span: Span, found: Found) -> Iterator[str]:
        plan = read_plan(found.answer, self._access, headers=False)
        for part in found.parts:
            try:
                read_part(part, plan, headers=False)
            except LostBlockError:
                yield str(Span(span.topic, span.partition, *_bounds(part, span.tp)))
            except UnreadableBlockError as error:
                raise UnreachableError(str(error)) from None


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_through(
    through: Through | None, access: KafkaAccess, span: Span, reading: Reading, *, fresh: bool = False
) -> Iterator[pa.RecordBatch]:
    """As ``read_range``; what Kafka has lost of ``span`` comes from the blocks of the intake that ``through`` names, if it does.
    What neither has is the error that Kafka's loss was, with the ranges."""
    if through is None:
        yield from read_range(access, span, reading, fresh=fresh)
        return
    rest, rows = Span(span.topic, span.partition, span.from_offset, span.until_offset, span.topic_id), 0
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
        for batch in _read_from_wal(through, access, lost, reading, why):
            rows += batch.num_rows
            yield batch
        rest = Span(rest.topic, rest.partition, lost.until_offset, rest.until_offset, rest.topic_id)
    if span.records is not None and rows != span.records:
        raise RangeNotHeldError(f"{span}: Kafka and the intake hold {rows} records of {span.records}")


def lost_in_kafka(access: KafkaAccess, rest: Span, position: int) -> Span | None:
    """What Kafka no longer has of ``rest`` from ``position`` on, with the topic's id; None if it has it, and failed otherwise, or
    if what was read of ``rest`` so far may be of another topic: then the task must begin anew."""
    begun = position > rest.from_offset
    with KafkaAdmin(access.options, timeout_seconds=access.timeout_seconds, client_id="forebay-task-admin") as admin:
        now = admin.topic_ids([rest.topic])[rest.topic]
        try:
            if rest.topic_id and now != rest.topic_id:
                raise UnknownTopicError(f"topic {rest.topic} is another one")
            low, _ = admin.watermarks([rest.tp])[rest.tp]
        except UnknownTopicError:
            return None if begun else rest
    until = min(low, rest.until_offset)
    return Span(rest.topic, rest.partition, position, until, rest.topic_id or now) if position < until else None


def _read_from_wal(
    through: Through, access: KafkaAccess, lost: Span, reading: Reading, why: RangeNotHeldError
) -> Iterator[pa.RecordBatch]:
    intake = through.intake()
    try:
        found = find(intake, lost, access.options.get("isolation.level", COMMITTED))
    finally:
        intake.close()
    missing = without([lost], map(str, found.kept))
    if missing:
        words = ", ".join(map(str, missing))
        raise type(why)(f"{why}; and the WAL of stream {found.answer.stream} does not hold {words}") from None
    if reading.headers and not found.answer.headers:
        log.warning(
            "%s comes from the WAL of stream %s, which takes no headers in (kafka.headers)", lost, found.answer.stream
        )
    plan = read_plan(found.answer, through.access, reading.headers)
    position = lost.from_offset
    for part in found.parts:
        try:
            batches = read_part(part, plan, reading.headers)
        except LostBlockError as error:  # its segment was deleted a moment ago
            raise type(why)(f"{why}; {error}") from None
        for batch in batches:
            position = _after(batch, position, lost, reading)
            yield batch
    if position < lost.until_offset and not reading.allow_offset_gaps:
        raise OffsetGapError(f"{lost}: from offset {position} on there is no record in the WAL{_HOLES}")


_HOLES = ": what lies between was compacted or is of a transaction; allow holes to read over it"


def _after(batch: pa.RecordBatch, position: int, lost: Span, reading: Reading) -> int:
    """The offset after ``batch``, which begins at ``position`` and has all offsets, unless holes are allowed."""
    offsets = batch.column("offset").to_numpy()
    if not reading.allow_offset_gaps:
        expected = np.arange(position, position + len(offsets))
        holes = np.flatnonzero(offsets != expected)
        if len(holes):
            place = int(holes[0])
            raise OffsetGapError(
                f"{lost}: from offset {position + place} on the next record is {int(offsets[place])}{_HOLES}"
            )
    return int(offsets[-1]) + 1
