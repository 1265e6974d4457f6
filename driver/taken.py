"""A batch on its way from the deciding thread to the one that runs its job.

The deciding thread only looks its blocks up, since nobody is answered meanwhile; what takes long for many blocks is made by
whoever runs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from driver.batch import BatchWork
from driver.events import ReplayedBatch
from driver.state import Batch, State
from forebay.values import Block
from wal.reading import BlockReference, life_key

#: topic, partition, life
LifeOf = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class _Looked:
    """One batch as the journal holds it; ``tasks``: its blocks."""

    batch_id: int
    number: int
    time_ms: int
    tasks: tuple[tuple[Block, ...], ...]
    lost: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """``batches``: those that its window reaches back to, in order, and the batch itself. ``topic_ids``: of every life."""

    stream: str
    batches: tuple[_Looked, ...]
    replay: int
    rerun: bool
    topic_ids: Mapping[LifeOf, str]

    @classmethod
    def of(cls, state: State, batches: Sequence[Batch | ReplayedBatch], replay: int, rerun: bool) -> Taken:
        """Called in the deciding thread."""
        blocks = state.blocks
        looked = tuple(
            _Looked(
                batch.batch_id,
                batch.number,
                batch.time_ms,
                tuple(tuple([blocks[block_id] for block_id in task]) for task in batch.tasks),
                tuple(batch.lost),
                tuple(batch.outputs),
            )
            for batch in batches
        )
        topic_ids = {
            (partition.topic, partition.partition, life.life): life.topic_id
            for partition in state.partitions.values()
            for life in partition.lives
        }
        return cls(state.stream, looked, replay, rerun, topic_ids)

    def work(self, epoch: int, headers: bool, concurrent_jobs: int, window_batches: int) -> Iterator[BatchWork]:
        """What the engine is given of each batch, in the order of ``batches``."""
        for batch in self.batches:
            blocks = [block for task in batch.tasks for block in task]
            yield BatchWork(
                batch_id=batch.batch_id,
                number=batch.number,
                time_ms=batch.time_ms,
                rerun=self.rerun,
                tasks=tuple(tuple(BlockReference.of(block) for block in task) for task in batch.tasks),
                lost=frozenset(batch.lost),
                # also where the setting changed since: blocks with and without headers may lie in one batch
                headers=headers or any(block.meta.headers for block in blocks),
                replay=self.replay,
                topic_ids=self._topic_ids(blocks),
                stream=self.stream,
                epoch=epoch,
                concurrent_jobs=concurrent_jobs,
                outputs=frozenset(batch.outputs),
                window_batches=window_batches,
            )

    def _topic_ids(self, blocks: Sequence[Block]) -> dict[str, str]:
        """Of the lives of ``blocks``."""
        lives: dict[LifeOf, str] = {}
        for block in blocks:
            for r in block.meta.ranges:
                life = (r.topic, r.partition, r.life)
                if life not in lives:
                    lives[life] = life_key(r)
        return {key: self.topic_ids.get(life, "") for life, key in lives.items()}
