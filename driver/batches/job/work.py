"""A batch as an engine gets it: :class:`BatchWork`, as the journal has it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from driver.batches.job.keyed_state import KeyedState
from driver.batches.tasks.decoding import DeadLetterPlan
from driver.journal.state_parts import JointBatch
from driver.journal.versions import StateVersion
from forebay.kafka.consume.planning import sizes
from forebay.kafka.consume.spans import OffsetRange, with_incarnations, without_lost
from forebay.model.identifiers import timeline_of
from forebay.model.values import BlockRange
from forebay.settings.schema import DriverSettings
from wal.reading import BlockReference

_DEFAULTS = DriverSettings(journal="")


@dataclass(frozen=True, slots=True)
class Written:
    """What one run of a batch wrote to one output: the number of rows, or why the output was skipped."""

    output: str
    rows: int
    skipped: str = ""

    def __str__(self) -> str:
        return f"{self.output}: skipped, {self.skipped}" if self.skipped else f"{self.output}: {self.rows} rows"


@dataclass(frozen=True, slots=True)
class BatchWork:
    """One batch as the journal has it. A rerun has the same blocks in the same tasks and order (INV-3).

    ``tasks``: for each task its blocks, in order. ``lost``: labels of ranges whose loss an operator has accepted; they are not
    read. ``headers``: whether the stream takes record headers in. ``replay``: the number of the replay that runs the batch; 0
    if none does. ``topic_ids``: as in ``ReadPlan``. ``concurrent_jobs``: maximum number of batches in work at the same time.
    ``epoch``: the journal epoch of the driver that runs the batch. ``written``: the results of output helpers in this run.
    ``outputs``: the outputs that are done. ``output``: the output that is running. ``attempt``: the attempt of this driver at
    the batch, from 1. ``decodes``: one entry for each call of ``decode`` in this run.

    ``window_batches``: how many batches before this one a window may contain; ``past``: these batches, in order; ``covers``: in a
    window, ids of its batches. ``spans``: in a direct stream, which has no blocks, what each task reads;
    ``incarnations``: the incarnation of each span's partition. ``replay_begun_ms``: when the replay began; 0 if none runs it.
    ``window_ms``: the longest window by time; ``earlier``: reads the batches that such windows may contain, in order.
    ``versions``: the newest version of each keyed state; ``opened``: the states that this run uses.
    ``since_ms``: the end of the oldest interval without a batch before this one, if this driver made it; 0: the batch's time.
    ``joint``: the joint batch that it belongs to. ``follows``: whether another stream's job gets it.
    """

    batch_id: int
    number: int
    time_ms: int
    rerun: bool
    tasks: tuple[tuple[BlockReference, ...], ...]
    lost: frozenset[str] = frozenset()
    headers: bool = False
    replay: int = 0
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    concurrent_jobs: int = _DEFAULTS.concurrent_jobs
    stream: str = ""
    epoch: int = 0
    written: list[Written] = field(default_factory=list, compare=False)
    outputs: frozenset[str] = frozenset()
    window_batches: int = 0
    past: tuple[BatchWork, ...] = ()
    covers: tuple[int, ...] = ()
    output: str = ""
    attempt: int = 1
    decodes: list[DeadLetterPlan] = field(default_factory=list, compare=False)
    spans: tuple[OffsetRange, ...] = ()
    incarnations: tuple[int, ...] = ()
    replay_begun_ms: int = 0
    since_ms: int = 0
    versions: Mapping[str, StateVersion] = field(default_factory=dict)
    opened: dict[str, KeyedState] = field(default_factory=dict, compare=False)
    window_ms: int = 0
    earlier: Callable[[], tuple[BatchWork, ...]] = field(default=tuple, compare=False)
    joint: JointBatch | None = None
    follows: bool = False

    @property
    def due_ms(self) -> int:
        """When the run was due: at ``since_ms`` or the batch's time, or in a replay when the replay began."""
        return self.replay_begun_ms if self.replay else self.since_ms or self.time_ms

    @property
    def key(self) -> str:
        """As ``Batch.key``."""
        return f"{self.timeline}-{self.replay}-{self.batch_id}"

    @property
    def timeline(self) -> int:
        """As ``Batch.timeline``."""
        return timeline_of(self.epoch) if self.replay and self.epoch else timeline_of(self.batch_id)

    @property
    def ranges(self) -> tuple[BlockRange, ...]:
        """The ranges of the batch's rows, in order, without accepted losses."""
        ranges = chain.from_iterable(reference.ranges for task in self.tasks for reference in task)
        return tuple(range_ for range_ in ranges if range_.label not in self.lost) if self.lost else tuple(ranges)

    @property
    def records(self) -> int:
        """The number of the batch's records; in a direct stream, of its offsets."""
        if self.spans:
            return sizes(self.spans)  # more than the records if a topic is compacted or transactional
        if self.lost:
            return sum(range_.records for range_ in self.ranges)
        return sum(reference.records for task in self.tasks for reference in task)


def spans_without(
    spans: Iterable[OffsetRange], incarnations: Iterable[int], lost: Collection[str]
) -> tuple[tuple[OffsetRange, ...], tuple[int, ...]]:
    """Remove the ranges ``lost`` from ``spans`` (as ``forebay.kafka.consume.spans.without_lost``). Return each remaining part
    with its incarnation.

    ``incarnations``: the incarnation of each span, as ``with_incarnations`` takes them.
    """
    parts = without_lost(with_incarnations(spans, incarnations), lost)
    return tuple(part for part, _ in parts), tuple(incarnation for _, incarnation in parts)


def since_set_back(works: Sequence[BatchWork]) -> Sequence[BatchWork]:
    """Return the works after the last one whose clock was ahead of the next one's: no window contains both."""
    first = next((at for at in range(len(works) - 1, 0, -1) if works[at - 1].time_ms > works[at].time_ms), 0)
    return works[first:]
