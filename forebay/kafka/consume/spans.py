"""Ranges of offsets to read. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, repeat

import msgspec

from forebay.model.bounds import INT32_MAX, OFFSET_MAX
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from forebay.model.wire import WIRE_NAMES


class OffsetRange(msgspec.Struct, frozen=True, gc=False, rename=WIRE_NAMES):
    """Offsets ``[from_offset, until_offset)`` of one partition; empty if both are equal.

    ``topic``, ``partition``: the partition. ``topic_id``: the required id of the topic when the range is read ("": any).
    ``records``: the required number of records (None: any). ``leader_epoch``: that of the partition's leader when the range was
    chosen; a record of a newer leader in the range proves that the log was cut back since (-1: unknown, not compared). Raises
    UsageError for impossible values.
    """

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    topic_id: str = ""
    records: int | None = None
    leader_epoch: int = -1

    def __post_init__(self) -> None:
        if not self.topic or not 0 <= self.partition <= INT32_MAX:
            raise UsageError(f"offset range {self}: it needs a topic, and a partition from 0 to {INT32_MAX}")
        if self.from_offset < 0:
            raise UsageError(f"offset range {self}: offsets begin at 0")
        if self.from_offset > self.until_offset:
            raise UsageError(f"offset range {self}: from {self.from_offset} is beyond until {self.until_offset}")
        if self.until_offset > OFFSET_MAX:
            raise UsageError(f"offset range {self}: offsets end at {OFFSET_MAX}")
        if self.records is not None and not 0 <= self.records <= self.size:
            raise UsageError(f"offset range {self}: it can't have {self.records} records")
        if not -1 <= self.leader_epoch <= INT32_MAX:
            raise UsageError(f"offset range {self}: leader epoch {self.leader_epoch} is not from -1 to {INT32_MAX}")

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """The number of offsets; also of records, if no offset is without a record."""
        return self.until_offset - self.from_offset

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}[{self.from_offset}, {self.until_offset})"

    def __repr__(self) -> str:
        """Without fields that have their defaults."""
        more = f", topic_id={self.topic_id!r}" if self.topic_id else ""
        more += f", records={self.records}" if self.records is not None else ""
        more += f", leader_epoch={self.leader_epoch}" if self.leader_epoch >= 0 else ""
        return f"OffsetRange({self.topic!r}, {self.partition}, {self.from_offset}, {self.until_offset}{more})"


def part_of(span: OffsetRange, begin: int, end: int) -> OffsetRange:
    """Return offsets ``[begin, end)`` of ``span``, with no required number of records."""
    return msgspec.structs.replace(span, from_offset=begin, until_offset=end, records=None)


_WRITTEN = re.compile(
    r"(?P<topic>[A-Za-z0-9._-]+)/(?P<partition>[0-9]{1,9})\[\s*(?P<begin>[0-9]{1,19})\s*,\s*(?P<end>[0-9]{1,19})\s*\)"
)
_INCARNATION = re.compile(r"(?P<span>.*\))\s*life\s*(?P<incarnation>[1-9][0-9]{0,8})", re.DOTALL)


def parse_span(text: str) -> OffsetRange:
    """Parse ``flights/0[10, 20)``, the form of ``str``. Raises UsageError for anything else."""
    match = _WRITTEN.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a range of offsets: write 'TOPIC/PARTITION[FROM, UNTIL)'")
    return OffsetRange(match["topic"], int(match["partition"]), int(match["begin"]), int(match["end"]))


def label_of(span: OffsetRange, incarnation: int) -> str:
    """Return the range as ``BlockRange.label`` writes it: it names an incarnation above 1, whose offsets are other records."""
    return str(span) if incarnation == 1 else f"{span} life {incarnation}"


def parse_label(text: str) -> tuple[OffsetRange, int]:
    """Return the range and the incarnation of a result of :func:`label_of`. Raises UsageError for anything else.

    Without an incarnation, as older releases wrote every label, it is the first one.
    """
    match = _INCARNATION.fullmatch(text.strip())
    return (parse_span(text), 1) if match is None else (parse_span(match["span"]), int(match["incarnation"]))


def with_incarnations(spans: Iterable[OffsetRange], incarnations: Iterable[int]) -> Iterator[tuple[OffsetRange, int]]:
    """Return each span with its incarnation. Older releases stored no ``incarnations``: then all are of the first one."""
    return zip(spans, chain(incarnations, repeat(1)), strict=False)


def is_inside(label: str, spans: Iterable[tuple[OffsetRange, int]]) -> bool:
    """Return whether ``label`` is a range, not empty, and covered by ``spans`` of its incarnation.

    Raises UsageError if it is not a range.
    """
    wanted, incarnation = parse_label(label)
    return wanted.size > 0 and not without([wanted], (span for span, number in spans if number == incarnation))


def without(spans: Iterable[OffsetRange], removed: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return ``spans`` without the offsets of the ranges ``removed``, in order; none is empty.

    All are of the same incarnations: use :func:`without_lost` if there may be several.
    """
    left = [span for span in spans if span.size]
    for other in sorted(removed, key=lambda span: (span.tp, span.from_offset)):
        left = [part for span in left for part in _apart(span, other)]
    return left


def without_lost(spans: Iterable[tuple[OffsetRange, int]], lost: Iterable[str]) -> list[tuple[OffsetRange, int]]:
    """Return ``spans``, each with its incarnation, without the ranges that the labels ``lost`` name, in order; none is empty.

    A label removes only offsets of its incarnation: in another one, the same offsets are other records.
    """
    paired = list(spans)
    removed: dict[int, list[OffsetRange]] = {}
    if paired:  # a batch of blocks has labels too, and no spans
        for span, incarnation in map(parse_label, lost):
            removed.setdefault(incarnation, []).append(span)
    return [(part, number) for span, number in paired for part in without([span], removed.get(number, ()))]


def _apart(span: OffsetRange, other: OffsetRange) -> list[OffsetRange]:
    if span.tp != other.tp or other.until_offset <= span.from_offset or span.until_offset <= other.from_offset:
        return [span]
    ends = (
        (span.from_offset, max(span.from_offset, other.from_offset)),
        (min(span.until_offset, other.until_offset), span.until_offset),
    )
    return [part_of(span, begin, end) for begin, end in ends if begin < end]
