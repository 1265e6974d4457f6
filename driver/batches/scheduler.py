"""The batch timer and the batches in work.

The timer asks for an allocation at every batch interval; intervals that were missed coalesce into one. Each of
``concurrent_jobs`` workers takes the next unfinished batch in order, makes its outputs one after the other, tries again
``job_max_failures`` times; then the batch is failed. It is intact and never skipped: it is tried again after growing delays
(``driver.batches.job_failures``), or the failure ends the jobs. While one fails or can't be read no other begins.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from driver.batches.batch import BatchWork, Engine, NamedJob, Written
from driver.batches.batch_run import BatchRun
from driver.batches.job_failures import FailingJobs, shown
from driver.decision_loop.loop import DriverLoop
from driver.decisions.batch_order import Run, following, window
from driver.journal.events import Event, JobFailed, LossAccepted, ReplayBegun, ReplayedBatch
from driver.journal.state import Batch, State
from driver.listeners.dispatch import BatchFailed, BatchStarted, Happened
from driver.tracker.requests import Allocate, AllocateSpans, Ask, Complete, CompleteOutput, FailJob
from forebay.kafka.consume.planning import sizes
from forebay.messages import TrackedBatch
from forebay.model.errors import EngineLostError, FencedError, JobError, UnreadableBlockError
from forebay.process import failpoints
from forebay.process.clock import Clock

log = logging.getLogger(__name__)

#: hears of a completed batch: the work, when it was due, began (attempts that failed lie before that) and ended (ms), records
Completed = Callable[[BatchWork, int, int, int, int], None]


class Scheduler:
    """``run`` is called in the thread that may run jobs (Spark wants the main one least surprised); it returns after
    :meth:`stop`, or raises what ended the jobs. With more than one of ``concurrent_jobs`` the others have threads of their
    own, which end before it returns. ``empty_batches``: whether an interval without blocks gives a batch too. ``settle`` is
    called when a job has returned, before that is journalled; what it raises fails the attempt. ``told`` hears of
    attempts; it must not block. While no person has decided, a batch that no tier could read is tried again every
    ``unreadable_retry_seconds``. ``allocation``: what makes a batch of a direct stream, given its time; None: blocks do.
    ``waits_when_failed``: whether a failed batch is tried again by this scheduler; else its failure ends the jobs. ``failing``:
    what is known of attempts that failed before.
    ``lost`` is asked when an attempt failed: whether some of what the batch reads is gone for good and that was journalled, so
    that it goes on without; what it raises ends the jobs."""

    def __init__(
        self,
        loop: DriverLoop,
        engine: Engine,
        jobs: Sequence[NamedJob],
        clock: Clock,
        batch_interval_seconds: float,
        tasks: Callable[[], int],
        max_failures: int,
        retry_delay_seconds: float,
        headers: bool,
        epoch: int = 0,
        concurrent_jobs: int = 1,
        window_batches: int = 0,
        empty_batches: bool = False,
        completed: Completed | None = None,
        settle: Callable[[BatchWork], None] = lambda _: None,
        told: Callable[[Sequence[Happened]], None] = lambda _: None,
        copies: Callable[[], Mapping[str, tuple[str, ...]]] = dict,
        unreadable_retry_seconds: float = 30.0,
        allocation: Callable[[int], AllocateSpans | None] | None = None,
        lost: Callable[[BatchWork], bool] = lambda _: False,
        waits_when_failed: bool = False,
        failing: FailingJobs | None = None,
        completions: Clock | None = None,
    ) -> None:
        """``completions``: what gives the journal the time of a batch's completion; None: ``clock``."""
        self._completions = completions or clock
        self._waits_when_failed = waits_when_failed
        self._failing = failing or FailingJobs(clock, max_failures, {})
        self._waiting: set[Run] = set()  # failed batches that wait for their next attempt
        self._retries = 0  # how often an operator asked for one
        self._lost = lost
        self._copies = copies
        self._unreadable_retry = unreadable_retry_seconds
        self._completed = completed
        self._allocation = allocation
        self._settle = settle
        self._told = told
        self._loop = loop
        self._engine = engine
        self._jobs = tuple(jobs)
        self._clock = clock
        self._interval = batch_interval_seconds
        self._tasks = tasks
        self._max_failures = max_failures
        self._retry_delay = retry_delay_seconds
        self._headers = headers
        self._epoch = epoch
        self._concurrent_jobs = concurrent_jobs
        self._window_batches = window_batches
        self._empty_batches = empty_batches
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._changes = 0  # of what there is to run
        self._losses_accepted = 0
        self._error: BaseException | None = None  # the first that ended a worker or the timer
        self._workers: set[int] = set()  # threads
        self._in_work: set[Run] = set()
        self._held_up: set[Run] = set()  # of those: failing, or unreadable
        self._timer = threading.Thread(target=self._tick, name="batch-timer", daemon=True)
        self._reruns: set[Run] = set()
        #: batch id → (state, attempts, detail), and the last completed batches: for status
        self.running: dict[int, tuple[str, int, str]] = self._failing.shown()
        self.recent: deque[TrackedBatch] = deque(maxlen=5)
        self.tiers: dict[str, int] = {}

    def start(self) -> None:
        """Everything unfinished in the journal is a rerun: it may have run before a crash, in whole or in part."""
        self._reruns = {(0, batch.batch_id) for batch in self._loop.ask(Ask(State.unfinished))}
        self._failing.log_ended()
        self._timer.start()

    def stop(self) -> None:
        """Lets the running jobs finish, and allocates and starts no more."""
        self._stopping.set()
        self._wake()

    def note(self, events: Sequence[Event]) -> None:
        """Hears, from the deciding thread, which events have become durable."""
        losses = sum(isinstance(event, LossAccepted) for event in events)
        if losses or any(isinstance(event, ReplayBegun) for event in events):
            self._wake(losses)

    def run(self) -> None:
        others = [
            threading.Thread(target=self._work_on, name=f"batches-{number}", daemon=True)
            for number in range(2, self._concurrent_jobs + 1)
        ]
        for thread in others:
            thread.start()
        self._work_on()
        for thread in others:
            thread.join()
        if self._error is not None:
            raise self._error

    def _work_on(self) -> None:
        self._workers.add(threading.get_ident())
        left_over = True
        try:
            while (work := self._next()) is not None:
                run = (work.replay, work.batch_id)
                left_over = left_over and work.rerun and self._allocation is None
                self._run_batch(work, left_over)
                left_over = False
                self._in_work.discard(run)
                self._held_up.discard(run)
                self._wake()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        self.stop()

    def retry(self) -> tuple[int, ...]:
        """Begins the next attempt at every failed and every unreadable batch now; returns their ids."""
        with self._changed:
            held_up = tuple(sorted(batch_id for _, batch_id in tuple(self._held_up)))
            self._waiting.clear()
            self._retries += 1
            self._changed.notify_all()
        return held_up

    @property
    def failed(self) -> str:
        """Which batch is failed, and with what error; "" if none is."""
        return self._failing.words

    @property
    def waits_for_retry(self) -> bool:
        """Whether nothing goes on before the next attempt at a failed batch begins."""
        with self._changed:
            return bool(self._waiting) and self._in_work <= self._held_up

    def _wake(self, losses_accepted: int = 0) -> None:
        with self._changed:
            self._changes += 1
            self._losses_accepted += losses_accepted
            self._changed.notify_all()

    def in_job(self) -> bool:
        """Whether the calling thread is one of the scheduler's own, which must not wait for its end."""
        return threading.get_ident() in self._workers or threading.current_thread() is self._timer

    def join(self) -> None:
        if self._timer.ident is not None:
            self._timer.join()

    def _tick(self) -> None:
        last = 0.0
        try:
            while not self._stopping.is_set():
                now = self._clock.wall_ms() / 1000.0
                due = (now // self._interval + 1) * self._interval
                if abs(due - last) < self._interval / 2:  # it woke a moment before the wall clock got there
                    due += self._interval
                last = due
                if self._stopping.wait(max(0.0, due - now)):
                    return
                self.allocate(round(due * 1000), self._empty_batches)
        except BaseException as error:
            self._fail(error)

    def drain(self) -> None:
        """From now on no batch is made of nothing. A failed batch gets one more attempt now."""
        self._empty_batches = False
        self.retry()

    def allocate(self, time_ms: int, empty: bool = False) -> None:
        """Makes a batch of what waits, if there is room for one; ``empty``: also of nothing."""
        request = Allocate(time_ms, self._tasks(), empty) if self._allocation is None else self._allocation(time_ms)
        if request is not None and self._loop.ask(request) is not None:
            failpoints.hit("driver.after-allocate")
            self._wake()

    def _next(self) -> BatchWork | None:
        while not self._stopping.is_set():
            seen = self._changes
            taken: BatchRun | None = self._loop.ask(Ask(self._begin))
            if taken is not None:
                return self._work(taken)
            with self._changed:
                # being told to stop may have come before `seen` was looked at
                self._changed.wait_for(lambda seen=seen: self._changes != seen or self._stopping.is_set())  # type: ignore[misc]
        return None

    def _begin(self, state: State) -> BatchRun | None:
        """Takes the next batch into work; called in the deciding thread, so that no two workers get the same one."""
        found = following(state, frozenset(self._in_work)) if not self._held_up else None
        if found is None:
            return None
        batch, replay = found
        self._in_work.add((replay, batch.batch_id))
        return self._take(state, batch, replay)

    def _again(self, state: State, work: BatchWork) -> BatchRun:
        """The batch of ``work`` as the journal holds it now: a loss may have been accepted, a replay begun behind it."""
        if work.replay:
            return self._take(state, state.replaying[work.batch_id], work.replay)
        return self._take(state, state.batches[work.batch_id])

    def _take(self, state: State, batch: Batch | ReplayedBatch, replay: int = 0) -> BatchRun:
        past = window(state, batch, replay > 0)[-self._window_batches :] if self._window_batches else ()
        return BatchRun.of(state, (*past, batch), replay, replay > 0 or (replay, batch.batch_id) in self._reruns)

    def _work(self, taken: BatchRun) -> BatchWork:
        *past, work = taken.work(
            self._epoch, self._headers, self._concurrent_jobs, self._window_batches, self._copies()
        )
        return replace(work, past=tuple(past))

    def _run_batch(self, work: BatchWork, left_over: bool = False) -> None:
        """Makes the outputs of the batch that are not made yet, in order. Each but the last is journalled by itself; the last
        one completes the batch. ``left_over``: a driver before this one may have ended during an attempt at it, so the journal
        holds that the next one began."""
        run = (work.replay, work.batch_id)
        if left_over and not self._delay(work):
            return
        attempts = 1
        worked_ms = 0  # what its outputs took, without attempts that failed
        written: list[Written] = []
        while left := [job for job in self._jobs if job.name not in work.outputs]:
            losses_accepted = self._losses_accepted
            self._show(work, "running", attempts)
            began = self._clock.monotonic()
            run_of = replace(work, output=left[0].name, attempt=attempts, decodes=[])
            if left_over:
                self._loop.ask(FailJob(self._failing.begun(run_of)))
            try:
                failpoints.hit("driver.in-job")
                self._told([_started(run_of, self._clock.wall_ms())])
                tiers = self._engine.run(run_of, left[0].function)
                self._settle(run_of)
            except UnreadableBlockError as error:
                # Not a failure of the job: batches stop, intake goes on, until the bytes are back or a person decides.
                words = f"{error}; bring the bytes back, or `forebay recover --accept-loss {work.batch_id} RANGE`"
                self.running[work.batch_id] = ("unreadable", attempts, words)
                self._held_up.add(run)
                if left_over:
                    self._loop.ask(FailJob(self._failing.unreadable(run_of)))
                log.error("batch %d can't be read, batches wait: %s", work.batch_id, words)
                self._told([_failed(run_of, self._clock.wall_ms(), words, final=False, unreadable=True)])
                self._await_loss(losses_accepted)
                if self._stopping.is_set():
                    return
            except (FencedError, EngineLostError):
                raise  # an output has seen a newer driver (INV-4); or no attempt can succeed in this process
            except (Exception, SystemExit) as error:
                failure = self._failing.note(run_of, error)
                self._show(work, "failing", attempts)
                self._held_up.add(run)
                lost = self._lost(run_of)
                final = attempts >= self._max_failures and not lost
                self._told([_failed(run_of, self._clock.wall_ms(), failure.error, final)])
                if self._allocation is None:
                    self._loop.ask(FailJob(failure))
                self._reruns.add(run)
                if final and not self._waits_when_failed:
                    raise self._job_error(work, attempts, failure) from error
                if final:
                    self._await_retry(run, *self._failing.fail(run_of, failure))
                    if self._stopping.is_set():
                        return
                elif self._stopping.wait(self._retry_delay):
                    return
                attempts += not lost
            else:
                worked_ms += round((self._clock.monotonic() - began) * 1000)
                for tier, count in tiers.items():
                    self.tiers[tier] = self.tiers.get(tier, 0) + count
                if len(left) == 1:
                    break
                written = work.written
                self._loop.ask(CompleteOutput(work.batch_id, left[0].name, self._clock.wall_ms(), work.replay))
                self._failing.forget(work.batch_id)
            left_over = False
            work = replace(self._work(self._loop.ask(Ask(partial(self._again, work=work)))), written=list(written))
        self._complete(work, attempts, worked_ms)

    def _delay(self, work: BatchWork) -> bool:
        """Wait with the first attempt at a batch at which too many attempts ended the driver's process, as with the next one at a
        failed batch. False if the driver is to end."""
        failure = self._failing.delayed(work.batch_id) if self._waits_when_failed else None
        if failure is None:
            return True
        self._held_up.add((work.replay, work.batch_id))
        self._show(work, "failed", failure.attempts)
        self._await_retry((work.replay, work.batch_id), *self._failing.fail(work, failure))
        return not self._stopping.is_set()

    def _show(self, work: BatchWork, state: str, attempts: int) -> None:
        """On status: with the last error, and all attempts that failed, of drivers before this one too."""
        failure = self._failing.of(work.batch_id)
        if failure is not None:
            attempts = failure.attempts + (state == "running")
        self.running[work.batch_id] = (state, attempts, shown(failure) if failure is not None else "")

    def _job_error(self, work: BatchWork, attempts: int, failure: JobFailed) -> JobError:
        again = "driver" if self._allocation is None else "stream, with the same checkpoint,"
        place = f" at {failure.place}" if failure.place else ""
        return JobError(
            f"the job failed {attempts} times on batch {work.batch_id} (number {work.number}); the batch is "
            f"intact and runs again when the {again} is started again. Last error: {failure.error}{place}"
        )

    def _await_retry(self, run: Run, seconds: float, words: str) -> None:
        """Until the next attempt at a failed batch is due, or an operator asks for it."""
        batch_id = run[1]
        with self._changed:
            self.running[batch_id] = ("failed", self.running[batch_id][1], words)
            self._waiting.add(run)
            self._changed.wait_for(lambda: run not in self._waiting or self._stopping.is_set(), seconds)
            self._waiting.discard(run)

    def _await_loss(self, seen: int) -> None:
        """Until a person has accepted a loss, or it is time to try again in case the bytes came back."""
        with self._changed:
            retries = self._retries
            decided = lambda: (  # noqa: E731
                self._losses_accepted != seen or self._retries != retries or self._stopping.is_set()
            )
            self._changed.wait_for(decided, self._unreadable_retry)

    def _complete(self, work: BatchWork, attempts: int, worked_ms: int) -> None:
        failpoints.hit("driver.before-complete")
        ended_ms = self._clock.wall_ms()
        self._loop.ask(Complete(work.batch_id, self._completions.wall_ms(), attempts, work.replay))
        failpoints.hit("driver.after-complete")
        self.running.pop(work.batch_id, None)
        self._failing.forget(work.batch_id)
        self._reruns.discard((work.replay, work.batch_id))
        references = list(chain.from_iterable(work.tasks))
        records = sum(reference.records for reference in references) + sizes(
            work.spans
        )  # accepted losses of blocks count
        self.recent.append(
            TrackedBatch(
                batch_id=work.batch_id,
                number=work.number,
                time_ms=work.time_ms,
                state="completed",
                blocks=len(references),
                records=records,
                attempts=attempts,
                replay=work.replay,
                written=tuple(map(str, work.written)),
            )
        )
        if self._completed is not None:
            self._completed(work, work.time_ms, ended_ms - worked_ms, ended_ms, records)


def _started(work: BatchWork, now_ms: int) -> BatchStarted:
    return BatchStarted(
        time_ms=now_ms,
        batch_id=work.batch_id,
        number=work.number,
        output=work.output,
        attempt=work.attempt,
        records=work.records,
        replay=work.replay,
    )


def _failed(work: BatchWork, now_ms: int, words: str, final: bool, unreadable: bool = False) -> BatchFailed:
    return BatchFailed(
        time_ms=now_ms,
        batch_id=work.batch_id,
        number=work.number,
        output=work.output,
        attempt=work.attempt,
        detail=words,
        final=final,
        unreadable=unreadable,
        replay=work.replay,
    )
