"""Records in memory: the open block, sealed blocks without an answer, pieces that wait for a new token. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from forebay.model.values import TopicPartition
from forebay.settings.schema import ReceiverSettings
from receiver import actions as act
from receiver.blocks.pending_block import OpenBlock, PendingBlock, PendingRange, Piece, remaining
from receiver.blocks.sealed_blocks import SealedBlocks
from receiver.machine.delivery.sealing import Sealing
from receiver.machine.exchange.outbox import Outbox
from receiver.machine.membership.partition import Partition, Phase
from receiver.machine.membership.partitions import Partitions
from receiver.machine.membership.registration import Registration


@dataclass(kw_only=True, slots=True, eq=False)
class Buffer:
    """Cuts records into blocks. ``sealed``: blocks from the cut to the driver's answer."""

    settings: ReceiverSettings
    outbox: Outbox
    registration: Registration
    partitions: Partitions
    sealing: Sealing
    sealed: SealedBlocks = field(default_factory=SealedBlocks)
    _open: OpenBlock = field(default_factory=OpenBlock)
    _sequence: int = 0  # of the block sealed last
    _held_bytes: int = 0  # of what all partitions hold

    @property
    def weight_bytes(self) -> int:
        """Memory that records take: open block, sealed blocks until answered, held pieces (INV-6)."""
        return self._open.weight_bytes + self.sealed.weight_bytes + self._held_bytes

    @property
    def has_open(self) -> bool:
        """Whether there is an open block."""
        return bool(self._open.ranges)

    def is_open(self, tp: TopicPartition) -> bool:
        """Whether the open block has a range of the partition."""
        return tp in self._open.ranges

    def is_unanswered(self, tp: TopicPartition) -> bool:
        """Whether the driver has yet to answer a block, open or sealed, with a range under the partition's current token.

        A new claim waits for the answer, since the driver would refuse the block after the claim. The report of a fault waits
        too: it names the position, which must be durable.
        """
        return self.sealed.holds(tp) or self.is_open(tp)

    def open_seconds(self, now: float) -> float:
        """Return the age of the open block; 0 without one."""
        return now - self._open.opened_at if self.has_open else 0.0

    @property
    def open_offsets(self) -> int:
        """The number of offsets in the open block."""
        return sum(part.until_offset - part.from_offset for part in self._open.ranges.values())

    def seconds_until_seal(self, now: float) -> float:
        """Return the seconds until the open block is sealed if no record is added; without an open block, until the
        poll must end."""
        sealing = self.sealing
        until = sealing.due_at(self._open.opened_at) if self.has_open else sealing.awaited_until(now)
        return max(0.0, until - now)

    # ---- taking in ---------------------------------------------------------------------------------------------------

    def append(self, partition: Partition, piece: Piece, now: float) -> None:
        """Add to the open block, and seal it at ``block_size``. A piece that is larger than that becomes a block alone."""
        limit = self.settings.block_size
        if self._open.bytes and self._open.bytes + piece.columns.bytes > limit:
            self.seal(now)
        if not self.is_open(partition.tp):  # a range begins where the one before it ended (INV-2)
            self._open.move(partition.tp, partition.expected, partition.expected, now)
        self._open.add(piece, now)
        partition.expected = piece.columns.last_offset + 1
        partition.leader_epoch = piece.columns.leader_epoch
        if self._open.bytes >= limit:
            self.seal(now)

    def move(self, partition: Partition, until_offset: int, now: float) -> None:
        """Move the expected offset to ``until_offset`` past offsets that hold no record."""
        self._open.move(partition.tp, partition.expected, until_offset, now)
        partition.expected = until_offset

    def seal_due(self, draining: bool, now: float) -> None:
        """Seal the open block if it is time (:class:`Sealing`), or in a drain."""
        if self.has_open and (draining or now >= self.sealing.due_at(self._open.opened_at)):
            self.seal(now)

    def seal(self, now: float) -> None:
        """Seal the open block and hand it to the stores."""
        self._sequence += 1
        self.sealing.sealed(now)
        ranges = []
        for tp, part in self._open.ranges.items():
            partition = self.partitions[tp]
            gap = partition.gap
            ranges.append(
                PendingRange(
                    tp=tp,
                    incarnation=partition.incarnation,
                    token=partition.token,
                    from_offset=part.from_offset,
                    until_offset=part.until_offset,
                    leader_epoch=partition.leader_epoch,
                    topic_id=partition.topic_id,
                    preceding_gap=gap if gap is not None and gap.until_offset == part.from_offset else None,
                    pieces=tuple(part.pieces),
                )
            )
        pending = PendingBlock(self.registration.epoch, self._sequence, tuple(ranges))
        self.sealed.add(pending, self._open.weight_bytes, now)
        self._open = OpenBlock()
        self.outbox.do(act.StoreBlock(pending))

    # ---- cutting again (rule 4) --------------------------------------------------------------------------------------

    def hold(self, tp: TopicPartition, from_offset: int, pieces: Iterable[Piece], token: int) -> None:
        """Keep pieces that were cut under ``token``, to cut them again under the next token.

        Does nothing if the partition has another token already or is being revoked.
        """
        partition = self.partitions.get(tp)
        if partition is None or partition.token != token or partition.phase is Phase.REVOKING:
            return
        kept = list(pieces)
        partition.hold(from_offset, kept)
        self._held_bytes += sum(piece.weight_bytes for piece in kept)

    def hold_open(self, tp: TopicPartition) -> None:
        """Move the partition's records from the open block to the pieces that are cut again."""
        part = self._open.remove(tp)
        partition = self.partitions.get(tp)
        if part is not None and partition is not None:
            self.hold(tp, part.from_offset, part.pieces, partition.token)

    def take_held(self, partition: Partition) -> list[Piece]:
        """Remove and return the pieces that the partition holds."""
        held = partition.held
        self._held_bytes -= sum(piece.weight_bytes for piece in held)
        partition.forget_held()
        return held

    def cut_again(self, partition: Partition, held: Iterable[Piece], held_until: int, now: float) -> None:
        """Add the records of ``held`` at or after the expected offset, then move the expected offset to ``held_until``."""
        for piece in remaining(held, partition.expected):
            self.append(partition, piece, now)
        if partition.expected < held_until:
            self.move(partition, held_until, now)

    # ---- dropping ----------------------------------------------------------------------------------------------------

    def forget(self, tp: TopicPartition) -> None:
        """Drop the partition's records that are open or held. Sealed blocks may still be reported."""
        self._open.remove(tp)
        partition = self.partitions.get(tp)
        if partition is not None:
            self.take_held(partition)

    def clear(self) -> None:
        """Drop all records that were not reported."""
        self._open = OpenBlock()
        for sealed in list(self.sealed):
            self.sealed.forget(sealed)
        for partition in self.partitions:
            self.take_held(partition)
