"""The seam between Kafka and the block builder: columns per topic-partition, never single messages.

A source gives :class:`Columns`; the receiver's machine looks only at their numbers (offsets, rows, bytes, generation) and
passes the Arrow batches on to whoever encodes a block. So the simulation can run the same machine over columns that hold
nothing but offsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from forebay.model.values import TopicPartition


@dataclass(frozen=True, slots=True)
class Columns:
    """Consecutive records of one partition from one poll, in offset order.

    ``generation``: the tag of the assignment they were polled under; a receiver drops every other. ``batch``: a
    ``pyarrow.RecordBatch`` of ``forebay.model.records.SOURCE_SCHEMA`` (opaque to the machine). ``bytes``: keys and values.
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
    """The source reached the end: every offset below ``offset`` was given or does not hold a record."""

    tp: TopicPartition
    generation: int
    offset: int


@dataclass(frozen=True, slots=True)
class PartitionFault:
    """The source can't continue this partition at its position. ``kind`` as in ``messages.Fault``. ``end``: where the log of
    the epochs that were read ends now, if the broker told it (truncation); else -1."""

    tp: TopicPartition
    generation: int
    kind: str
    detail: str
    end: int = -1


class Start(msgspec.Struct, frozen=True):
    """Where to assign a partition: at ``offset``, with the leader epoch of the record before it (-1: unknown)."""

    tp: TopicPartition
    offset: int
    leader_epoch: int
    generation: int
