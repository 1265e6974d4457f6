"""The open block and pending blocks: polled records become ranges without gaps between them, and blocks of bounded size. Pure.

This module does not read the batches inside :class:`Columns`: a piece says from which offset on its rows count, and the
encoding takes those rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from forebay.model.columns import Columns
from forebay.model.values import Gap, TopicPartition

#: memory that a record takes in addition to its key and value: offset, timestamp, timestamp type, two slots of Arrow offsets
RECORD_OVERHEAD_BYTES = 32


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of ``columns`` whose offset is at least ``from_offset`` (a source may start earlier within a batch)."""

    from_offset: int
    columns: Columns

    @property
    def weight_bytes(self) -> int:
        """Memory that the piece takes, including trimmed rows, which stay in the same buffers."""
        return self.columns.bytes + self.columns.rows * RECORD_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRange:
    """Offsets ``[from_offset, until_offset)`` of one partition, not written yet.

    ``token``: of the receiver's claim. ``pieces``: the rows, in offset order; empty if the range holds only transaction markers,
    which move the position too. ``leader_epoch``: the leader epoch of the last record before ``until_offset``; -1 if unknown.
    ``topic_id``: the topic id that the claim names. ``preceding_gap``: the gap just before the claimed position; set only in the
    first range after a claim.
    """

    tp: TopicPartition
    incarnation: int
    token: int
    from_offset: int
    until_offset: int
    leader_epoch: int
    topic_id: str
    preceding_gap: Gap | None
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class PendingBlock:
    """A sealed block that is not stored yet. It has one range for each partition; epoch and sequence make its id."""

    epoch: int
    sequence: int
    ranges: tuple[PendingRange, ...]

    @property
    def weight_bytes(self) -> int:
        return sum(piece.weight_bytes for part in self.ranges for piece in part.pieces)

    @property
    def offsets(self) -> int:
        """The number of offsets in the block."""
        return sum(part.until_offset - part.from_offset for part in self.ranges)


@dataclass(slots=True)
class OpenRange:
    """A range of the open block. It grows at its end until the block is sealed."""

    from_offset: int
    until_offset: int
    pieces: list[Piece] = field(default_factory=list)


@dataclass(slots=True)
class OpenBlock:
    """The block that takes in records: at most one range per partition. ``opened_at``: when its first range was added."""

    ranges: dict[TopicPartition, OpenRange] = field(default_factory=dict)
    bytes: int = 0
    weight_bytes: int = 0
    opened_at: float = 0.0

    def add(self, piece: Piece, now: float) -> None:
        """Add ``piece`` to the end of its partition's range. A gap before its first record becomes part of the range."""
        until = piece.columns.last_offset + 1
        part = self._range(piece.columns.tp, piece.from_offset, now)
        part.pieces.append(piece)
        part.until_offset = until
        self.bytes += piece.columns.bytes
        self.weight_bytes += piece.weight_bytes

    def move(self, tp: TopicPartition, from_offset: int, until_offset: int, now: float) -> None:
        """Add ``[from_offset, until_offset)``, which holds no record (markers, compaction)."""
        self._range(tp, from_offset, now).until_offset = until_offset

    def remove(self, tp: TopicPartition) -> OpenRange | None:
        """Remove and return the partition's range, None if there is none."""
        part = self.ranges.pop(tp, None)
        if part is not None:
            self.bytes -= sum(piece.columns.bytes for piece in part.pieces)
            self.weight_bytes -= sum(piece.weight_bytes for piece in part.pieces)
        return part

    def _range(self, tp: TopicPartition, from_offset: int, now: float) -> OpenRange:
        if not self.ranges:
            self.opened_at = now
        part = self.ranges.get(tp)
        if part is None:
            part = self.ranges[tp] = OpenRange(from_offset, from_offset)
        return part


def remaining(pieces: Iterable[Piece], position: int) -> list[Piece]:
    """Return the pieces at or after ``position``, the first of them trimmed if it begins before (rule 4)."""
    return [
        piece if piece.from_offset >= position else Piece(position, piece.columns)
        for piece in pieces
        if piece.columns.last_offset >= position
    ]
