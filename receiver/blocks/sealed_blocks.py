"""Sealed blocks from the cut to the driver's answer, and the blocks that a store may still write. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, KeysView
from dataclasses import dataclass

from forebay.model.values import Block, TopicPartition
from receiver.blocks.pending_block import PendingBlock


@dataclass(slots=True)
class SealedBlock:
    """A sealed block without an answer of the driver.

    ``checked``: topic ids were read after its last poll and equal those of the claims. ``stored``: None until it is durable.
    """

    pending: PendingBlock
    weight_bytes: int
    checked: bool
    sealed_at: float
    stored: Block | None = None


class SealedBlocks:
    """The sealed blocks, in order of sequence.

    A block that was forgotten before it was durable still counts as one that a store may write. ``weight_bytes``: memory of
    the blocks without an answer.
    """

    def __init__(self) -> None:
        self.weight_bytes = 0
        self._blocks: dict[int, SealedBlock] = {}
        self._unanswered: Counter[TopicPartition] = Counter()  # how many blocks hold a range of it
        self._storing: dict[
            int, tuple[tuple[TopicPartition, int], ...]
        ] = {}  # of blocks not durable yet: partition and token of each range
        self._storing_under: Counter[tuple[TopicPartition, int]] = Counter()

    def __iter__(self) -> Iterator[SealedBlock]:
        return iter(self._blocks.values())

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, pending: PendingBlock, weight_bytes: int, now: float) -> None:
        """Add a block that goes to the stores next."""
        # without topic ids (of an old broker) there is nothing to check
        checked = not any(part.topic_id for part in pending.ranges)
        self._blocks[pending.sequence] = SealedBlock(pending, weight_bytes, checked, now)
        self.weight_bytes += weight_bytes
        self._unanswered.update(part.tp for part in pending.ranges)
        self._storing[pending.sequence] = tuple((part.tp, part.token) for part in pending.ranges)
        self._storing_under.update(self._storing[pending.sequence])

    def mark_durable(self, sequence: int, block: Block) -> SealedBlock | None:
        """Record that the block with this sequence is durable. Return its sealed block; None if :meth:`forget` removed it."""
        self._storing_under.subtract(under := self._storing.pop(sequence, ()))
        for key in under:
            if not self._storing_under[key]:
                del self._storing_under[key]
        sealed = self._blocks.get(sequence)
        if sealed is not None:
            sealed.stored = block
        return sealed

    def forget(self, sealed: SealedBlock) -> None:
        """Remove a block that was answered, or that is never going to be reported."""
        del self._blocks[sealed.pending.sequence]
        self.weight_bytes -= sealed.weight_bytes
        for part in sealed.pending.ranges:
            self._unanswered[part.tp] -= 1
            if not self._unanswered[part.tp]:
                del self._unanswered[part.tp]

    def holds(self, tp: TopicPartition) -> bool:
        """Return whether a block with a range of the partition waits for its answer."""
        return tp in self._unanswered

    def may_write(self, tp: TopicPartition) -> bool:
        """Return whether a store may still write a block of the partition, under any token."""
        return any(stored == tp for stored, _ in self._storing_under)

    @property
    def written_under(self) -> KeysView[tuple[TopicPartition, int]]:
        """The partitions and tokens under which a store may still write."""
        return self._storing_under.keys()

    def unchecked(self) -> list[SealedBlock]:
        return [sealed for sealed in self if not sealed.checked]

    def since(self, sequence: int) -> list[SealedBlock]:
        """Return that block and all that were sealed after it."""
        return [sealed for sealed in self if sealed.pending.sequence >= sequence]

    def first_not_stored(self) -> SealedBlock | None:
        return next(self.not_stored(), None)

    def not_stored(self) -> Iterator[SealedBlock]:
        """Yield the blocks that are not durable yet, in order."""
        return (sealed for sealed in self if sealed.stored is None)

    def to_report(self, ranges_max: int) -> list[Block]:
        """Return the blocks to report: durable and checked, in order of sequence.

        At most ``ranges_max`` ranges in total, but at least one block. A block that is durable early waits for those before
        it, because its ranges begin where theirs end.
        """
        blocks: list[Block] = []
        ranges = 0
        for sealed in self:
            if sealed.stored is None or not sealed.checked:
                break
            ranges += len(sealed.pending.ranges)
            if blocks and ranges > ranges_max:
                break
            blocks.append(sealed.stored)
        return blocks
