"""Runs one batch from its first attempt to its completion: its outputs in order, retries, failures, and what the status
shows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from driver.batches.batch_events import completed, failed, logged, output_completed, started
from driver.batches.batch_log import BatchLog
from driver.batches.entries import RunningBatch, completed_entry, skipped_detail
from driver.batches.job.engine import Engine, NamedJob
from driver.batches.job.keyed_state import commit_states
from driver.batches.job.measure import RunMeasure
from driver.batches.job.work import BatchWork, Written
from driver.batches.job_failures import FailingJobs, shown
from driver.batches.progress import Progress, Skip
from driver.decision_loop.loop import DriverLoop
from driver.decisions.batch_order import RunKey
from driver.journal.events import JobFailed
from driver.journal.statistics import BatchStatistics
from driver.journal.versions import StateCommit
from driver.listeners.events import Happened
from driver.tracker.requests import Complete, CompleteOutput, FailJob, SkipBatch
from forebay.messages import BatchEntry, OperatorAnswer
from forebay.model.errors import (
    EngineLostError,
    FencedError,
    JobError,
    PartnerSkippedError,
    RunAgainError,
    UnreadableBlockError,
)
from forebay.process import failpoints
from forebay.process.clock import Clock
from forebay.process.logs import fields

log = logging.getLogger(__name__)

#: called with a completed batch: the work, its statistics, and when it ended (ms)
Completed = Callable[[BatchWork, BatchStatistics, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRules:
    """When the driver retries a batch, and when it declares the batch failed.

    ``max_failures``, ``retry_delay_seconds``, ``unreadable_retry_seconds``: as ``driver.job_max_failures``,
    ``driver.job_retry_delay`` and ``driver.unreadable_retry``. ``waits_when_failed``: whether this process retries a failed
    batch; if not, the failure ends the jobs. ``is_direct``: whether the batches are a direct stream's.
    """

    max_failures: int
    retry_delay_seconds: float
    unreadable_retry_seconds: float
    waits_when_failed: bool = False
    is_direct: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHooks:
    """Functions that a batch runner calls, from the thread that runs the batch.

    ``completed``: after the completion is durable. ``confirm``: after a job has returned and before that is journalled; if it
    raises, the attempt has failed. ``tell``: with events for listeners; it must not block. ``is_listening``: whether a listener
    wants events now; if not, the start of a batch names no ranges, so the job does not wait for them. ``lost``: after a failed
    attempt;
    returns whether some of what the batch reads no longer exists and was journalled as lost, so that the batch continues without
    it; if it raises, the jobs end. ``check``: before each attempt; if it raises, the attempt has failed.
    """

    check: Callable[[BatchWork], None] = lambda _: None
    completed: Completed | None = None
    confirm: Callable[[BatchWork], None] = lambda _: None
    tell: Callable[[Sequence[Happened]], None] = lambda _: None
    is_listening: Callable[[], bool] = lambda: True
    lost: Callable[[BatchWork], bool] = lambda _: False


class BatchRunner:
    """Runs batches to their completion, each in the thread that calls :meth:`run`.

    ``again``: reads the batch from the journal again. ``reruns``: batches that may have run before; a failed attempt adds its
    batch. ``completions``: the clock whose time the journal stores with a completion. ``batches``: gets the completed batches.
    """

    def __init__(
        self,
        loop: DriverLoop,
        engine: Engine,
        jobs: Sequence[NamedJob],
        *,
        clock: Clock,
        completions: Clock,
        rules: AttemptRules,
        hooks: BatchHooks,
        failing: FailingJobs,
        progress: Progress,
        reruns: set[RunKey],
        batches: BatchLog,
        again: Callable[[BatchWork], BatchWork],
    ) -> None:
        self._loop = loop
        self._engine = engine
        self._jobs = tuple(jobs)
        self._clock = clock
        self._completions = completions
        self._rules = rules
        self._hooks = hooks
        self._failing = failing
        self._progress = progress
        self._reruns = reruns
        self._again = again
        self._batches = batches
        #: for status: batch id → the batch in work; ranges read by tier
        self.running: dict[int, RunningBatch] = failing.shown()
        self.tiers: dict[str, int] = {}

    def run(self, work: BatchWork, left_over: bool = False) -> None:
        """Run the outputs of the batch that are not done yet, in order. Return when the batch is completed, or when the jobs
        are to stop.

        Each output except the last is journalled by itself; the last one completes the batch. ``left_over``: an earlier
        driver may have ended during an attempt at this batch, so this attempt is journalled before it begins. Raises JobError
        if the failure of the batch ends the jobs; FencedError, EngineLostError.

        Returns too, without a completion, if a replay began meanwhile that replaces a keyed state which the batch has read, or if
        the other streams of a joint batch do not go on.
        """
        try:
            self._run(work, left_over)
        except RunAgainError as error:
            log.info("%s", error, extra=fields(stream=work.stream, batch=work.batch_id, number=work.number))
            self._reruns.add((work.replay, work.batch_id))
            self.running.pop(work.batch_id, None)

    def _run(self, work: BatchWork, left_over: bool) -> None:
        run = (work.replay, work.batch_id)
        if left_over and not self._delay(work):
            return
        attempts = 1
        measure = RunMeasure(work, self._clock)
        written: list[Written] = []
        states: tuple[StateCommit, ...] = ()
        last: BatchWork | None = None  # the output that succeeded and is not journalled yet
        while left := [job for job in self._jobs if job.name not in work.outputs]:
            losses_accepted = self._progress.losses_accepted
            self._show(work, "running", attempts, measure)
            if self._engine.await_ready(work) and self._progress.stopping.is_set():
                return  # a newer driver may run this batch already
            measure.begin()
            run_of = replace(work, output=left[0].name, attempt=attempts, decodes=[], opened={})
            if left_over:
                self._loop.ask(FailJob(self._failing.begun(run_of)))
            try:
                failpoints.hit("driver.in-job")
                self._hooks.tell([started(run_of, measure, self._clock.wall_ms(), self._hooks.is_listening())])
                self._hooks.check(run_of)
                tiers = self._engine.run(run_of, left[0].function)
                self._hooks.confirm(run_of)
                states = commit_states(run_of.opened)
            except UnreadableBlockError as error:
                # not a failure of the job: batches stop and intake continues until the bytes are back or an operator decides
                detail = f"{error}; restore the bytes, or run `forebay recover --accept-loss {work.batch_id} RANGE`"
                self.running[work.batch_id] = replace(
                    self.running[work.batch_id], state="unreadable", attempts=attempts, detail=detail, place=""
                )
                self._progress.held_up.add(run)
                if left_over:
                    self._loop.ask(FailJob(self._failing.unreadable(run_of)))
                log.error(
                    "batch %d can't be read; no other batch begins until it can: %s",
                    work.batch_id,
                    detail,
                    extra=fields(stream=work.stream, batch=work.batch_id, number=work.number),
                )
                self._hooks.tell([failed(run_of, self._clock.wall_ms(), detail, final=False, unreadable=True)])
                skip = self._progress.await_attempt(
                    run, self._rules.unreadable_retry_seconds, losses_seen=losses_accepted
                )
                if self._is_over(work, attempts, skip):
                    return
            except PartnerSkippedError as skipped:
                self._skip(work, attempts, Skip(skipped.cause))
                return
            except RunAgainError:
                if left_over:  # the process has not ended in this attempt
                    self._loop.ask(FailJob(self._failing.unreadable(run_of)))
                raise
            except (FencedError, EngineLostError):
                raise  # an output has seen a newer driver (INV-4), or no attempt can succeed in this process
            except (Exception, SystemExit) as error:
                failure = measure.failure = self._failing.note(run_of, error)
                self._show(work, "failing", attempts, measure)
                self._progress.held_up.add(run)
                lost = self._hooks.lost(run_of)
                final = attempts >= self._rules.max_failures and not lost
                self._hooks.tell([failed(run_of, self._clock.wall_ms(), failure.error, final)])
                if not self._rules.is_direct:
                    self._loop.ask(FailJob(failure))
                self._reruns.add(run)
                if final and not self._rules.waits_when_failed:
                    raise self._job_error(work, attempts, failure) from error
                if final:
                    skip = self._await_retry(run, *self._failing.fail(run_of, failure))
                else:
                    skip = self._progress.await_attempt(run, self._rules.retry_delay_seconds)
                if self._is_over(work, attempts, skip):
                    return
                attempts += not lost
            else:
                measure.add(tiers)
                for tier, count in tiers.items():
                    self.tiers[tier] = self.tiers.get(tier, 0) + count
                last = run_of
                if len(left) == 1:
                    break
                written = work.written
                self._loop.ask(CompleteOutput(work.batch_id, left[0].name, self._clock.wall_ms(), work.replay, states))
                self._failing.forget(work.batch_id)
                self._hooks.tell([output_completed(run_of, measure, self._clock.wall_ms())])
                last = None
            left_over = False
            work = replace(self._again(work), written=list(written))
        self._complete(work, attempts, measure, states, last)

    def _delay(self, work: BatchWork) -> bool:
        """Delay the first attempt at a batch, as for a failed batch, if too many earlier attempts ended the driver's process.
        Return False if the batch must not run in this driver."""
        failure = self._failing.delayed(work.batch_id) if self._rules.waits_when_failed else None
        if failure is None:
            return True
        self._progress.held_up.add((work.replay, work.batch_id))
        self._show(work, "failed", failure.attempts)
        skip = self._await_retry((work.replay, work.batch_id), *self._failing.fail(work, failure))
        return not self._is_over(work, failure.attempts, skip)

    def _is_over(self, work: BatchWork, attempts: int, skip: Skip | None) -> bool:
        """Return whether no further attempt follows a failed one: the jobs are to stop, or the batch was skipped here."""
        if skip is not None:
            self._skip(work, attempts, skip)
        return skip is not None or self._progress.stopping.is_set()

    def _await_retry(self, run: RunKey, seconds: float, detail: str) -> Skip | None:
        """Show a failed batch as ``detail`` and wait for its next attempt. Return the request to skip the batch, if any."""
        batch_id = run[1]

        def show() -> None:
            self.running[batch_id] = replace(self.running[batch_id], state="failed", detail=detail)

        return self._progress.await_attempt(run, seconds, failed=True, announce=show)

    def _show(self, work: BatchWork, state: str, attempts: int, measure: RunMeasure | None = None) -> None:
        """Set what status shows: the last error, and the number of all failed attempts, those of earlier drivers included."""
        failure = self._failing.of(work.batch_id)
        if failure is not None:
            attempts = failure.attempts + (state == "running")
        self.running[work.batch_id] = RunningBatch(
            state=state,
            attempts=attempts,
            detail=shown(failure) if failure is not None else "",
            place=failure.place if failure is not None else "",
            bytes=measure.bytes if measure is not None else None,
            scheduling_delay_ms=measure.scheduling_delay_ms if measure is not None else None,
            rerun=work.rerun,
            replay=work.replay,
        )

    def _job_error(self, work: BatchWork, attempts: int, failure: JobFailed) -> JobError:
        again = "stream, with the same checkpoint," if self._rules.is_direct else "driver"
        place = f" at {failure.place}" if failure.place else ""
        return JobError(
            f"the job failed {attempts} times on batch {work.batch_id} (number {work.number}); the batch is "
            f"intact and runs again when the {again} is started again. Last error: {failure.error}{place}"
        )

    def _complete(
        self,
        work: BatchWork,
        attempts: int,
        measure: RunMeasure,
        states: tuple[StateCommit, ...],
        last: BatchWork | None,
    ) -> None:
        failpoints.hit("driver.before-complete")
        ended_ms, completed_ms = self._clock.wall_ms(), self._completions.wall_ms()
        statistics = measure.statistics(ended_ms)
        self._loop.ask(Complete(work.batch_id, completed_ms, attempts, work.replay, statistics, states))
        failpoints.hit("driver.after-complete")
        self._failing.forget(work.batch_id)
        entry = self._finish(work, measure, statistics, completed_ms=completed_ms, attempts=attempts)
        log.info("batch completed", extra=logged(entry, measure, work.stream))
        outputs = [output_completed(last, measure, ended_ms)] if last is not None else []
        self._hooks.tell([*outputs, completed(entry, measure, ended_ms)])
        if self._hooks.completed is not None:
            self._hooks.completed(work, statistics, ended_ms)

    def skip(self, work: BatchWork, skip: Skip) -> None:
        """End a batch before its first attempt in this process, durably, and answer the operator."""
        failure = self._failing.of(work.batch_id)
        self._skip(work, failure.attempts if failure is not None else 0, skip)

    def _skip(self, work: BatchWork, attempts: int, skip: Skip) -> None:
        """End the batch without its job, durably, and answer the operator."""
        completed_ms = self._completions.wall_ms()
        try:
            self._loop.ask(SkipBatch(work.batch_id, completed_ms, attempts, skip.cause, replay=work.replay))
        except BaseException as error:
            skip.answer.set_exception(error)
            raise
        self._failing.forget(work.batch_id, succeeded=False)
        detail = skipped_detail(skip.cause)
        measure = RunMeasure(work, self._clock)
        entry = self._finish(work, measure, None, completed_ms=completed_ms, attempts=attempts, detail=detail)
        of_batch = fields(stream=work.stream, batch=work.batch_id, number=work.number, records=entry.records)
        log.warning("batch %d with %d records is %s", work.batch_id, entry.records, detail, extra=of_batch)
        loss = f"the audit lists its {entry.records} records as a loss"
        message = f"batch {work.batch_id} is skipped: {loss}; the next batch begins"
        skip.answer.set_result(OperatorAnswer(message=message))

    def _finish(
        self,
        work: BatchWork,
        measure: RunMeasure,
        statistics: BatchStatistics | None,
        *,
        completed_ms: int,
        attempts: int,
        detail: str = "",
    ) -> BatchEntry:
        """Move an ended batch from the running to the completed ones, for observers. Return its entry."""
        self._reruns.discard((work.replay, work.batch_id))
        entry = completed_entry(
            statistics,
            batch_id=work.batch_id,
            number=work.number,
            time_ms=work.time_ms,
            completed_ms=completed_ms,
            attempts=attempts,
            blocks=measure.blocks,
            records=measure.records,
            replay=work.replay,
            written=tuple(map(str, work.written)),
            detail=detail,
        )
        self._batches.add(entry)
        self.running.pop(work.batch_id, None)  # observers find it in one of the two
        return entry
