"""Requests that only read the state, and that several of the driver's threads send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from driver.journal.state import State
from driver.tracker.requests import Read
from forebay.model.values import TopicPartition


class PartitionOffsets(NamedTuple):
    """The offsets that a partition has reached in its newest incarnation.

    ``position``: the offset after the last accepted record. ``completed``: the offset after the last record of a completed batch.
    """

    incarnation: int
    position: int
    completed: int


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """The offsets of every partition of the stream, and the journal's timeline when they were read."""

    timeline: int
    partitions: Mapping[TopicPartition, PartitionOffsets]


@dataclass(frozen=True, slots=True)
class ReadOffsets(Read[StreamOffsets]):
    """Reads the offsets of every partition."""

    def read(self, state: State) -> StreamOffsets:
        return StreamOffsets(
            state.timeline,
            {p.tp: PartitionOffsets(p.incarnation.number, p.position, p.completed) for p in state.partitions.values()},
        )
