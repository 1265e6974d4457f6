"""Sealed blocks, from the cut to the driver's answer, and what the stores still work on. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, KeysView
from dataclasses import dataclass

from forebay.model.values import Block, TopicPartition
from receiver.block_draft import BlockDraft


@dataclass(slots=True)
class SealedBlock:
    """``checked``: topic ids were read after its last poll, and are those of the claims. ``stored``: None while the stores
    work on it."""

    draft: BlockDraft
    weight_bytes: int
    checked: bool
    sealed_at: float
    stored: Block | None = None


class SealedBlocks:
    """In order of sequence. A block that was forgotten before it is durable still counts as one that the stores may write.

    ``weight_bytes``: memory that those without an answer hold.
    """

    def __init__(self) -> None:
        self.weight_bytes = 0
        self._blocks: dict[int, SealedBlock] = {}
        self._unanswered: Counter[TopicPartition] = Counter()  # blocks that hold a range of it
        self._storing: dict[int, tuple[tuple[TopicPartition, int], ...]] = {}  # not durable yet: its ranges' tokens
        self._storing_under: Counter[tuple[TopicPartition, int]] = Counter()

    def __iter__(self) -> Iterator[SealedBlock]:
        return iter(self._blocks.values())

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, draft: BlockDraft, weight_bytes: int, now: float) -> None:
        """It goes to the stores next."""
        # a broker that can't tell topic ids: nothing to compare
        checked = not any(part.topic_id for part in draft.ranges)
        self._blocks[draft.sequence] = SealedBlock(draft, weight_bytes, checked, now)
        self.weight_bytes += weight_bytes
        self._unanswered.update(part.tp for part in draft.ranges)
        self._storing[draft.sequence] = tuple((part.tp, part.token) for part in draft.ranges)
        self._storing_under.update(self._storing[draft.sequence])

    def store(self, sequence: int, block: Block) -> None:
        """It is durable, whether an answer to it is still wanted or not."""
        self._storing_under.subtract(under := self._storing.pop(sequence, ()))
        for key in under:
            if not self._storing_under[key]:
                del self._storing_under[key]
        if sequence in self._blocks:
            self._blocks[sequence].stored = block

    def forget(self, sealed: SealedBlock) -> None:
        """It was answered, or never will be reported."""
        del self._blocks[sealed.draft.sequence]
        self.weight_bytes -= sealed.weight_bytes
        for part in sealed.draft.ranges:
            self._unanswered[part.tp] -= 1
            if not self._unanswered[part.tp]:
                del self._unanswered[part.tp]

    def holds(self, tp: TopicPartition) -> bool:
        """Whether a block with a range of it waits for its answer."""
        return tp in self._unanswered

    def may_write(self, tp: TopicPartition) -> bool:
        """Whether a store may yet write a block of the partition, under whatever token."""
        return any(stored == tp for stored, _ in self._storing_under)

    @property
    def written_under(self) -> KeysView[tuple[TopicPartition, int]]:
        """The partitions and tokens under which a store may yet write."""
        return self._storing_under.keys()

    def unchecked(self) -> list[SealedBlock]:
        return [sealed for sealed in self if not sealed.checked]

    def since(self, sequence: int) -> list[SealedBlock]:
        """That block and those sealed after it."""
        return [sealed for sealed in self if sealed.draft.sequence >= sequence]

    def first_not_stored(self) -> SealedBlock | None:
        return next((sealed for sealed in self if sealed.stored is None), None)

    def to_report(self, ranges_max: int) -> list[Block]:
        """Durable and checked, in order of sequence, of so many ranges together, but one at least: a block stored early waits
        for those before it, whose ends its ranges touch."""
        blocks: list[Block] = []
        ranges = 0
        for sealed in self:
            if sealed.stored is None or not sealed.checked:
                break
            ranges += len(sealed.draft.ranges)
            if blocks and ranges > ranges_max:
                break
            blocks.append(sealed.stored)
        return blocks
