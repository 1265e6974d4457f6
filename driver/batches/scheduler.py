"""The batches in work: workers that take them in order and run them.

Each of ``concurrent_jobs`` workers takes the next unfinished batch in order and makes its outputs one after the other
(``driver.batches.runner``). A free worker also makes the next batch, if one is due (``driver.batches.trigger``). So no batch
waits for a worker, and blocks that arrive while all workers are busy join the next batch. After ``driver.job_max_failures``
failed attempts a batch is failed. A failed batch is intact and only an operator skips it: it is tried again after growing delays
(``driver.batches.job_failures``), or its failure ends the jobs. While a batch fails or can't be read, no other batch begins.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from driver.batches.batch_log import BatchLog
from driver.batches.batch_run import BatchRun, EarlierBatches, ReadNextBatch, ReadPause, ReadUnfinished, SameBatch
from driver.batches.entries import RunningBatch
from driver.batches.job.engine import Engine, NamedJob
from driver.batches.job.work import BatchWork
from driver.batches.job_failures import FailingJobs
from driver.batches.joint.jobs import JointLeader, JointMember
from driver.batches.joint.streams import Port
from driver.batches.progress import Progress, Skip
from driver.batches.runner import AttemptRules, BatchHooks, BatchRunner
from driver.batches.timer import BatchTimer
from driver.batches.trigger import Trigger
from driver.decision_loop.loop import DriverLoop
from driver.decisions.batch_order import RunKey
from driver.journal.events import BlockAdded, Event, LossAccepted, PauseChanged, ReplayBegun
from driver.tracker.requests import AllocateNext, AllocateSpans
from forebay.messages import OperatorAnswer
from forebay.model.errors import RefusedError, UsageError
from forebay.process import failpoints
from forebay.process.clock import Clock
from forebay.process.logs import fields
from forebay.settings.schema import DriverSettings

log = logging.getLogger(__name__)

_DEFAULTS = DriverSettings(journal="")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How a stream's batches are made and read.

    ``batch_interval_seconds``: time between two batches; 0: the next one begins as soon as blocks wait. ``tasks``: returns how
    many tasks a batch has. ``headers``: whether the stream takes record headers in. ``epoch``: the journal's.
    ``concurrent_jobs``, ``window_batches``, ``window_ms``: as in ``[driver]``.
    ``empty_batches``: whether an interval without blocks gives a batch too. ``ahead``: whether each interval gives a batch while
    all workers are busy. ``allocation``: for a direct stream, as in :class:`driver.batches.timer.BatchTimer`. ``copies``: returns
    block id → hosts with a cached copy of the block. ``joint``: the stream's part in a joint job.
    """

    batch_interval_seconds: float
    tasks: Callable[[], int]
    headers: bool
    epoch: int = 0
    concurrent_jobs: int = _DEFAULTS.concurrent_jobs
    window_batches: int = 0
    window_ms: int = 0
    empty_batches: bool = False
    ahead: bool = False
    allocation: Callable[[int], AllocateSpans | None] | None = None
    copies: Callable[[], Mapping[str, tuple[str, ...]]] = dict
    joint: JointMember | None = None


class Scheduler:
    """The timer and the workers of a stream's batches.

    :meth:`run` is called in the thread that may run jobs. It returns after :meth:`stop`, or raises the error that ended the
    jobs. If ``concurrent_jobs`` is above 1, the other workers have threads of their own, which end before :meth:`run` returns.
    ``completions``: gives the journal the time of a batch's completion; default: ``clock``. ``failing``: attempts that failed
    before; default: none. ``batches``: gets the completed batches; default: a log of the default of
    ``driver.batch_history``.
    """

    def __init__(
        self,
        loop: DriverLoop,
        engine: Engine,
        jobs: Sequence[NamedJob],
        *,
        clock: Clock,
        options: BatchOptions,
        rules: AttemptRules,
        hooks: BatchHooks | None = None,
        failing: FailingJobs | None = None,
        completions: Clock | None = None,
        batches: BatchLog | None = None,
    ) -> None:
        self._loop = loop
        self._options = options
        self._is_direct = rules.is_direct
        self._failing = failing or FailingJobs(clock, max_failures=rules.max_failures, known={})
        self._error: BaseException | None = None  # the first that ended a worker or the timer
        self._workers: set[int] = set()  # idents of the threads that run batches
        self._reruns: set[RunKey] = set()
        self._progress = Progress()
        self._trigger = Trigger(options.batch_interval_seconds)
        self._due_since: dict[int, int] = {}  # batch id → DueBatch.since_ms, of the batches that this driver made
        self._joint = options.joint
        self._follows = self._joint is not None and not self._joint.leads
        # a direct stream's are made by the timer alone, and those of a joint job's follower by the leader
        self._makes_batches = options.allocation is None and not self._follows
        #: the newest completed batches
        self.batches = batches if batches is not None else BatchLog(_DEFAULTS.batch_history)
        self._runner = BatchRunner(
            loop,
            engine,
            jobs,
            clock=clock,
            completions=completions or clock,
            rules=rules,
            hooks=hooks or BatchHooks(),
            failing=self._failing,
            progress=self._progress,
            reruns=self._reruns,
            batches=self.batches,
            again=self._same,
        )
        self._timer = BatchTimer(
            loop,
            clock,
            self._progress,
            end_interval=self._end_interval,
            interval_seconds=options.batch_interval_seconds,
            tasks=options.tasks,
            empty_batches=options.empty_batches,
            ahead=options.ahead or options.empty_batches or options.allocation is not None,
            allocation=options.allocation,
            failed=self._fail,
        )

    @property
    def running(self) -> dict[int, RunningBatch]:
        """Batch id → the batch in work, for status."""
        return self._runner.running

    @property
    def tiers(self) -> dict[str, int]:
        """How many ranges were read from each tier, for status."""
        return self._runner.tiers

    @property
    def failed(self) -> str:
        """The failed batch and its error; "" if no batch is failed."""
        return self._failing.text

    @property
    def held_up(self) -> str:
        """Why a drain can complete no batch; "" if it can. A failed batch blocks the others, or the batches are paused."""
        if self._progress.waits_for_retry:
            return "a batch failed again"
        if self._progress.is_idle_in_pause:
            return "the batches are paused"
        return self._joint.held_up if self._joint is not None else ""

    def start(self) -> None:
        """Start the timer. Every batch that is not completed in the journal counts as a rerun: it may have run in part."""
        if (pause := self._loop.ask(ReadPause(self._progress))) is not None:
            log.info("batches stay paused, by %s", pause.cause)
        self._reruns.update((0, batch_id) for batch_id in self._loop.ask(ReadUnfinished()))
        self._failing.log_ended()
        if self._joint is not None:
            self._joint.attach(
                Port(
                    ask=self._loop.ask,
                    tasks=self._options.tasks,
                    wake=self._progress.wake,
                    end_interval=self._end_interval,
                    stopping=self._progress.stopping.is_set,
                    held_up=lambda: self.held_up,
                )
            )
        if not self._follows:
            self._timer.start()

    def stop(self) -> None:
        """Allocate and start no more batches. Running jobs continue to their end."""
        self._progress.stop()
        if self._joint is not None:
            self._joint.wake()

    def join(self) -> None:
        """Wait for the end of the timer."""
        self._timer.join()
        self._leave()

    def _leave(self) -> None:
        if self._joint is not None:
            self._joint.detach()

    def note(self, events: Sequence[Event]) -> None:
        """Process events that have become durable. Called in the decision loop."""
        for event in events:
            if isinstance(event, PauseChanged):
                self._progress.pause(event.paused)
                how = "paused" if event.paused else "resumed"
                log.info("batches %s by %s", how, event.cause, extra=fields(paused=event.paused, cause=event.cause))
                if self._joint is not None:
                    self._joint.wake()
        if self._joint is not None:
            self._joint.note(events)
        losses = sum(isinstance(event, LossAccepted) for event in events)
        wanted = (ReplayBegun, BlockAdded) if self._trigger.continuous else ReplayBegun
        if losses or any(isinstance(event, wanted) for event in events):
            self._progress.wake(losses)

    def retry(self) -> tuple[int, ...]:
        """Begin the next attempt at every failed and every unreadable batch now; return their ids."""
        return self._progress.retry()

    def skip(self, batch_id: int, cause: str) -> Future[OperatorAnswer]:
        """End a failed or unreadable batch without its job. Return a future that ends when that is durable.

        The future ends with RefusedError if the batch is not one, or if an attempt at it runs now.
        """
        skip = Skip(cause)
        if not self._progress.skip(batch_id, skip, only_failed=self._follows):
            known = self._runner.running.get(batch_id)
            if self._follows:
                message = f"batch {batch_id} is for another stream's job: skip that stream's batch, and this one is skipped too"
            elif known is not None and known.state == "running" and known.detail:
                message = f"attempt {known.attempts} at batch {batch_id} runs now: try again when it has failed"
            else:
                message = f"batch {batch_id} is not a failed or unreadable batch; `forebay status` shows these batches"
            skip.answer.set_exception(RefusedError(message, "conflict"))
        elif self._joint is not None:
            self._joint.wake()
        return skip.answer

    @property
    def paused(self) -> bool:
        """Whether an operator has paused the batches."""
        return self._progress.paused

    def drain(self) -> None:
        """Allocate no empty batch from now on, and begin the next attempt at a failed batch now."""
        self._timer.drain()
        if isinstance(self._joint, JointLeader):
            self._joint.empty = False
        self.retry()

    def allocate(self, time_ms: int) -> None:
        """Make a batch of the waiting blocks, unless too many batches are queued."""
        if self._joint is not None:
            self._joint.request_batch(time_ms)
        else:
            self._timer.allocate(time_ms)

    def _end_interval(self, time_ms: int) -> None:
        self._trigger.end_interval(time_ms)
        self._progress.wake()

    def in_job(self) -> bool:
        """Whether the calling thread runs batches or is the timer; it must not wait for the end of either."""
        return threading.get_ident() in self._workers or self._timer.is_current_thread

    def run(self) -> None:
        """Run batches until :meth:`stop`. Raises the error that ended a worker or the timer."""
        others = [
            threading.Thread(target=self._work_on, name=f"batches-{number}", daemon=True)
            for number in range(2, self._options.concurrent_jobs + 1)
        ]
        for thread in others:
            thread.start()
        self._work_on()
        for thread in others:
            thread.join()
        self._leave()
        if self._error is not None:
            raise self._error

    def _work_on(self) -> None:
        self._workers.add(threading.get_ident())
        left_over = True
        try:
            while (work := self._next()) is not None:
                if self._begin(work):
                    left_over = left_over and work.rerun and not self._is_direct and not self._follows
                    self._runner.run(work, left_over)
                    left_over = False
                self._progress.finish((work.replay, work.batch_id))
                self._due_since.pop(work.batch_id, None)
        except BaseException as error:
            self._fail(error)
        finally:
            self._workers.discard(threading.get_ident())

    def _begin(self, work: BatchWork) -> bool:
        """Wait for the batches of the other streams, if the job gets them too. Return False if the batch does not run now: the
        batches are paused or stop, or an operator has skipped it."""
        if not isinstance(self._joint, JointLeader):
            return True
        run = (work.replay, work.batch_id)
        with self._progress.blocked(run) as ends:
            ready = self._joint.await_partners(work, ends)
        if (skip := self._progress.take_skip(run)) is not None:
            self._runner.skip(work, skip)
            return False
        return ready

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        self.stop()

    def _next(self) -> BatchWork | None:
        while not self._progress.stopping.is_set():
            seen = self._progress.changes
            run = self._loop.ask(self._read_next())
            if run is not None:
                return self._work(run)
            if not self._make_next():  # another worker may begin what is made here
                self._progress.await_change(seen)
        return None

    def _make_next(self) -> bool:
        """Make the next batch if one is due and could begin. Return whether one was made."""
        due = self._trigger.due() if self._makes_batches and not self._progress.held_up else None
        if due is None:
            return False
        if isinstance(self._joint, JointLeader):
            made = self._joint.allocate_next(due.time_ms)
        else:
            made = self._loop.ask(AllocateNext(due.time_ms, self._options.tasks()))
        self._trigger.finish_due(due, made.left)
        if made.batch_id is None:
            return False
        self._due_since[made.batch_id] = due.since_ms
        failpoints.hit("driver.after-allocate")
        return True

    def _read_next(self) -> ReadNextBatch:
        return ReadNextBatch(self._progress, self._reruns, self._eager_batches)

    def _read_same(self, batch_id: int, replay: int = 0) -> SameBatch:
        return SameBatch(batch_id, replay, self._reruns, self._eager_batches)

    @property
    def _eager_batches(self) -> int:
        """How many batches before a batch are read with it. Windows by time need the time of one, and read the others later."""
        return max(self._options.window_batches, 1 if self._options.window_ms else 0)

    def _earlier(self, batch_id: int, replay: int) -> tuple[BatchWork, ...]:
        try:
            run = self._loop.ask(EarlierBatches(batch_id, replay))
        except RefusedError as error:
            raise UsageError(f"batch.windows() works only while the batch's job runs: {error}") from None
        return tuple(self._works(run))[:-1]

    def _works(self, run: BatchRun) -> Iterator[BatchWork]:
        options = self._options
        return run.work(
            options.epoch, options.headers, options.concurrent_jobs, options.window_batches, options.copies()
        )

    def _same(self, work: BatchWork) -> BatchWork:
        """The batch of ``work`` as the journal has it now: a loss may have been accepted, or a replay begun, since."""
        return self._work(self._loop.ask(self._read_same(work.batch_id, work.replay)))

    def _work(self, run: BatchRun) -> BatchWork:
        *past, work = self._works(run)
        since_ms = 0 if work.replay else self._due_since.get(work.batch_id, 0)
        earlier = partial(self._earlier, work.batch_id, work.replay)
        return replace(work, past=tuple(past), since_ms=since_ms, window_ms=self._options.window_ms, earlier=earlier)
