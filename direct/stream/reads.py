"""What a direct stream reads of its checkpoint's state, by requests to the decision loop."""

from __future__ import annotations

from dataclasses import dataclass

from direct.checkpoint.losses import positions, topic_ids
from direct.stream.cursor import ranges_to_keep
from driver.journal.state import LearnedRate, State
from driver.tracker.requests import Read
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.values import TopicPartition


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """Where a direct stream is.

    ``positions``: the offset of each partition at which the next batch begins. ``topic_ids``: as they were when the partitions
    began. ``learned``: the rate at which the job takes records; None: not known. ``begun``: whether partitions have begun.
    """

    positions: dict[TopicPartition, int]
    topic_ids: dict[TopicPartition, str]
    learned: LearnedRate | None
    begun: bool


@dataclass(frozen=True, slots=True)
class ReadProgress(Read[StreamProgress]):
    """The request for a :class:`StreamProgress`."""

    def read(self, state: State) -> StreamProgress:
        return StreamProgress(positions(state), topic_ids(state), state.learned, state.created)


@dataclass(frozen=True, slots=True)
class ReadRangesToKeep(Read[tuple[OffsetRange, ...]]):
    """The request for the ranges that the stream has yet to read or may read again."""

    def read(self, state: State) -> tuple[OffsetRange, ...]:
        return ranges_to_keep(state)
