"""A batch run: one batch on its way from the decision loop, which reads it from the state, to the thread that runs its job.

The decision loop only looks up the batch's blocks, because it answers no request meanwhile. The thread that runs the job does
the work whose time grows with the number of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

from driver.batches.job.work import BatchWork, spans_without
from driver.batches.progress import Progress
from driver.decisions.batch_order import RunKey, following, window
from driver.journal.events import PauseChanged, ReplayedBatch
from driver.journal.state import State
from driver.journal.state_parts import Batch, JointBatch
from driver.journal.versions import StateVersion
from driver.tracker.requests import Read
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.errors import RefusedError
from forebay.model.values import Block
from wal.reading import BlockReference, incarnation_key

_HAS_HEADERS = attrgetter("meta.headers")


@dataclass(frozen=True, slots=True)
class _Looked:
    """One batch as the journal has it. ``tasks``: for each task its blocks. ``skipped``: whether a window shows it as empty,
    because an operator skipped it: its records may be the reason why a job fails."""

    batch_id: int
    number: int
    time_ms: int
    tasks: tuple[tuple[Block, ...], ...]
    lost: tuple[str, ...]
    outputs: tuple[str, ...]
    spans: tuple[OffsetRange, ...]
    incarnations: tuple[int, ...]
    skipped: bool

    @property
    def omitted(self) -> frozenset[str]:
        """The labels of the ranges that the job does not get."""
        if not self.skipped:
            return frozenset(self.lost)
        return frozenset(r.label for task in self.tasks for block in task for r in block.meta.ranges)


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One run of a batch. ``batches``: the batches that its window contains, in order; the last one is the batch itself.
    ``topic_ids``: incarnation (as ``incarnation_key``) → topic id, of all partitions. ``versions``: the newest version of each
    keyed state. ``joint``: the stream's newest batch in a joint batch."""

    stream: str
    batches: tuple[_Looked, ...]
    replay: int
    replay_begun_ms: int
    rerun: bool
    topic_ids: Mapping[str, str]
    versions: Mapping[str, StateVersion]
    joint: JointBatch | None = None

    @classmethod
    def of(cls, state: State, batches: Sequence[Batch | ReplayedBatch], replay: int, rerun: bool) -> BatchRun:
        """Look up the blocks of ``batches``. Called in the decision loop."""
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
                bool(batch.skipped),
            )
            for batch in batches
        )
        topic_ids = {
            f"{key}/{incarnation.number}": incarnation.topic_id
            for key, partition in state.partitions.items()
            for incarnation in partition.incarnations
        }
        begun_ms = state.replays[-1].begun_ms if replay else 0
        versions = {name: known.versions[-1] for name, known in state.keyed.items() if known.versions}
        joint = state.joint if not replay else None
        return cls(state.stream, looked, replay, begun_ms, rerun, topic_ids, versions, joint)

    def work(
        self,
        epoch: int,
        headers: bool,
        concurrent_jobs: int,
        window_batches: int,
        copies: Mapping[str, tuple[str, ...]],
    ) -> Iterator[BatchWork]:
        """Return the work of each of ``batches`` for the engine, in order. ``copies``: block id → hosts with a cached copy."""
        for batch in self.batches:
            blocks = list(chain.from_iterable(batch.tasks))
            spans, incarnations = spans_without(batch.spans, batch.incarnations, batch.lost)
            yield BatchWork(
                batch_id=batch.batch_id,
                number=batch.number,
                time_ms=batch.time_ms,
                rerun=self.rerun,
                tasks=tuple(tuple(_references(task, copies)) for task in batch.tasks),
                lost=batch.omitted,
                # if the setting changed, a batch may have blocks with headers and blocks without
                headers=headers or any(map(_HAS_HEADERS, blocks)),
                replay=self.replay,
                replay_begun_ms=self.replay_begun_ms,
                topic_ids=self._topic_ids(blocks),
                stream=self.stream,
                epoch=epoch,
                concurrent_jobs=concurrent_jobs,
                outputs=frozenset(batch.outputs),
                window_batches=window_batches,
                spans=spans,
                incarnations=incarnations,
                versions=self.versions,
                joint=self.joint if self.joint is not None and self.joint.batch_id == batch.batch_id else None,
            )

    def _topic_ids(self, blocks: Sequence[Block]) -> Mapping[str, str]:
        """Return the topic ids of the incarnations of ``blocks``. If there are many blocks, all ids: sending them takes less
        time than a search."""
        if len(blocks) > len(self.topic_ids):
            return self.topic_ids
        incarnations = {incarnation_key(r) for block in blocks for r in block.meta.ranges}
        return {incarnation: self.topic_ids.get(incarnation, "") for incarnation in incarnations}


def _references(task: Sequence[Block], copies: Mapping[str, tuple[str, ...]]) -> Iterator[BlockReference]:
    references = map(BlockReference.of, task)
    if not copies:
        return references
    return (reference.also_at(copies.get(reference.id, ())) for reference in references)


# ---- requests of the scheduler to the decision loop -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadUnfinished(Read[tuple[int, ...]]):
    """Reads the ids of all batches that are not completed."""

    def read(self, state: State) -> tuple[int, ...]:
        return tuple(batch.batch_id for batch in state.unfinished())


@dataclass(frozen=True, slots=True)
class ReadPause(Read["PauseChanged | None"]):
    """Reads the pause; None: the batches are not paused.

    ``progress`` gets the answer in the decision loop, so that a change in the same group of requests comes after it.
    """

    progress: Progress

    def read(self, state: State) -> PauseChanged | None:
        self.progress.pause(state.pause is not None)
        return state.pause


@dataclass(frozen=True, slots=True)
class ReadNextBatch(Read["BatchRun | None"]):
    """Reads the next batch to run; None: there is none, a batch blocks the others, or an operator has paused them.

    The batch is added to the batches in work of ``progress`` in the decision loop, so that no two workers get the same batch.
    ``reruns``: batches that may have run before. ``window_batches``: how many earlier batches the job can read.
    """

    progress: Progress
    reruns: Set[RunKey]
    window_batches: int

    def read(self, state: State) -> BatchRun | None:
        progress = self.progress
        may_begin = not progress.held_up and state.pause is None
        found = following(state, frozenset(progress.in_work)) if may_begin else None
        if found is None:
            return None
        batch, replay = found
        progress.in_work.add((replay, batch.batch_id))
        return _run_of(state, batch, replay, self.reruns, self.window_batches)


@dataclass(frozen=True, slots=True)
class SameBatch(Read[BatchRun]):
    """Reads a running batch again, because an operator may have accepted a loss or begun a replay since."""

    batch_id: int
    replay: int
    reruns: Set[RunKey]
    window_batches: int

    def read(self, state: State) -> BatchRun:
        batch = state.replaying[self.batch_id] if self.replay else state.batches[self.batch_id]
        return _run_of(state, batch, self.replay, self.reruns, self.window_batches)


@dataclass(frozen=True, slots=True)
class EarlierBatches(Read[BatchRun]):
    """Reads the batches before a running batch that its windows by time can contain, with the batch itself as the last one. They
    are the same on every rerun, because they stay until the batch is completed. Raises RefusedError if it is completed."""

    batch_id: int
    replay: int

    def read(self, state: State) -> BatchRun:
        batch: Batch | ReplayedBatch | None
        if self.replay:
            runs = state.replay is not None and state.replay.replay == self.replay
            batch = state.replaying.get(self.batch_id) if runs else None
        else:
            batch = state.batches.get(self.batch_id)
        if batch is None or (isinstance(batch, Batch) and batch.completed_ms is not None):
            raise RefusedError(
                f"batch {self.batch_id} is completed: the batches of its window may be deleted", "conflict"
            )
        return BatchRun.of(state, (*window(state, batch, self.replay > 0), batch), self.replay, False)


def _run_of(
    state: State, batch: Batch | ReplayedBatch, replay: int, reruns: Set[RunKey], window_batches: int
) -> BatchRun:
    past = window(state, batch, replay > 0, window_batches) if window_batches else ()
    return BatchRun.of(state, (*past, batch), replay, replay > 0 or (replay, batch.batch_id) in reruns)
