"""The batch timer and the job workers of a simulated driver: generators that do what the threads of ``driver.batches`` do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from driver.batches.trigger import DueBatch, Trigger
from driver.decisions.batch_order import RunKey, following, window
from driver.journal.events import ReplayedBatch
from driver.journal.state import State
from driver.journal.state_parts import Batch
from driver.tracker.requests import Allocate, AllocateNext, Complete
from forebay.model.errors import RefusedError
from forebay.model.values import Block
from tests.simulation.shells import Task
from tests.support.state.reads import ReadBy

if TYPE_CHECKING:
    from tests.simulation.driver_process import DriverProcess


@dataclass(frozen=True, slots=True)
class Work:
    """A running batch: its blocks by task, and the earlier batches that its window reaches."""

    batch_id: int
    replay: int
    tasks: tuple[tuple[Block, ...], ...]
    past: tuple[Work, ...] = ()


class JobWorkers:
    """The timer and the workers of one driver process, which share the trigger and the set of running batches."""

    def __init__(self, driver: DriverProcess) -> None:
        self._driver = driver
        self._world = driver.world
        self.trigger = Trigger(0.0 if driver.world.options.trigger == "continuous" else 1.0)
        self._in_work: set[RunKey] = set()

    def is_timer_due(self, state: State) -> bool:
        return (bool(state.waiting) and self._due() is None) or self._may_be_empty()

    def is_job_due(self, state: State) -> bool:
        return following(state, self._in_work) is not None or (bool(state.waiting) and self._due() is not None)

    def timer(self) -> Task:
        while True:
            yield "begin"
            if self._workers_allocate:
                self.trigger.end_interval(self._driver.clock.wall_ms())
                continue
            yield Allocate(self._driver.clock.wall_ms(), self._world.options.tasks, self._may_be_empty())

    def _may_be_empty(self) -> bool:
        """Not after the faults have ended: the run would never end."""
        return self._world.options.empty_batches and not self._world.calm

    def job(self) -> Task:
        """One worker of ``driver.batches.scheduler``. It reads the batches of its window too."""
        while True:
            yield "begin"
            work = yield ReadBy(self._begin_batch)
            if work is None and (due := self._due()) is not None:
                made = yield AllocateNext(due.time_ms, self._world.options.tasks)
                self.trigger.finish_due(due, made.left)
                if made.batch_id is not None:
                    self._world.reached["allocated by a worker"] += 1
                    work = yield ReadBy(self._begin_batch)
            if work is None:
                continue
            past = []
            for before in work.past:
                for task in before.tasks:
                    for block in task:
                        yield "read-window"
                        yield from self._driver.blocks.read_retrying(block)
                past.append(before.batch_id)
            rows: list[tuple[tuple[str, ...], ...]] = []
            for task in work.tasks:
                read: list[str] = []
                for block in task:
                    read += yield from self._driver.blocks.read_retrying(block)
                rows.append((tuple(b.id for b in task), tuple(read)))
            self._world.invariants.job_done(self._driver, work.batch_id, work.replay, tuple(rows), tuple(past))
            yield "complete"
            try:
                yield Complete(work.batch_id, self._driver.ageing.wall_ms(), 1, work.replay)
            except RefusedError:
                raise AssertionError("each batch is in work once") from None
            self._in_work.discard((work.replay, work.batch_id))

    @property
    def _workers_allocate(self) -> bool:
        """With a batch for each interval, the timer makes them all."""
        return self._world.options.trigger != "interval" and not self._world.options.empty_batches

    def _due(self) -> DueBatch | None:
        return self.trigger.due() if self._workers_allocate else None

    def _begin_batch(self, state: State) -> Work | None:
        """Start a batch as the scheduler does: in the decision loop."""
        found = following(state, self._in_work)
        if found is None:
            return None
        batch, replay = found
        self._in_work.add((replay, batch.batch_id))

        def held(one: Batch | ReplayedBatch) -> tuple[tuple[Block, ...], ...]:
            return tuple(tuple(state.blocks[b] for b in task) for task in one.tasks)

        past = tuple(Work(one.batch_id, replay, held(one)) for one in window(state, batch, replay > 0))
        return Work(batch.batch_id, replay, held(batch), past)
