"""What the journal knows of how far the stream is behind: the driver's share of ``forebay lag``; Kafka knows the rest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from driver.journal.state import State
from forebay.messages import LagAnswer, PartitionProgress
from forebay.model.values import Block, TopicPartition

#: the newest blocks, of which the mean size of a record is taken
SAMPLED_BLOCKS = 1_000
#: blocks that are looked at for the oldest one of each partition that is not completed
WAITING_BLOCKS = 10_000


def lag(state: State) -> LagAnswer:
    """A look at a bounded number of blocks: it is asked in the deciding thread."""
    records: dict[TopicPartition, int] = {}
    sizes: dict[TopicPartition, int] = {}
    for block in itertools.islice(reversed(state.blocks.values()), SAMPLED_BLOCKS):
        for held in block.meta.ranges:
            records[held.tp] = records.get(held.tp, 0) + held.records
            sizes[held.tp] = sizes.get(held.tp, 0) + held.bytes
    oldest: dict[TopicPartition, int] = {}
    for block in itertools.islice(_not_completed(state), WAITING_BLOCKS):
        for held in block.meta.ranges:
            if held.max_timestamp_ms >= 0:
                oldest.setdefault(held.tp, held.max_timestamp_ms)
    of_all = _mean(sum(records.values()), sum(sizes.values()))
    return LagAnswer(
        partitions=tuple(
            PartitionProgress(
                topic=partition.topic,
                partition=partition.partition,
                incarnation=partition.incarnation.number,
                position=partition.position,
                completed=partition.completed,
                record_bytes=_mean(records.get(partition.tp, 0), sizes.get(partition.tp, 0)) or of_all,
                waiting_since_ms=oldest.get(partition.tp, -1) if partition.completed < partition.position else -1,
            )
            for partition in sorted(state.partitions.values(), key=lambda partition: partition.tp)
        )
    )


def _not_completed(state: State) -> Iterator[Block]:
    for batch in state.unfinished():
        for block_id in batch.block_ids:
            yield state.blocks[block_id]
    for block_id in state.waiting:
        yield state.blocks[block_id]


def _mean(records: int, size_bytes: int) -> float:
    return round(size_bytes / records, 1) if records else 0.0
