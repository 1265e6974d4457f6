"""What a direct stream reads of its checkpoint's state."""

from __future__ import annotations

from dataclasses import dataclass

from direct.hold import wanted
from direct.losses import positions, topic_ids
from driver.journal.state import LearnedRate, State
from driver.tracker.requests import Read
from forebay.kafka.consume.spans import Span
from forebay.model.values import TopicPartition


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """Where a direct stream is.

    ``positions``: of each partition the offset at which the next batch begins. ``topic_ids``: as they were when the partitions
    began. ``learned``: the rate at which the job takes records; None: not known. ``begun``: whether partitions have begun.
    """

    positions: dict[TopicPartition, int]
    topic_ids: dict[TopicPartition, str]
    learned: LearnedRate | None
    begun: bool


@dataclass(frozen=True, slots=True)
class ReadProgress(Read[StreamProgress]):
    """Reads where the stream is."""

    def read(self, state: State) -> StreamProgress:
        return StreamProgress(positions(state), topic_ids(state), state.learned, state.created)


@dataclass(frozen=True, slots=True)
class ReadWanted(Read[tuple[Span, ...]]):
    """Reads the spans that the stream still needs from Kafka or the intake."""

    def read(self, state: State) -> tuple[Span, ...]:
        return wanted(state)
