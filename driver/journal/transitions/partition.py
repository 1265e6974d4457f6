"""What several events change in one partition: its claim, its writers, the completed position."""

from __future__ import annotations

from driver.journal.state import BrokenInvariant, Partition, State


def partition_of(state: State, topic: str, partition: int) -> Partition:
    found = state.partitions.get(f"{topic}/{partition}")
    if found is None:
        raise BrokenInvariant(f"partition {topic}/{partition} has no life yet")
    return found


def drop_writers(partition: Partition, receiver_id: str) -> None:
    """No epoch of the receiver so far can still write of the partition, or a newer token of the same epoch stands for all."""
    partition.writers = [writer for writer in partition.writers if writer.receiver_id != receiver_id]


def end_claim(partition: Partition) -> None:
    partition.owner = ""
    partition.owner_epoch = 0


def complete_gaps(partition: Partition) -> None:
    """No batch will ever hold a gap: what is completed up to one is completed to its end."""
    for recorded in partition.gaps:
        if recorded.incarnation == partition.incarnation.number and recorded.gap.from_offset == partition.completed:
            partition.completed = recorded.gap.until_offset
