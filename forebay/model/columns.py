"""What a source returns to a receiver: columns of records per partition, never single messages; and how it is started.

A source returns :class:`Columns`. The receiver's machine reads only their numbers (offsets, rows, bytes, generation) and passes
the Arrow batches on to the encoder of blocks. So the simulation runs the same machine over columns that hold only offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from forebay.model.values import TopicPartition


@dataclass(frozen=True, slots=True)
class Columns:
    """Consecutive records of one partition from one poll, in offset order.

    ``generation``: the generation of the start under which they were polled; a receiver drops records of any other. ``batch``: a
    ``pyarrow.RecordBatch`` of ``forebay.model.records.SOURCE_SCHEMA`` (opaque to the machine). ``bytes``: size of the keys and
    values.
    """

    tp: TopicPartition
    generation: int
    first_offset: int
    last_offset: int
    rows: int
    bytes: int
    max_timestamp_ms: int
    leader_epoch: int  # of the last record; -1 if unknown
    batch: Any


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """The source reached the end: each offset below ``offset`` was returned or holds no record."""

    tp: TopicPartition
    generation: int
    offset: int


@dataclass(frozen=True, slots=True)
class PartitionFault:
    """The source can't continue this partition at its position.

    ``kind``: as in ``messages.Fault``. ``end``: for a truncation, where the log of the leader epochs that were read ends now,
    if the broker reported it; else -1.
    """

    tp: TopicPartition
    generation: int
    kind: str
    detail: str
    end: int = -1


class Start(msgspec.Struct, frozen=True):
    """Where to begin to read a partition: at ``offset``, with the leader epoch of the record before it (-1: unknown)."""

    tp: TopicPartition
    offset: int
    leader_epoch: int
    generation: int


class RebalanceListener(Protocol):
    """Receives the decisions of the consumer group, within the source's ``poll`` and on its thread. Never raises."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """The group gave these partitions to this receiver. They deliver nothing before they are started."""

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """The group takes these partitions away; this receiver owns them until this returns.

        Returns when their records are sealed, stored and reported, or the deadline has passed. May name partitions that were
        never assigned.
        """

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """The session expired, and another member may own these partitions. Their unreported records are dropped."""
