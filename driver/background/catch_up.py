"""``--until-caught-up``: whether all that Kafka held at the start is completed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from driver.journal.state import State
from forebay.model.values import TopicPartition


@dataclass(frozen=True, slots=True)
class CatchUp:
    """``ends``: partition → (its life at the start, the offset up to which all is to be completed)."""

    ends: Mapping[TopicPartition, tuple[int, int]]

    @classmethod
    def of(cls, offsets: Mapping[TopicPartition, int], incarnations: Mapping[TopicPartition, int]) -> CatchUp:
        return cls({tp: (incarnations[tp], offset) for tp, offset in offsets.items()})

    def missing(self, state: State) -> list[TopicPartition]:
        """The partitions that are not completed so far. What a life that has ended since did not give is gone: Kafka no
        longer has it, and a person or the policy has decided so."""
        return sorted(
            tp
            for tp, (incarnation, offset) in self.ends.items()
            if (partition := state.partition(tp)) is None
            or (partition.incarnation.number == incarnation and partition.completed < offset)
        )

    def __str__(self) -> str:
        return ", ".join(f"{tp} {offset}" for tp, (_, offset) in sorted(self.ends.items()))
