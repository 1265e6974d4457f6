"""Offsets of one partition that somebody wants read. Pure; knows no client."""

from __future__ import annotations

import msgspec

from forebay.errors import UsageError
from forebay.values import TopicPartition


class Span(msgspec.Struct, frozen=True, gc=False, rename={"from_offset": "from", "until_offset": "until"}):
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
        if not self.topic or self.partition < 0:
            raise UsageError(f"offset range {self}: it needs a topic, and a partition from 0")
        if self.from_offset < 0:
            raise UsageError(f"offset range {self}: offsets begin at 0")
        if self.from_offset > self.until_offset:
            raise UsageError(f"offset range {self}: from {self.from_offset} lies beyond until {self.until_offset}")
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
