"""A batch on its way from the deciding thread to the one that runs its job.

The deciding thread only looks its blocks up, since nobody is answered meanwhile; what takes long for many blocks is made by
whoever runs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

from driver.batches.batch import BatchWork, lived_without
from driver.journal.events import ReplayedBatch
from driver.journal.state import Batch, State
from forebay.kafka.consume.spans import Span
from forebay.model.values import Block
from wal.reading import BlockReference, incarnation_key

_HAS_HEADERS = attrgetter("meta.headers")


@dataclass(frozen=True, slots=True)
class _Looked:
    """One batch as the journal holds it; ``tasks``: its blocks."""

    batch_id: int
    number: int
    time_ms: int
    tasks: tuple[tuple[Block, ...], ...]
    lost: tuple[str, ...]
    outputs: tuple[str, ...]
    spans: tuple[Span, ...]
    incarnations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchRun:
    """``batches``: those that its window reaches back to, in order, and the batch itself. ``topic_ids``: of every life, by its
    ``life_key``."""

    stream: str
    batches: tuple[_Looked, ...]
    replay: int
    rerun: bool
    topic_ids: Mapping[str, str]

    @classmethod
    def of(cls, state: State, batches: Sequence[Batch | ReplayedBatch], replay: int, rerun: bool) -> BatchRun:
        """Called in the deciding thread."""
        blocks = state.blocks
        looked = tuple(
            _Looked(
                batch.batch_id,
                batch.number,
                batch.time_ms,
                tuple(tuple(map(blocks.__getitem__, task)) for task in batch.tasks),
                tuple(batch.lost),
                tuple(batch.outputs),
                batch.spans,
                batch.incarnations,
            )
            for batch in batches
        )
        topic_ids = {
            f"{key}/{incarnation.number}": incarnation.topic_id
            for key, partition in state.partitions.items()
            for incarnation in partition.incarnations
        }
        return cls(state.stream, looked, replay, rerun, topic_ids)

    def work(
        self,
        epoch: int,
        headers: bool,
        concurrent_jobs: int,
        window_batches: int,
        copies: Mapping[str, tuple[str, ...]],
    ) -> Iterator[BatchWork]:
        """What the engine is given of each batch, in the order of ``batches``. ``copies``: block id → hosts that were
        given copies which the journal does not name."""
        for batch in self.batches:
            blocks = list(chain.from_iterable(batch.tasks))
            spans, incarnations = lived_without(batch.spans, batch.incarnations, batch.lost)
            yield BatchWork(
                batch_id=batch.batch_id,
                number=batch.number,
                time_ms=batch.time_ms,
                rerun=self.rerun,
                tasks=tuple(tuple(_references(task, copies)) for task in batch.tasks),
                lost=frozenset(batch.lost),
                # also where the setting changed since: blocks with and without headers may lie in one batch
                headers=headers or any(map(_HAS_HEADERS, blocks)),
                replay=self.replay,
                topic_ids=self._topic_ids(blocks),
                stream=self.stream,
                epoch=epoch,
                concurrent_jobs=concurrent_jobs,
                outputs=frozenset(batch.outputs),
                window_batches=window_batches,
                spans=spans,
                incarnations=incarnations,
            )

    def _topic_ids(self, blocks: Sequence[Block]) -> Mapping[str, str]:
        """Of the lives of ``blocks``. Where they are many, of all: to look through them would take longer than to send it."""
        if len(blocks) > len(self.topic_ids):
            return self.topic_ids
        incarnations = {incarnation_key(r) for block in blocks for r in block.meta.ranges}
        return {incarnation: self.topic_ids.get(incarnation, "") for incarnation in incarnations}


def _references(task: Sequence[Block], copies: Mapping[str, tuple[str, ...]]) -> Iterator[BlockReference]:
    references = map(BlockReference.of, task)
    if not copies:
        return references
    return (reference.also_at(copies.get(reference.id, ())) for reference in references)
