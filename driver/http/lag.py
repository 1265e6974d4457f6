"""The lag of the stream according to the journal: the driver's part of ``forebay lag``. Kafka's end offsets are the other
part."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from driver.journal.state import State
from driver.tracker.requests import Read
from forebay.messages import LagAnswer, PartitionProgress
from forebay.model.values import Block, TopicPartition

#: number of the newest blocks from which the mean size of a record is computed
SAMPLED_BLOCKS = 1_000
#: maximum number of blocks that are searched for the oldest one of each partition that is not completed
WAITING_BLOCKS = 10_000


def lag(state: State) -> LagAnswer:
    """Return the offsets of each partition. Reads only a limited number of blocks, because it runs in the decision loop."""
    records: dict[TopicPartition, int] = {}
    sizes: dict[TopicPartition, int] = {}
    for block in itertools.islice(reversed(state.blocks.values()), SAMPLED_BLOCKS):
        for held in block.meta.ranges:
            records[held.tp] = records.get(held.tp, 0) + held.records
            sizes[held.tp] = sizes.get(held.tp, 0) + held.bytes
    oldest: dict[TopicPartition, int] = {}
    for block in itertools.islice(not_completed(state), WAITING_BLOCKS):
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


@dataclass(frozen=True, slots=True)
class ReadLag(Read[LagAnswer]):
    """Reads the stream's lag."""

    def read(self, state: State) -> LagAnswer:
        return lag(state)


def not_completed(state: State) -> Iterator[Block]:
    """Yield the blocks that are not completed: those of batches, then those that wait, the oldest first in each."""
    for batch in state.unfinished():
        for block_id in itertools.chain.from_iterable(batch.tasks):  # readers want the first few of perhaps 100,000
            yield state.blocks[block_id]
    for block_id in state.waiting:
        yield state.blocks[block_id]


def _mean(records: int, size_bytes: int) -> float:
    return round(size_bytes / records, 1) if records else 0.0
