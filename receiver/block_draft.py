"""Cutting blocks: what is polled becomes ranges that touch, ranges become blocks of bounded size. Pure.

The batches inside :class:`Columns` are never looked at here: a piece says from which offset on its rows count, and
whoever stores the block takes those rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from forebay.model.columns import Columns
from forebay.model.values import Gap, TopicPartition

#: memory that a record takes beside its key and value: offset, timestamp, timestamp type, two slots of Arrow offsets
RECORD_OVERHEAD_BYTES = 32


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of ``columns`` whose offset is at least ``from_offset`` (a source may start earlier within a batch)."""

    from_offset: int
    columns: Columns

    @property
    def weight_bytes(self) -> int:
        """Memory held by it, trimmed rows included: they stay in the same buffers."""
        return self.columns.bytes + self.columns.rows * RECORD_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class DraftRange:
    """Offsets ``[from_offset, until_offset)`` of one partition, about to be written under ``token``.

    ``pieces`` are in offset order and may be none: a tail of transaction markers moves the position too.
    ``leader_epoch``: of the last record at or before the end, -1 if unknown. ``topic_id``: of the claim.
    ``preceding_gap``: as the driver answered the claim, on the first range after it.
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
class BlockDraft:
    """A block that is sealed and not yet stored: one range for each partition, the numbers that make its id."""

    epoch: int
    sequence: int
    ranges: tuple[DraftRange, ...]

    @property
    def weight_bytes(self) -> int:
        return sum(piece.weight_bytes for part in self.ranges for piece in part.pieces)


@dataclass(slots=True)
class OpenRange:
    """A range of the open block: grows at its end until the block is sealed."""

    from_offset: int
    until_offset: int
    pieces: list[Piece] = field(default_factory=list)


@dataclass(slots=True)
class OpenBlock:
    """The block that is being gathered: at most one range per partition. ``opened_at``: when the first range came."""

    ranges: dict[TopicPartition, OpenRange] = field(default_factory=dict)
    bytes: int = 0
    weight_bytes: int = 0
    opened_at: float = 0.0

    def add(self, piece: Piece, now: float) -> None:
        """Takes in ``piece``, which begins where its partition's range ends (holes lie inside, see hole.py)."""
        until = piece.columns.last_offset + 1
        part = self._range(piece.columns.tp, piece.from_offset, now)
        part.pieces.append(piece)
        part.until_offset = until
        self.bytes += piece.columns.bytes
        self.weight_bytes += piece.weight_bytes

    def move(self, tp: TopicPartition, from_offset: int, until_offset: int, now: float) -> None:
        """Takes in ``[from_offset, until_offset)``, which holds no record (markers, compaction)."""
        self._range(tp, from_offset, now).until_offset = until_offset

    def remove(self, tp: TopicPartition) -> OpenRange | None:
        """Takes the partition's range out of the block, if it has one."""
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
    """What of ``pieces`` lies at or after ``position``: whole pieces, the first perhaps trimmed (rule 4)."""
    return [
        piece if piece.from_offset >= position else Piece(position, piece.columns)
        for piece in pieces
        if piece.columns.last_offset >= position
    ]
