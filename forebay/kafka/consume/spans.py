"""Offsets of one partition that somebody wants read. Pure; knows no client."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from forebay.model.errors import UsageError
from forebay.model.values import INT32_MAX, OFFSET_MAX, TopicPartition
from forebay.model.wire import WIRE_NAMES


class Span(msgspec.Struct, frozen=True, gc=False, rename=WIRE_NAMES):
    """Offsets ``[from, until)`` of one partition; empty if they are equal.

    ``topic_id``: what the topic's id must be when they are read ("": not asked). ``records``: how many records must lie in it
    (None: not known). Raises UsageError when they can't be.
    """

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    topic_id: str = ""
    records: int | None = None

    def __post_init__(self) -> None:
        if not self.topic or not 0 <= self.partition <= INT32_MAX:
            raise UsageError(f"offset range {self}: it needs a topic, and a partition from 0 to {INT32_MAX}")
        if self.from_offset < 0:
            raise UsageError(f"offset range {self}: offsets begin at 0")
        if self.from_offset > self.until_offset:
            raise UsageError(f"offset range {self}: from {self.from_offset} lies beyond until {self.until_offset}")
        if self.until_offset > OFFSET_MAX:
            raise UsageError(f"offset range {self}: offsets end at {OFFSET_MAX}")
        if self.records is not None and not 0 <= self.records <= self.size:
            raise UsageError(f"offset range {self}: {self.records} records can't lie in it")

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """How many offsets it has: as many records, if none is missing."""
        return self.until_offset - self.from_offset

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}[{self.from_offset}, {self.until_offset})"

    def __repr__(self) -> str:
        """By the name that users make it by, ``direct.OffsetRange``; what is not asked or known is left out."""
        more = f", topic_id={self.topic_id!r}" if self.topic_id else ""
        more += f", records={self.records}" if self.records is not None else ""
        return f"OffsetRange({self.topic!r}, {self.partition}, {self.from_offset}, {self.until_offset}{more})"


_WRITTEN = re.compile(
    r"(?P<topic>[A-Za-z0-9._-]+)/(?P<partition>[0-9]{1,9})\[\s*(?P<begin>[0-9]{1,19})\s*,\s*(?P<end>[0-9]{1,19})\s*\)"
)


def parse_span(text: str) -> Span:
    """``flights/0[10, 20)``, as ``str`` writes it. Raises UsageError for anything else."""
    match = _WRITTEN.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no range of offsets: write 'TOPIC/PARTITION[FROM, UNTIL)'")
    return Span(match["topic"], int(match["partition"]), int(match["begin"]), int(match["end"]))


def is_inside(label: str, spans: Iterable[Span]) -> bool:
    """Whether ``label`` is a range, not an empty one, whose offsets all lie in ``spans``. Raises UsageError if it is none."""
    wanted = parse_span(label)
    return wanted.size > 0 and not without([wanted], map(str, spans))


def without(spans: Iterable[Span], lost: Iterable[str]) -> list[Span]:
    """What is left of ``spans``, in order, when the ranges ``lost`` (as ``str`` writes them) are left out; none is empty."""
    left = [span for span in spans if span.size]
    for gone in sorted((parse_span(label) for label in lost), key=lambda span: (span.tp, span.from_offset)):
        left = [part for span in left for part in _apart(span, gone)]
    return left


def _apart(span: Span, gone: Span) -> list[Span]:
    if span.tp != gone.tp or gone.until_offset <= span.from_offset or span.until_offset <= gone.from_offset:
        return [span]
    ends = (
        (span.from_offset, max(span.from_offset, gone.from_offset)),
        (min(span.until_offset, gone.until_offset), span.until_offset),
    )
    return [Span(span.topic, span.partition, begin, end, span.topic_id) for begin, end in ends if begin < end]
