"""Passes each request that arrives over HTTP to the decision loop, or to the part that answers it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, overload

from msgspec import structs

from driver.background.resetting import Resetting
from driver.decision_loop.rewinding import begin_replay
from driver.decisions.intake import intake, span
from driver.decisions.problems import RESUME_COMMAND
from driver.http.api import PostedRequest, Submitted
from driver.http.health import Health
from driver.http.lag import ReadLag
from driver.journal.state import State
from driver.service.activity import Activity
from driver.service.admission import NO_COPY, Admission
from driver.service.agents import ActiveAgents
from driver.service.composition import Parts
from driver.service.futures import failed, outcome, refused
from driver.service.leadership import Leadership
from driver.service.options import Given
from driver.service.shutdown import Shutdown
from driver.tracker.requests import Read, said_by
from forebay import messages as m
from forebay.model.errors import RefusedError, UnreachableError, UsageError
from forebay.process.clock import Clock
from forebay.process.logs import fields
from forebay.settings.schema import Settings
from forebay.sources.kind import source_kind
from wal.storage import open_storage

log = logging.getLogger(__name__)

#: the options of Kafka's client that queries over the intake get; the others may be secrets
SHOWN_OPTIONS = ("bootstrap.servers", "isolation.level")
#: maximum timeout of a stop over HTTP
STOP_SECONDS_MAX = 86_400.0
#: requests of operators whose reason only the log keeps; the journal keeps those of the others
_OnlyLogged = m.StopRequest | m.RetryRequest | m.ForgetRequest | m.FenceRequest | m.RestartReceiverRequest


def request_label(request: str) -> str:
    """Return the name of a request's type as text: ``restart receiver`` for ``RestartReceiverRequest``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", request.removesuffix("Request")).lower()


@dataclass(frozen=True, slots=True)
class IntakeAccess:
    """How a query reads the intake: where the WAL and the agents are, and Kafka's address. A query has its own credentials."""

    settings: Settings
    agents: ActiveAgents

    def describe(self, partitions: tuple[m.IntakePartition, ...]) -> m.IntakeAnswer:
        """Return the answer that names ``partitions``."""
        settings = self.settings
        options = source_kind(settings).kafka_options()
        return m.IntakeAnswer(
            stream=settings.stream,
            partitions=partitions,
            wal_url=settings.wal.url,
            storage=settings.storage,
            key_file=settings.wal.key_file,
            blocks_directory=settings.agent.blocks,
            agent_urls=self.agents.urls(),
            kafka={key: options[key] for key in SHOWN_OPTIONS if key in options},
            groups=(settings.group, settings.completed_group),
            headers=settings.kafka.headers,
        )


@dataclass(frozen=True, slots=True)
class ReadIntake(Read[m.IntakeAnswer]):
    """Reads all partitions of the intake, for a query."""

    access: IntakeAccess

    def read(self, state: State) -> m.IntakeAnswer:
        return self.access.describe(intake(state))


@dataclass(frozen=True, slots=True)
class ReadSpan(Read[m.SpanAnswer]):
    """Reads the blocks in which a query finds offsets that Kafka no longer holds."""

    request: m.SpanRequest
    access: IntakeAccess

    def read(self, state: State) -> m.SpanAnswer:
        return span(state, self.request, self.access.agents.by_host(), self.access.describe)


@dataclass(frozen=True, slots=True)
class ForgetSilent(Read[m.OperatorAnswer]):
    """Ends the wait for a receiver or host that an operator has removed. Only the health object stores this; nothing is
    journalled."""

    name: str
    health: Health
    clock: Clock

    def read(self, state: State) -> m.OperatorAnswer:
        self.health.forget(self.name, self.clock.monotonic())
        return m.OperatorAnswer(message=f"{self.name} is forgotten: its silence is no problem until its next heartbeat")


_NO_JOINT_REPLAY = (
    "the batches of this stream are for a job over several streams (driver.joins), and a replay runs those of one stream: stop "
    "these streams, and run this one alone with a job of its own for the replay"
)


class Routing:
    """Answers requests. ``parts``: None until the driver leads. ``operator``: runs the long requests of operators, one at a
    time."""

    def __init__(
        self,
        given: Given,
        *,
        activity: Activity,
        admission: Admission,
        leadership: Leadership,
        shutdown: Shutdown,
        parts: Callable[[], Parts | None],
        operator: Executor,
    ) -> None:
        self._given = given
        self._activity = activity
        self._admission = admission
        self._leadership = leadership
        self._shutdown = shutdown
        self._parts = parts
        self._operator = operator

    @overload
    def submit(self, request: m.IntakeRequest, /) -> Future[m.IntakeAnswer]: ...

    @overload
    def submit(self, request: ReadLag, /) -> Future[m.LagAnswer]: ...

    @overload
    def submit(self, request: PostedRequest, /) -> Future[m.Message]: ...

    def submit(self, request: Submitted, /) -> Future[Any]:
        """Return the future answer to ``request``, or its refusal. Does not wait."""
        parts, settings = self._parts(), self._given.settings
        if parts is None:
            return self._leadership.not_leading()
        access = IntakeAccess(settings, parts.agents)
        if isinstance(request, _OnlyLogged):
            values = {**structs.asdict(request), "cause": said_by(request.cause)}
            log.info("an operator asked for: %s", request_label(type(request).__name__), extra=fields(**values))
        match request:
            case ReadLag():
                return parts.loop.submit(request)
            case m.IntakeRequest():
                return parts.loop.submit(ReadIntake(access))
            case m.SpanRequest():
                return parts.loop.submit(ReadSpan(request, access))
            case m.ReplayRequest() if self._given.options.joint is not None:
                return failed(RefusedError(_NO_JOINT_REPLAY, "conflict"))
            case m.ReplayRequest():  # reads the history, while the decision loop goes on
                storage = open_storage(settings.driver.journal, settings.storage)
                window_ms = round(settings.driver.window * 1000)
                return self._operator.submit(
                    begin_replay, parts.loop.ask, storage, settings.stream, request, window_ms=window_ms
                )
            case m.ResetRequest():
                return self._reset(parts, request)
            case m.ForgetRequest():
                return parts.loop.submit(ForgetSilent(request.name, parts.health, self._given.clock))
            case m.RetryRequest():
                return outcome(lambda: self._retry(parts))
            case m.SkipBatchRequest():
                return self._skip(parts, request)
            case m.PauseRequest(paused=True) | m.RestartReceiverRequest() if self._shutdown.is_stopping:
                return failed(RefusedError("the driver is stopping: send the request to the next driver", "conflict"))
            case m.StopRequest():
                return outcome(lambda: self._stop(request))
            case _:
                try:
                    admitted = self._admission.admit(request)
                except UnreachableError as refusal:
                    return failed(refusal)
                return parts.loop.submit(admitted)

    def _reset(self, parts: Parts, request: m.ResetRequest) -> Future[m.ResetAnswer]:
        if not self._admission.copied:
            return refused(NO_COPY)
        resetting = Resetting(
            ask=parts.loop.ask,
            admin=self._given.upstream,
            group=self._given.settings.group,
            stopping=self._activity.stopping,
            wait_seconds=self._given.settings.driver.receiver_timeout,
        )
        return self._operator.submit(resetting.run, request)

    def _skip(self, parts: Parts, request: m.SkipBatchRequest) -> Future[m.OperatorAnswer]:
        if not request.cause.strip():
            return failed(UsageError("a batch is skipped only with a reason, which the audit keeps: give the cause"))
        return parts.scheduler.skip(request.batch_id, said_by(request.cause))

    def _retry(self, parts: Parts) -> m.OperatorAnswer:
        if parts.scheduler.paused:
            raise RefusedError(f"the batches are paused: `{RESUME_COMMAND}` begins the next attempt too", "conflict")
        batches = parts.scheduler.retry()
        if not batches:
            return m.OperatorAnswer(message="no batch is failed or unreadable: nothing to try again")
        ids = ", ".join(map(str, batches))
        return m.OperatorAnswer(message=f"batch {ids} is tried again now; `forebay status` shows how it goes")

    def _is_paused(self) -> bool:
        parts = self._parts()
        return parts is not None and parts.scheduler.paused

    def _stop(self, request: m.StopRequest) -> m.OperatorAnswer:
        if not 0 <= request.timeout_seconds <= STOP_SECONDS_MAX:
            raise UsageError(f"a stop may take 0 to {STOP_SECONDS_MAX:g} seconds, not {request.timeout_seconds:g}")
        if not request.drain:
            self._shutdown.stop()
            return m.OperatorAnswer(message="stopping when the running jobs have finished")
        if self._is_paused():
            message = f"the batches are paused, and a drain completes all batches: run `{RESUME_COMMAND}` first, or stop without"
            raise RefusedError(f"{message} a drain", "conflict")
        seconds = request.timeout_seconds or self._given.settings.driver.stop_timeout
        self._shutdown.stop(drain=True, timeout_seconds=seconds)
        return m.OperatorAnswer(message=f"draining, for {seconds:g} s at most; `forebay status` shows how far it is")
