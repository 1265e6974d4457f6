"""``--until-caught-up``: whether all records that the source held at the start are completed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from driver.journal.state import State
from forebay.model.values import TopicPartition


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The targets of ``--until-caught-up``. ``ends``: partition → (its incarnation at the start, the offset to reach)."""

    ends: Mapping[TopicPartition, tuple[int, int]]

    @classmethod
    def of(cls, offsets: Mapping[TopicPartition, int], incarnations: Mapping[TopicPartition, int]) -> CatchUp:
        return cls({tp: (incarnations[tp], offset) for tp, offset in offsets.items()})

    def missing(self, state: State) -> list[TopicPartition]:
        """Return the partitions that have not reached their targets.

        A partition with a newer incarnation counts as caught up: Kafka no longer has the records of the ended incarnation, and
        an operator or the policy has accepted this loss.
        """
        return sorted(
            tp
            for tp, (incarnation, offset) in self.ends.items()
            if (partition := state.partition(tp)) is None
            or (partition.incarnation.number == incarnation and partition.completed < offset)
        )

    def __str__(self) -> str:
        return ", ".join(f"{tp} {offset}" for tp, (_, offset) in sorted(self.ends.items()))
