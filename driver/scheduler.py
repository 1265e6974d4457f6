"""The batch timer and the one job at a time.

The timer asks for an allocation at every batch interval; intervals that were missed coalesce into one. The runner takes
unfinished batches in order, runs the user's job over each, retries it ``job_max_failures`` times, and stops the driver with
the batch intact if that fails too: no batch is skipped.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from driver.batch import BatchWork, Engine, Job
from driver.events import Event, LossAccepted, ReplayBegun, ReplayedBatch
from driver.loop import DriverLoop
from driver.state import Batch, State
from driver.tracker import Allocate, Ask, Complete
from forebay import failpoints
from forebay.clock import Clock
from forebay.errors import FencedError, JobError, UnreadableBlockError
from forebay.messages import TrackedBatch
from wal.reading import BlockReference, life_key

log = logging.getLogger(__name__)

#: how often a batch that no tier could read is tried again while a person has not decided
UNREADABLE_RETRY_SECONDS = 30.0


class Scheduler:
    """``run`` is called in the thread that may run jobs (Spark wants the main one least surprised); it returns after
    :meth:`stop`, or raises what ended the jobs."""

    def __init__(
        self,
        loop: DriverLoop,
        engine: Engine,
        job: Job,
        clock: Clock,
        batch_interval_seconds: float,
        tasks: Callable[[], int],
        max_failures: int,
        retry_delay_seconds: float,
        headers: bool,
        epoch: int = 0,
    ) -> None:
        self._loop = loop
        self._engine = engine
        self._job = job
        self._clock = clock
        self._interval = batch_interval_seconds
        self._tasks = tasks
        self._max_failures = max_failures
        self._retry_delay = retry_delay_seconds
        self._headers = headers
        self._epoch = epoch
        self._stopping = threading.Event()
        self._allocated = threading.Event()
        self._loss_accepted = threading.Event()
        self._timer = threading.Thread(target=self._tick, name="batch-timer", daemon=True)
        self._timer_error: BaseException | None = None
        self._reruns: set[tuple[int, int]] = set()  # (replay, batch id)
        #: batch id → (state, attempts, detail), and the last completed batches: for status
        self.running: dict[int, tuple[str, int, str]] = {}
        self.recent: deque[TrackedBatch] = deque(maxlen=5)
        self.tiers: dict[str, int] = {}

    def start(self) -> None:
        """Everything unfinished in the journal is a rerun: it may have run before a crash, in whole or in part."""
        self._reruns = {(0, batch.batch_id) for batch in self._loop.ask(Ask(State.unfinished))}
        self._allocated.set()
        self._timer.start()

    def stop(self) -> None:
        """Lets the running job finish, and allocates and starts no more."""
        self._stopping.set()
        self._allocated.set()
        self._loss_accepted.set()

    def note(self, events: Sequence[Event]) -> None:
        """Hears, from the deciding thread, which events have become durable."""
        if any(isinstance(event, LossAccepted) for event in events):
            self._loss_accepted.set()
        if any(isinstance(event, ReplayBegun) for event in events):
            self._allocated.set()

    def run(self) -> None:
        while True:
            work = self._next()
            if work is None:
                return
            self._run_batch(work)

    def join(self) -> None:
        if self._timer.ident is not None:
            self._timer.join()

    def _tick(self) -> None:
        try:
            while not self._stopping.is_set():
                now = self._clock.wall_ms() / 1000.0
                due = (now // self._interval + 1) * self._interval
                if self._stopping.wait(max(0.0, due - now)):
                    return
                if self._loop.ask(Allocate(round(due * 1000), self._tasks())) is not None:
                    failpoints.hit("driver.after-allocate")
                    self._allocated.set()
        except BaseException as error:
            self._timer_error = error
            self.stop()

    def _next(self) -> BatchWork | None:
        while not self._stopping.is_set():
            self._allocated.clear()
            work: BatchWork | None = self._loop.ask(Ask(self._first_unfinished))
            if work is not None:
                return work
            self._allocated.wait()
        if self._timer_error is not None:
            raise self._timer_error
        return None

    def _first_unfinished(self, state: State) -> BatchWork | None:
        """What a replay has yet to run comes before batches that never ran."""
        if state.replay is not None:
            return self._work(state, next(iter(state.replaying.values())), state.replay.replay)
        unfinished = state.unfinished()
        return self._work(state, unfinished[0]) if unfinished else None

    def _again(self, state: State, work: BatchWork) -> BatchWork:
        """The batch of ``work`` as the journal holds it now: a loss may have been accepted, a replay begun behind it."""
        if work.replay:
            return self._work(state, state.replaying[work.batch_id], work.replay)
        return self._work(state, state.batches[work.batch_id])

    def _work(self, state: State, batch: Batch | ReplayedBatch, replay: int = 0) -> BatchWork:
        block_ids = [block_id for task in batch.tasks for block_id in task]
        return BatchWork(
            batch_id=batch.batch_id,
            number=batch.number,
            time_ms=batch.time_ms,
            rerun=replay > 0 or (replay, batch.batch_id) in self._reruns,
            tasks=tuple(tuple(BlockReference.of(state.blocks[block_id]) for block_id in task) for task in batch.tasks),
            lost=frozenset(batch.lost),
            # also where the setting changed since: blocks with and without headers may lie in one batch
            headers=self._headers or any(state.blocks[block_id].meta.headers for block_id in block_ids),
            replay=replay,
            topic_ids={
                life_key(r): state.partitions[str(r.tp)].topic_id(r.life)
                for block_id in block_ids
                for r in state.blocks[block_id].meta.ranges
            },
            stream=state.stream,
            epoch=self._epoch,
        )

    def _run_batch(self, work: BatchWork) -> None:
        attempts = 0
        while True:
            attempts += 1
            self.running[work.batch_id] = ("running", attempts, "")
            try:
                failpoints.hit("driver.in-job")
                tiers = self._engine.run(work, self._job)
                break
            except UnreadableBlockError as error:
                # Not a failure of the job: batches stop, intake goes on, until the bytes are back or a person decides.
                words = f"{error}; bring the bytes back, or `forebay recover --accept-loss {work.batch_id} RANGE`"
                self.running[work.batch_id] = ("unreadable", attempts, words)
                log.error("batch %d can't be read, batches wait: %s", work.batch_id, words)
                attempts -= 1
                self._loss_accepted.wait(UNREADABLE_RETRY_SECONDS)
                if self._stopping.is_set():
                    return
                self._loss_accepted.clear()
            except FencedError:
                raise  # an output has seen a newer driver (INV-4)
            except Exception as error:
                words = f"{type(error).__name__}: {error}"
                self.running[work.batch_id] = ("failing", attempts, words)
                if attempts >= self._max_failures:
                    raise JobError(
                        f"the job failed {attempts} times on batch {work.batch_id} (number {work.number}); the batch is "
                        f"intact and runs again when the driver is started again. Last error: {words}"
                    ) from error
                log.error("attempt %d of batch %d failed, trying again: %s", attempts, work.batch_id, words)
                self._reruns.add((work.replay, work.batch_id))
                if self._stopping.wait(self._retry_delay):
                    return
            work = self._loop.ask(Ask(partial(self._again, work=work)))
        for tier, count in tiers.items():
            self.tiers[tier] = self.tiers.get(tier, 0) + count
        failpoints.hit("driver.before-complete")
        self._loop.ask(Complete(work.batch_id, self._clock.wall_ms(), attempts, work.replay))
        failpoints.hit("driver.after-complete")
        self.running.pop(work.batch_id, None)
        self._reruns.discard((work.replay, work.batch_id))
        references = [reference for task in work.tasks for reference in task]
        self.recent.append(
            TrackedBatch(
                batch_id=work.batch_id,
                number=work.number,
                time_ms=work.time_ms,
                state="completed",
                blocks=len(references),
                records=sum(r.records for reference in references for r in reference.ranges),
                attempts=attempts,
                replay=work.replay,
                written=tuple(map(str, work.written)),
            )
        )
