"""The interface between a source and a receiver: polled records as Arrow columns, and the start of a partition.

The receiver's decisions (``receiver.machine``) use only the numbers in :class:`Columns`: offsets, rows, bytes, generation. The
Arrow batches go unread to the encoder of blocks. Tests therefore run the same decisions on columns without records.
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

    ``generation``: that of the :class:`Start` after which they were polled. After a newer start of the partition, the receiver
    drops them. ``batch``: a ``pyarrow.RecordBatch`` of ``forebay.model.records.SOURCE_SCHEMA``. ``bytes``: size of the keys and
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

    ``kind``: as in ``messages.Fault``. ``end``: for a truncated log, the end offset that the broker reported for the leader epoch
    of the last record read; -1 if it reported none.
    """

    tp: TopicPartition
    generation: int
    kind: str
    detail: str
    end: int = -1


class Start(msgspec.Struct, frozen=True):
    """Where a source begins to read a partition: at ``offset``.

    ``leader_epoch``: of the record before it; -1 if unknown. ``generation``: the receiver's count of the starts of this
    partition.
    """

    tp: TopicPartition
    offset: int
    leader_epoch: int
    generation: int


class RebalanceListener(Protocol):
    """Receives the decisions of the consumer group. The source calls it within ``poll``, on the polling thread. Never raises."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """The group assigned these partitions to this receiver. The source returns their records only after a :class:`Start`."""

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """The group revokes these partitions. The receiver owns them until this call returns.

        It returns when their records are sealed, stored and reported, or when the deadline has passed. ``partitions`` may contain
        some that were never assigned.
        """

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """The session expired, so another member may own these partitions. The receiver drops their unreported records."""
