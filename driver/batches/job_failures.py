"""Batches whose job fails: logging, journalling, and the time of the next attempt.

The first ``job_max_failures`` attempts follow each other after ``job_retry_delay``. Then the batch is *failed*: it is intact, no
other batch begins, and the driver keeps running and tries again after growing delays, or when an operator requests it.

A job may also end the driver's process. So if a driver finds an uncompleted batch, it journals its first attempt at this batch
before it begins, as one that failed with ``PROCESS_ENDED``. Any other end of the attempt replaces this event.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from msgspec.structs import replace

from driver.batches.entries import RunningBatch
from driver.batches.job.errors import JobProblem, describe
from driver.batches.job.work import BatchWork
from driver.decisions.problems import RETRY_COMMAND
from driver.journal.events import JobFailed
from forebay.model.units import utc_text
from forebay.process.clock import Clock
from forebay.process.logs import fields
from forebay.process.restarts import RestartPolicy

log = logging.getLogger(__name__)

#: delays between attempts at a failed batch
RETRIES = RestartPolicy(first_delay_seconds=10.0, factor=2.0, max_delay_seconds=600.0)
#: the error of an attempt with unknown end; a job's own error begins with the name of its class
PROCESS_ENDED = "the driver's process ended during this attempt"


class FailingJobs:
    """The failed attempts at uncompleted batches. Thread-safe.

    ``known``: the last failure of each uncompleted batch in the journal. ``max_failures``: as ``driver.job_max_failures``.
    ``retries``: delays between attempts at a failed batch.
    """

    def __init__(
        self, clock: Clock, *, max_failures: int, known: Mapping[int, JobFailed], retries: RestartPolicy = RETRIES
    ) -> None:
        self._clock = clock
        self._retries = retries
        self._lock = threading.Lock()
        self._last = dict(known)
        self._logged: dict[int, tuple[str, str]] = {}  # batch id → error and place of its last log line
        self._failed = {failure.batch_id for failure in known.values() if failure.attempts >= max_failures}
        #: batch id → attempts after which it is failed: by this driver, and those that ended an earlier driver's process
        self._rounds = {
            failure.batch_id: failure.attempts - max_failures
            for failure in known.values()
            if failure.batch_id in self._failed and failure.error == PROCESS_ENDED
        }

    def note(self, work: BatchWork, error: BaseException) -> JobFailed:
        """Record that an attempt at ``work`` failed with ``error``. Log it with its traceback unless the last attempt had the
        same."""
        problem = describe(error)
        with self._lock:
            failure = self._last[work.batch_id] = self._failure(work, problem.error, problem.place)
            logged = self._logged.get(work.batch_id) == (problem.error, problem.place)
            self._logged[work.batch_id] = (problem.error, problem.place)
        if not logged:
            self._log(work, failure, problem)
        return failure

    def begun(self, work: BatchWork) -> JobFailed:
        """Return the event to journal before an attempt at ``work``, in case the attempt ends the process."""
        with self._lock:
            return self._failure(work, PROCESS_ENDED, "")

    def unreadable(self, work: BatchWork) -> JobFailed:
        """Return the event that replaces the event of :meth:`begun` if the job could not read ``work``. It contains the last
        failure before this attempt."""
        with self._lock:
            before = self._last.get(work.batch_id)
            return before if before is not None else replace(self._failure(work, "", ""), attempts=0, repeats=0)

    def _failure(self, work: BatchWork, error: str, place: str) -> JobFailed:
        before, now_ms = self._last.get(work.batch_id), self._clock.wall_ms()
        again = before is not None and (before.error, before.place) == (error, place)
        return JobFailed(
            batch_id=work.batch_id,
            output=work.output,
            error=error,
            place=place,
            attempts=before.attempts + 1 if before is not None else 1,
            repeats=before.repeats + 1 if before is not None and again else 1,
            since_ms=before.since_ms if before is not None else now_ms,
            time_ms=now_ms,
            replay=work.replay,
        )

    def log_ended(self) -> None:
        """Log each batch whose last attempt ended the earlier driver's process."""
        for failure in self._last.values():
            if failure.error == PROCESS_ENDED:
                log.error(
                    "batch %d, output %s: %s; check the exit code that the supervisor recorded, and the end of the earlier log",
                    failure.batch_id,
                    failure.output,
                    shown(failure),
                )

    def delayed(self, batch_id: int) -> JobFailed | None:
        """If too many attempts at a batch ended a driver's process, return the last failure: this driver's first attempt must
        wait. Otherwise return None."""
        return self._last[batch_id] if batch_id in self._rounds else None

    def _log(self, work: BatchWork, failure: JobFailed, problem: JobProblem) -> None:
        log.error(
            "job failed: batch %d (number %d), output %s, attempt %d: %s\n%s",
            work.batch_id,
            work.number,
            work.output,
            failure.attempts,
            problem.text,
            problem.trace,
            extra=fields(
                stream=work.stream,
                batch=work.batch_id,
                number=work.number,
                output=work.output,
                attempt=failure.attempts,
                error=problem.error,
                place=problem.place or None,
            ),
        )

    def fail(self, work: BatchWork, failure: JobFailed) -> tuple[float, str]:
        """Mark the batch as failed. Return the seconds until the next attempt, and what status shows meanwhile."""
        with self._lock:
            rounds = self._rounds[work.batch_id] = self._rounds.get(work.batch_id, 0) + 1
            first = work.batch_id not in self._failed or rounds == 1
            self._failed.add(work.batch_id)
        delay = self._retries.delay_seconds(rounds)
        message = f"{shown(failure)}; next attempt at {utc_text(self._clock.wall_ms() + round(delay * 1000))}"
        if first:
            log.error(
                "batch %d failed after %d attempts. It is intact; no other batch begins until it succeeds. The driver retries "
                "it after growing delays of up to %g s, or when you run `%s`. Repeats of this error are counted, not logged",
                work.batch_id,
                failure.attempts,
                self._retries.max_delay_seconds,
                RETRY_COMMAND,
                extra=fields(stream=work.stream, batch=work.batch_id, number=work.number, attempts=failure.attempts),
            )
        return delay, message

    def forget(self, batch_id: int, succeeded: bool = True) -> None:
        """Forget the failures of a batch: the job succeeded for the output that had failed, or the batch was skipped."""
        with self._lock:
            failure = self._last.pop(batch_id, None)
            self._failed.discard(batch_id)
            self._rounds.pop(batch_id, None)
            self._logged.pop(batch_id, None)
        if failure is not None and succeeded:
            log.info(
                "batch %d: the job succeeded after %d failed attempts",
                batch_id,
                failure.attempts,
                extra=fields(batch=batch_id, failed_attempts=failure.attempts),
            )

    def of(self, batch_id: int) -> JobFailed | None:
        """Return the last failure of an uncompleted batch; None if no attempt at it failed."""
        return self._last.get(batch_id)

    def shown(self) -> dict[int, RunningBatch]:
        """Return batch id → the batch as status shows it."""
        with self._lock:
            return {
                batch_id: RunningBatch(
                    state="failed" if batch_id in self._failed else "failing",
                    attempts=failure.attempts,
                    detail=shown(failure),
                    place=failure.place,
                    rerun=True,
                    replay=failure.replay,
                )
                for batch_id, failure in self._last.items()
            }

    @property
    def text(self) -> str:
        """A description of the failed batch and its error; "" if no batch is failed."""
        with self._lock:
            failed = [self._last[batch_id] for batch_id in sorted(self._failed)]
        return f"batch {failed[0].batch_id}: {shown(failed[0])}" if failed else ""


def shown(failure: JobFailed) -> str:
    """Return the failure as status shows it, one line."""
    place = f" at {failure.place}" if failure.place else ""
    error = (
        f"the driver's process ended during attempt {failure.attempts}"
        if failure.error == PROCESS_ENDED
        else failure.error
    )
    times = f"{failure.attempts} attempts failed" if failure.attempts > 1 else "1 attempt failed"
    same = f", the last {failure.repeats} with this error" if 1 < failure.repeats < failure.attempts else ""
    return f"{error}{place} ({times} since {utc_text(failure.since_ms)}{same})"
