"""The scheduler of a direct stream's batches, and how far the stream is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from direct.stream.planner import BatchPlanner
from direct.stream.reads import ReadNumbers
from direct.stream.settings import StreamSettings
from driver.batches.backpressure import Backpressure
from driver.batches.batch_log import BatchLog
from driver.batches.job.dead_letters import confirm_dead_letters
from driver.batches.job.engine import Engine, NamedJob
from driver.batches.runner import AttemptRules, BatchHooks
from driver.batches.scheduler import BatchOptions, Scheduler
from driver.decision_loop.loop import DriverLoop
from driver.journal.state_parts import LearnedRate
from driver.listeners.dispatch import Listeners
from driver.listeners.events import Happened, PartitionLag
from driver.listeners.lag import LAG_SECONDS, measured
from driver.tracker.requests import AllocateSpans
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock
from forebay.settings.schema import DriverSettings

#: pause before a batch with unreadable records is tried again, as in an intake
UNREADABLE_RETRY_SECONDS = float(DriverSettings(journal="").unreadable_retry)


def make_scheduler(
    settings: StreamSettings,
    loop: DriverLoop,
    engine: Engine,
    jobs: Sequence[NamedJob],
    *,
    clock: Clock,
    epoch: int,
    learned: LearnedRate | None,
    planner: BatchPlanner,
    lag: LagEvents,
    tell: Callable[[Sequence[Happened]], None],
    is_listening: Callable[[], bool],
) -> Scheduler:
    """Return the scheduler of the stream's batches. ``learned``: the rate that an earlier process learned."""

    def allocation(time_ms: int) -> AllocateSpans | None:
        request = planner.plan(time_ms)
        lag.tell_if_due()
        return request

    backpressure = Backpressure(
        loop,
        gains=settings.gains,
        batch_interval_seconds=settings.interval_seconds,
        learned=learned,
        begun_ms=clock.wall_ms(),
    )
    return Scheduler(
        loop,
        engine,
        jobs,
        clock=clock,
        options=BatchOptions(
            batch_interval_seconds=settings.interval_seconds,
            tasks=lambda: 1,
            headers=False,
            epoch=epoch,
            concurrent_jobs=settings.concurrent_jobs,
            window_batches=settings.window_batches,
            allocation=allocation,
        ),
        rules=AttemptRules(
            max_failures=settings.max_failures,
            retry_delay_seconds=settings.retry_seconds,
            unreadable_retry_seconds=UNREADABLE_RETRY_SECONDS,
            is_direct=True,
        ),
        hooks=BatchHooks(
            completed=backpressure.completed if settings.backpressure else None,
            confirm=confirm_dead_letters,
            lost=planner.journal_lost,
            tell=tell,
            is_listening=is_listening,
        ),
        batches=BatchLog(settings.batch_history),
    )


def partition_lags(loop: DriverLoop, ends: Mapping[TopicPartition, int]) -> tuple[PartitionLag, ...]:
    """Return how far each partition of the stream is. ``ends``: Kafka's end offsets. Raises UnreachableError."""
    found = loop.ask(ReadNumbers())
    return tuple(
        PartitionLag(tp.topic, tp.partition, at, found.completed.get(tp, at), ends.get(tp))
        for tp, at in sorted(found.positions.items())
    )


class LagEvents:
    """Tells listeners how far a stream is, at most every ``LAG_SECONDS``."""

    def __init__(
        self,
        lags: Callable[[], tuple[PartitionLag, ...]],
        listeners: Listeners,
        clock: Clock,
    ) -> None:
        self._lags = lags
        self._listeners = listeners
        self._clock = clock
        self._due = 0.0

    def tell_if_due(self) -> None:
        """Tell the lag if the last one is old enough, and a listener wants events."""
        now = self._clock.monotonic()
        if now < self._due or not self._listeners:
            return
        self._due = now + LAG_SECONDS
        self._listeners.tell_all([measured(self._lags(), None, self._clock.wall_ms())])
