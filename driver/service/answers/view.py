"""The driver's answers for operators: status, readiness and health."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec

from driver.background.reach import soon
from driver.decision_loop.loop import RESERVE_REACHED, WAITING_FOR_SPACE
from driver.decisions.problems import in_answer
from driver.http.health import HealthVerdict, journal_is_away
from driver.http.status import PartsStatus, status
from driver.journal.state import State
from driver.service.activity import Activity
from driver.service.composition import Parts
from driver.service.futures import outcome
from driver.service.options import Given
from driver.service.stores import Stores
from driver.tracker.requests import Read
from forebay.messages import Problem, StatusAnswer

#: maximum time that the status waits for the decision loop while the journal's store is out of reach
JOURNAL_PATIENCE_SECONDS = 2.0
#: maximum age of the problems in a snapshot for observers
VERDICT_SECONDS = 1.0
#: completed batches in the status
RECENT_MAX = 5


@dataclass(frozen=True, slots=True)
class ReadStatus(Read[StatusAnswer]):
    """Reads the status."""

    view: LeaderView

    def read(self, state: State) -> StatusAnswer:
        return self.view.status()


@dataclass(frozen=True, slots=True)
class ReadHealth(Read[HealthVerdict]):
    """Reads the problems of the stream."""

    view: LeaderView

    def read(self, state: State) -> HealthVerdict:
        return self.view.verdict()


class View:
    """State and readiness of a driver, leading or not. ``parts``: None until it leads."""

    def __init__(self, activity: Activity, parts: Callable[[], Parts | None]) -> None:
        self._activity = activity
        self._parts = parts

    def shown(self) -> tuple[str, str]:
        """Return state and detail. A running driver with a failed batch is shown as "failed"."""
        parts, activity = self._parts(), self._activity
        failed = parts.scheduler.failed if parts is not None and activity.state == "running" else ""
        return ("failed", failed) if failed else (activity.state, activity.detail)

    def not_ready(self) -> str | None:
        """Return why the driver is not ready; None if it is."""
        parts = self._parts()
        if parts is not None and parts.loop.waiting_for_space:
            return WAITING_FOR_SPACE
        if parts is not None and parts.loop.reserve_reached:
            return RESERVE_REACHED
        state, detail = self.shown()
        return None if state == "running" and not detail else f"{state}: {detail}"


class LeaderView:
    """Status and health of a driver that leads. ``started_at``: when the process started, on the monotonic clock."""

    def __init__(self, given: Given, *, parts: Parts, stores: Stores, view: View, started_at: float) -> None:
        self._given = given
        self._parts = parts
        self._stores = stores
        self._view = view
        self._started_at = started_at
        self._seen = (-VERDICT_SECONDS, HealthVerdict())

    def answer(self) -> Future[StatusAnswer]:
        """Return the status. While the journal's store does not answer, the status says so and shows no state."""
        parts = self._parts
        outage = next((outage for outage in parts.reach.outages() if outage.name == "journal"), None)
        if parts.loop.waiting_for_space:  # the decision loop answers no request
            return outcome(lambda: self._without_state(""))
        answer = parts.loop.submit(ReadStatus(self))
        if outage is None:
            return answer
        return soon(answer, JOURNAL_PATIENCE_SECONDS, lambda: self._without_state(outage.cause))

    def verdict(self) -> HealthVerdict:
        """Return the problems of the stream. Called in the decision loop."""
        state, detail = self.shown()
        now = self._given.clock.monotonic()
        verdict = self._parts.health.look(now, state, detail)
        self._seen = (now, verdict)
        return verdict

    def recent_verdict(self) -> HealthVerdict:
        """Return the problems as they were at most ``VERDICT_SECONDS`` ago: the placing thread asks for them all the time, and
        with many partitions it takes some milliseconds. Called in the decision loop."""
        seen_at, verdict = self._seen
        return verdict if self._given.clock.monotonic() - seen_at < VERDICT_SECONDS else self.verdict()

    def status(self) -> StatusAnswer:
        """Return the status. Called in the decision loop."""
        parts, clock = self._parts, self._given.clock
        state, detail = self.shown()
        service = PartsStatus(
            state=state,
            detail=detail,
            tiers=parts.scheduler.tiers,
            requests=self._requests(),
            foreign=parts.commits.foreign,
            running=dict(parts.scheduler.running),
            recent=parts.scheduler.batches.last(RECENT_MAX),
            listeners=self._given.listeners.status,
        )
        verdict = self.verdict()
        answer = status(
            parts.tracker,
            service,
            release=self._given.options.release,
            now=clock.monotonic(),
            now_ms=clock.wall_ms(),
            receiver_timeout=self._given.settings.driver.receiver_timeout,
            ends=parts.ends,
        )
        problems = (*verdict.problems, *in_answer(answer))
        return msgspec.structs.replace(answer, problems=problems, pending=verdict.pending)

    def away(self) -> Problem:
        """Return the problem that keeps the decision loop from answering. May be called in any thread."""
        loop, outages = self._parts.loop, self._parts.reach.outages()
        outage = next((outage.cause for outage in outages if outage.name == "journal"), "")
        if outage or loop.waiting_for_space:
            return self._without_state(outage).problems[0]
        return Problem(kind="driver", cause="the decision loop does not answer; the log of the driver says more")

    def shown(self) -> tuple[str, str]:
        """Return state and detail of the driver. May be called in any thread."""
        state, detail = self._view.shown()
        return state, detail or (RESERVE_REACHED if self._parts.loop.reserve_reached else "")

    def _without_state(self, outage: str) -> StatusAnswer:
        epoch = self._parts.tracker.driver_epoch
        return journal_is_away(self._given.settings.stream, self._given.options.release, epoch, outage)

    def _requests(self) -> dict[str, int]:
        """Return the requests to remote stores, and in how many seconds they were sent; {} if the stores are local."""
        found = self._stores.requests
        seconds = self._given.clock.monotonic() - self._started_at
        return {**found, "seconds": max(1, round(seconds))} if found else {}
