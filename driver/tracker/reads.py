"""Reads of the state that several of the driver's threads send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from driver.journal.state import State
from driver.tracker.requests import Read
from forebay.model.values import TopicPartition


class PartitionOffsets(NamedTuple):
    """How far a partition is in its newest incarnation.

    ``position``: the offset after the last accepted record. ``completed``: the offset after the last record of a completed batch.
    """

    incarnation: int
    position: int
    completed: int


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """How far each partition of the stream is, under the journal's timeline."""

    timeline: int
    partitions: Mapping[TopicPartition, PartitionOffsets]


@dataclass(frozen=True, slots=True)
class ReadOffsets(Read[StreamOffsets]):
    """Reads how far each partition is."""

    def read(self, state: State) -> StreamOffsets:
        return StreamOffsets(
            state.timeline,
            {p.tp: PartitionOffsets(p.incarnation.number, p.position, p.completed) for p in state.partitions.values()},
        )
