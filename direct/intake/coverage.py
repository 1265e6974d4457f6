"""Which parts of an offset range an intake's WAL holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from direct.intake.access import IntakeEndpoint
from forebay.kafka.consume.spans import OffsetRange, without
from forebay.messages import IncarnationSpan, IntakeAnswer, SpanRequest
from forebay.model.errors import LostBlockError, UnreachableError, UnreadableBlockError, UsageError
from forebay.model.values import TopicPartition
from pyspark_forebay.intake.client import Intake
from pyspark_forebay.intake.planning import BlockPart, Cover, cover, read_plan
from pyspark_forebay.intake.reading import read_part

COMMITTED = "read_committed"


def kept_of(span: OffsetRange, wanted: Sequence[IncarnationSpan], covered: Cover) -> list[OffsetRange]:
    """Return the parts of ``span`` that blocks hold, in order. ``wanted``: the parts that were taken in."""
    missing = [OffsetRange(one.topic, one.partition, one.from_offset, one.until_offset) for one in covered.uncovered]
    parts = [OffsetRange(one.topic, one.partition, one.from_offset, one.until_offset, span.topic_id) for one in wanted]
    return without(parts, missing)


def in_order(parts: Sequence[BlockPart], span: OffsetRange) -> list[BlockPart]:
    """Return ``parts``, which are of one partition, in the order of their offsets."""
    return sorted(parts, key=lambda part: _bounds(part, span.tp))


def _bounds(part: BlockPart, tp: TopicPartition) -> tuple[int, int]:
    """Return the offsets [from, until) that are read of ``part``, which is of one partition."""
    cut = part.cuts.get(str(tp))
    if cut is not None:
        return cut
    (read,) = (r for r in part.reference.ranges if r.tp == tp and r.label not in part.unwanted)
    return read.from_offset, read.until_offset


@dataclass(frozen=True, slots=True)
class IntakeCoverage:
    """What an intake holds of an offset range.

    ``answer``: how to read the intake. ``kept``: the parts of the range that ``parts`` hold, both in the order of offsets.
    """

    answer: IntakeAnswer
    kept: tuple[OffsetRange, ...]
    parts: tuple[BlockPart, ...]


def find_coverage(intake: Intake, span: OffsetRange, isolation: str) -> IntakeCoverage:
    """Ask the intake's driver which parts of ``span`` its blocks hold.

    ``isolation``: the reader's ``isolation.level``. Raises UsageError if the intake has another one; UnreachableError,
    RefusedError.
    """
    request = SpanRequest(
        topic=span.topic,
        partition=span.partition,
        from_offset=span.from_offset,
        until_offset=span.until_offset,
        topic_id=span.topic_id,
        leader_epoch=span.leader_epoch,
    )
    answer, found = intake.span(request)
    check_isolation(answer.intake, isolation)
    # gaps count as lost: the intake did not take their records in
    covered = cover(answer.spans, dataclasses.replace(found, gaps=()))
    return IntakeCoverage(
        answer.intake, tuple(kept_of(span, answer.spans, covered)), tuple(in_order(covered.parts, span))
    )


def check_isolation(answer: IntakeAnswer, isolation: str) -> None:
    """Raise UsageError unless the intake has the reader's ``isolation.level``, ``isolation``."""
    theirs = answer.kafka.get("isolation.level", COMMITTED)
    if theirs != isolation:
        raise UsageError(
            f"tracker: stream {answer.stream} takes in records with isolation.level = {theirs}, and this reader has {isolation}: "
            "set both to the same value"
        )


class KeptByIntake:
    """Tells which ranges that Kafka no longer has are in an intake's WAL. Thread-safe."""

    def __init__(self, endpoint: IntakeEndpoint, isolation: str, patience_seconds: float) -> None:
        self._intake = endpoint.connect(patience_seconds)
        self._access = endpoint.access
        self._isolation = isolation

    def close(self) -> None:
        self._intake.close()

    def kept(self, span: OffsetRange) -> list[tuple[int, int]]:
        """Return the parts of ``span`` that the WAL holds, as offsets [from, until), in order.

        Raises as :func:`find_coverage`.
        """
        return [
            (part.from_offset, part.until_offset) for part in find_coverage(self._intake, span, self._isolation).kept
        ]

    def lost(self, spans: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of ``spans`` that the WAL does not hold: no block has them, or no tier can read the block
        any more.

        Reads each block to find out. Raises as :func:`find_coverage`.
        """
        left: list[OffsetRange] = []
        for span in spans:
            found = find_coverage(self._intake, span, self._isolation)
            left += without([span], without(found.kept, self._unreadable(span, found)))
        return left

    def _unreadable(self, span: OffsetRange, found: IntakeCoverage) -> Iterator[OffsetRange]:
        plan = read_plan(found.answer, self._access, headers=False)
        for part in found.parts:
            try:
                read_part(part, plan, headers=False)
            except LostBlockError:
                yield OffsetRange(span.topic, span.partition, *_bounds(part, span.tp))
            except UnreadableBlockError as error:
                raise UnreachableError(str(error)) from None
