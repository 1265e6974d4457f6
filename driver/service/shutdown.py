"""The end of a driver: stop, drain, failure, and the summary of what it did."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import TimeoutError as AnswerLate
from dataclasses import dataclass

from driver.decision_loop.stopping import GRACE_SECONDS, Drain, ReadRemaining, Remaining, Summary
from driver.journal.state import State
from driver.service.activity import Activity
from driver.service.composition import Parts
from driver.service.leadership import Leadership
from driver.service.options import Given
from driver.tracker.requests import Read
from forebay.model.errors import FencedError, UnreachableError

log = logging.getLogger(__name__)

#: maximum time that the summary waits for the decision loop
SUMMARY_SECONDS = 5.0
#: time that a supervisor is asked to allow: for a running job if nothing is drained, and then for the end of Spark
LEAVE_SECONDS, CLOSE_SECONDS = 30.0, 15.0


@dataclass(frozen=True, slots=True)
class ReadSummary(Read[Summary]):
    """Reads the summary: what the driver completed, and after a drain what it did not complete."""

    shutdown: Shutdown

    def read(self, state: State) -> Summary:
        return self.shutdown.summary_of(state)


class Shutdown:
    """Stops the driver. Thread-safe.

    ``parts``: returns None until the driver leads. ``overdue``: called with the summary if a job still runs after the drain's
    time limit, although its Spark tasks were cancelled.
    """

    def __init__(
        self, given: Given, *, activity: Activity, leadership: Leadership, parts: Callable[[], Parts | None]
    ) -> None:
        self.overdue: Callable[[str], None] = log.error
        self._given = given
        self._activity = activity
        self._leadership = leadership
        self._parts = parts
        self._drain: Drain | None = None
        self._drain_lock = threading.Lock()
        self._batches_before = self._records_before = 0  # completed when this driver began to lead

    def count_from(self, state: State) -> None:
        """Start counting for the summary: it covers what is completed from now on."""
        self._batches_before, self._records_before = state.batches_completed, state.records_completed

    @property
    def is_draining(self) -> bool:
        """Whether a drain has begun; it may have ended."""
        return self._drain is not None

    @property
    def is_stopping(self) -> bool:
        """Whether the driver drains or ends."""
        return self._activity.stopping.is_set() or self.is_draining

    @property
    def seconds(self) -> float:
        """The maximum duration of the stop in seconds, as reported to a supervisor."""
        driver = self._given.settings.driver
        drains = driver.stop == "drain" or self.is_draining
        return (driver.stop_timeout + GRACE_SECONDS if drains else LEAVE_SECONDS) + CLOSE_SECONDS

    def stop(self, drain: bool = False, timeout_seconds: float | None = None) -> None:
        """Let the running jobs finish, and end. See :meth:`driver.service.driver.Driver.stop`."""
        parts, joint = self._parts(), self._given.options.joint
        if joint is not None:
            if drain and parts is not None and not self._activity.stopping.is_set():
                joint.drain(True)  # before the others look whether this stream still needs them
            joint.stop_others(drain, timeout_seconds)
        if drain and parts is not None:
            with self._drain_lock:
                if self._drain is None and not self._activity.stopping.is_set():
                    self._begin_drain(parts, timeout_seconds)
            return
        self.end()

    def end(self) -> None:
        """Let the running jobs of this driver finish, and end."""
        self._activity.stop()
        parts = self._parts()
        if parts is not None:
            parts.scheduler.stop()

    def fail(self, error: BaseException) -> None:
        """Stop because of ``error``, which the driver's run raises."""
        activity = self._activity
        activity.fail(error)
        self.end()
        if isinstance(activity.failure, FencedError) and not activity.jobs_ended.is_set():
            # a newer driver runs these batches: what Spark still does for them here would write beside it (INV-4)
            self._given.engine.cancel()

    def summary(self) -> Summary:
        """Return what this driver has completed so far, and after a drain what it did not complete. Must not be called in the
        decision loop."""
        parts = self._parts()
        if parts is None:
            return Summary(0, 0)
        try:
            return parts.loop.ask(ReadSummary(self), SUMMARY_SECONDS)
        except (UnreachableError, AnswerLate):  # the decision loop has ended, or waits for space: it changes nothing
            return self.summary_of(parts.tracker.state)

    def summary_of(self, state: State) -> Summary:
        """Return the summary, computed from ``state``."""
        batches = state.batches_completed - self._batches_before
        records = state.records_completed - self._records_before
        drain = self._drain
        if drain is None:
            left = Remaining((), len(state.waiting), len(state.unfinished()) + len(state.replaying))
            return Summary(batches, records, left=left)
        return Summary(batches, records, drain.drained, drain.left)

    def _begin_drain(self, parts: Parts, timeout_seconds: float | None) -> None:
        clock, driver, scheduler = self._given.clock, self._given.settings.driver, parts.scheduler
        joint = self._given.options.joint
        self._activity.drain()
        self._drain = Drain(
            ask=parts.loop.ask,
            look=ReadRemaining(parts.tracker, clock, self._leadership.since, driver.receiver_timeout),
            allocate=lambda: scheduler.allocate(clock.wall_ms()),
            stopped=self._activity.stopping,
            clock=clock,
            timeout_seconds=driver.stop_timeout if timeout_seconds is None else timeout_seconds,
            held_up=lambda: scheduler.held_up,
            others=joint.drain if joint is not None else lambda busy: False,
        )
        scheduler.drain()
        threading.Thread(target=self._drain_and_stop, args=(self._drain,), name="drain", daemon=True).start()

    def _drain_and_stop(self, drain: Drain) -> None:
        try:
            drained = drain.run()
        except BaseException as error:
            self.fail(error)
            return
        cut_off = not drained and not self._activity.stopping.is_set()
        self.end()
        if not cut_off:
            return
        why = drain.hopeless or "its time limit is reached"
        log.warning("the drain ends incomplete: %s; not completed: %s", why, drain.left.text)
        self._given.engine.cancel()
        if not self._activity.jobs_ended.wait(GRACE_SECONDS):
            self.overdue(str(self.summary()))
