"""What several events change in one partition: its claim, its writers, the completed position."""

from __future__ import annotations

from driver.journal.state import BrokenInvariant, State
from driver.journal.state_parts import Partition


def partition_of(state: State, topic: str, partition: int) -> Partition:
    """Return a partition of the state. Raises BrokenInvariant if the journal has not added it."""
    found = state.partitions.get(f"{topic}/{partition}")
    if found is None:
        raise BrokenInvariant(f"partition {topic}/{partition} was not added")
    return found


def drop_writers(partition: Partition, receiver_id: str) -> None:
    """Remove the receiver's writers: its epochs can no longer write records of the partition, or a newer token replaces
    theirs."""
    partition.writers = [writer for writer in partition.writers if writer.receiver_id != receiver_id]


def end_claim(partition: Partition) -> None:
    partition.owner = ""
    partition.owner_epoch = 0


def complete_gaps(partition: Partition) -> None:
    """Move the completed position over gaps: no batch will ever contain them."""
    for recorded in partition.gaps:
        if recorded.incarnation == partition.incarnation.number and recorded.gap.from_offset == partition.completed:
            partition.completed = recorded.gap.until_offset
