"""The driver's HTTP routes, as one table.

A route passes its message to the decision loop and answers when the decision is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar, overload

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody

from driver.http.lag import ReadLag
from driver.http.observation.observer import Observer
from driver.http.observation.routes import observer_routes
from driver.tracker.requests import ReceiverRequest
from driver.web.documentation import documentation_routes
from driver.web.pages import page_routes
from forebay import messages as m
from forebay.http.address import check_service_url
from forebay.http.application import Direct, application, caller, needs
from forebay.model.errors import UnreachableError, UsageError
from forebay.model.identifiers import RESERVED_PREFIX, is_reserved
from forebay.security.access import OPEN, Guard
from forebay.security.roles import Role

RECEIVER, AGENT, OPERATOR = needs("receiver"), needs("agent"), needs("operator")
WATCHER, QUERY = needs("reader", "operator"), needs("query", "operator")

QueryRequest = (
    m.OpenCursorRequest
    | m.MoveCursorRequest
    | m.CloseCursorRequest
    | m.EarliestRequest
    | m.TimesRequest
    | m.BlocksRequest
    | m.SpanRequest
)
OperatorRequest = (
    m.DropCursorRequest
    | m.AcceptGapRequest
    | m.AcceptLossRequest
    | m.ReplayRequest
    | m.FenceRequest
    | m.ResetRequest
    | m.ForgetRequest
    | m.PauseRequest
    | m.SkipBatchRequest
    | m.RestartReceiverRequest
    | m.RetryRequest
    | m.StopRequest
)
PostedRequest = ReceiverRequest | m.AgentHeartbeatRequest | QueryRequest | OperatorRequest
Submitted = PostedRequest | m.IntakeRequest | ReadLag

AnswerType = TypeVar("AnswerType")
MessageType = TypeVar("MessageType", bound=m.Message)


class Submit(Protocol):
    """Queues a request; the future ends with its answer or its refusal."""

    @overload
    def __call__(self, request: m.IntakeRequest, /) -> Future[m.IntakeAnswer]: ...

    @overload
    def __call__(self, request: ReadLag, /) -> Future[m.LagAnswer]: ...

    @overload
    def __call__(self, request: PostedRequest, /) -> Future[m.Message]: ...


@dataclass(frozen=True, slots=True)
class Route(Generic[MessageType]):
    """A route: a POST of ``message``, answered with ``answer``. ``summary``: its text in the OpenAPI document."""

    name: str
    path: str
    message: type[MessageType]
    answer: type[m.Message]
    summary: str


@dataclass(frozen=True, slots=True)
class RouteGroup(Generic[MessageType]):
    """Routes for callers of one kind. ``tag``: their tag in the OpenAPI document. ``roles``: as in
    :func:`forebay.http.application.needs`."""

    tag: str
    roles: dict[str, frozenset[Role]]
    routes: tuple[Route[MessageType], ...]


RECEIVER_ROUTES: RouteGroup[ReceiverRequest] = RouteGroup(
    "receivers",
    RECEIVER,
    (
        Route(
            "register",
            "/v1/receivers/register",
            m.RegisterRequest,
            m.RegisterAnswer,
            "Register a receiver, which gets an epoch",
        ),
        Route(
            "heartbeat",
            "/v1/receivers/heartbeat",
            m.HeartbeatRequest,
            m.HeartbeatAnswer,
            "A receiver's state; commands for it",
        ),
        Route("look", "/v1/partitions/look", m.LookupRequest, m.LookupAnswer, "Newest token, incarnation and position"),
        Route("claim", "/v1/partitions/claim", m.ClaimRequest, m.ClaimAnswer, "Claim partitions by compare-and-set"),
        Route("release_claims", "/v1/partitions/release", m.ReleaseRequest, m.Done, "End claims"),
        Route(
            "trouble",
            "/v1/partitions/trouble",
            m.Fault,
            m.FaultAnswer,
            "Report that Kafka does not continue at the position",
        ),
        Route("report", "/v1/blocks/report", m.ReportRequest, m.ReportAnswer, "Report stored blocks"),
    ),
)
AGENT_ROUTES: RouteGroup[m.AgentHeartbeatRequest] = RouteGroup(
    "agents",
    AGENT,
    (
        Route(
            "agent_heartbeat",
            "/v1/agents/heartbeat",
            m.AgentHeartbeatRequest,
            m.AgentHeartbeatAnswer,
            "An agent's state; commands for it",
        ),
    ),
)
QUERY_ROUTES: RouteGroup[QueryRequest] = RouteGroup(
    "queries",
    QUERY,
    (
        Route(
            "open_cursor",
            "/v1/cursors/open",
            m.OpenCursorRequest,
            m.OpenCursorAnswer,
            "Open a cursor, which gets an epoch",
        ),
        Route(
            "move_cursor",
            "/v1/cursors/move",
            m.MoveCursorRequest,
            m.Done,
            "Move a cursor to what its query has finished",
        ),
        Route(
            "close_cursor", "/v1/cursors/close", m.CloseCursorRequest, m.Done, "Close a cursor at the end of its query"
        ),
        Route(
            "earliest",
            "/v1/cursors/earliest",
            m.EarliestRequest,
            m.EarliestAnswer,
            "Offsets from which the WAL has all records",
        ),
        Route("times", "/v1/cursors/times", m.TimesRequest, m.TimesAnswer, "Blocks with records of given times"),
        Route("blocks", "/v1/cursors/blocks", m.BlocksRequest, m.BlocksAnswer, "Blocks with records of given offsets"),
        Route(
            "span", "/v1/cursors/span", m.SpanRequest, m.SpanAnswer, "Blocks with offsets that Kafka no longer holds"
        ),
    ),
)
OPERATOR_ROUTES: RouteGroup[OperatorRequest] = RouteGroup(
    "people",
    OPERATOR,
    (
        Route(
            "drop_cursor",
            "/v1/operator/drop-cursor",
            m.DropCursorRequest,
            m.OperatorAnswer,
            "End a cursor, for which the WAL then holds nothing",
        ),
        Route(
            "accept_gap",
            "/v1/operator/accept-gap",
            m.AcceptGapRequest,
            m.OperatorAnswer,
            "Accept a gap or a new incarnation",
        ),
        Route(
            "accept_loss",
            "/v1/operator/accept-loss",
            m.AcceptLossRequest,
            m.OperatorAnswer,
            "Run a batch without unreadable ranges",
        ),
        Route("replay", "/v1/operator/replay", m.ReplayRequest, m.OperatorAnswer, "Run completed batches again"),
        Route(
            "fence",
            "/v1/operator/fence",
            m.FenceRequest,
            m.OperatorAnswer,
            "End the epoch of a receiver that was removed",
        ),
        Route(
            "reset",
            "/v1/operator/reset",
            m.ResetRequest,
            m.ResetAnswer,
            "Begin new incarnations at other offsets, or plan it",
        ),
        Route(
            "forget",
            "/v1/operator/forget",
            m.ForgetRequest,
            m.OperatorAnswer,
            "Expect no heartbeats of a receiver or host",
        ),
        Route(
            "pause",
            "/v1/operator/pause",
            m.PauseRequest,
            m.OperatorAnswer,
            "Begin no more batches, or begin them again",
        ),
        Route(
            "skip",
            "/v1/operator/skip",
            m.SkipBatchRequest,
            m.OperatorAnswer,
            "End a failed batch without its job, as a loss",
        ),
        Route(
            "restart_receiver",
            "/v1/operator/restart-receiver",
            m.RestartReceiverRequest,
            m.OperatorAnswer,
            "Drain a receiver and have it started again",
        ),
        Route("retry", "/v1/operator/retry", m.RetryRequest, m.OperatorAnswer, "Try failed batches again immediately"),
        Route(
            "stop", "/v1/operator/stop", m.StopRequest, m.OperatorAnswer, "Stop the driver, after a drain if requested"
        ),
    ),
)
#: requests that receivers send all the time; they take a short way past the framework (``forebay.http.application.Direct``)
HOT = (m.ReportRequest, m.HeartbeatRequest)


class _Answers:
    """Passes answers from the decision loop to the event loop. The answers of one group of requests arrive together, so they
    wake the event loop only once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived: list[Callable[[], None]] = []

    async def of(self, future: Future[AnswerType]) -> AnswerType:
        """Wait for ``future``; return its result or raise its error."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[AnswerType] = loop.create_future()
        future.add_done_callback(lambda done: self._arrive(loop, partial(_pass_on, done, waiting)))
        return await waiting

    def _arrive(self, loop: asyncio.AbstractEventLoop, pass_on: Callable[[], None]) -> None:
        with self._lock:
            self._arrived.append(pass_on)
            first = len(self._arrived) == 1
        if first:
            with contextlib.suppress(RuntimeError):  # the server has closed its event loop: no caller waits
                loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
        for pass_on in arrived:
            pass_on()


def _pass_on(done: Future[AnswerType], waiting: asyncio.Future[AnswerType]) -> None:
    if waiting.done():  # the caller has disconnected
        return
    error = done.exception()
    if error is None:
        waiting.set_result(done.result())
    else:
        waiting.set_exception(error)


def tracker_application(
    submit: Submit,
    *,
    status: Callable[[], Future[m.StatusAnswer]],
    ready: Callable[[], str | None],
    release: str,
    guard: Guard = OPEN,
    observer: Observer | None = None,
    more: Sequence[HTTPRouteHandler] = (),
) -> Direct:
    """Return the application that serves all routes. ``more``: routes that need neither the decision loop nor the status.

    ``submit`` queues a request for the decision loop. ``status`` returns a future StatusAnswer. ``ready`` returns why the driver
    is not ready, or None. ``observer`` answers people and their tools; None: without these
    routes.
    """

    answers = _Answers()

    async def decided(request: PostedRequest) -> m.Message:
        return await answers.of(submit(request))

    async def of_receiver(request: ReceiverRequest) -> m.Message:
        receiver_id = request.receiver_id
        if is_reserved(receiver_id):
            raise UsageError(
                f"receiver id {receiver_id!r}: ids that begin with {RESERVED_PREFIX!r} are the driver's own; choose another one"
            )
        caller.get().require("receiver", receiver_id)
        if isinstance(request, m.HeartbeatRequest):
            check_service_url("a receiver's metrics_url", request.metrics_url, guard.https)
        return await decided(request)

    async def of_agent(request: m.AgentHeartbeatRequest) -> m.Message:
        caller.get().require("agent", request.host)
        check_service_url("an agent's url", request.url, guard.https)
        return await decided(request)

    @get(
        "/v1/cursors/intake", summary="Partitions that are taken in, and how to read them", tags=["queries"], opt=QUERY
    )
    async def intake() -> m.IntakeAnswer:
        return await answers.of(submit(m.IntakeRequest()))

    @get("/v1/status", summary="Partitions, receivers, agents, batches", tags=["people"], opt=WATCHER)
    async def get_status() -> m.StatusAnswer:
        return await answers.of(status())

    @get("/v1/lag", summary="How far each partition is, by the journal", tags=["people"], opt=WATCHER)
    async def get_lag() -> m.LagAnswer:
        return await answers.of(submit(ReadLag()))

    @get("/v1/health", summary="200 if ready, else 503 with the reason", tags=["people"], opt=needs())
    async def health() -> m.Done:
        why = ready()
        if why is not None:
            raise UnreachableError(why if caller.get().known else "not ready")
        return m.Done()

    posts = [
        *_handlers(RECEIVER_ROUTES, of_receiver),
        *_handlers(AGENT_ROUTES, of_agent),
        *_handlers(QUERY_ROUTES, decided),
        *_handlers(OPERATOR_ROUTES, decided),
    ]
    routes = [*posts, intake, get_status, get_lag, health, *page_routes(), *documentation_routes(), *more]
    if observer is not None:
        routes += observer_routes(observer, guard)
    app = application("Forebay driver", release, routes, guard)
    hot = {route.path: route.message for route in RECEIVER_ROUTES.routes if route.message in HOT}
    return Direct(app, hot, handle=of_receiver, guard=guard, roles=RECEIVER["roles"])


def _handlers(
    group: RouteGroup[MessageType], decided: Callable[[MessageType], Awaitable[m.Message]]
) -> list[HTTPRouteHandler]:
    """Return the framework's handlers of a group; each answers with what ``decided`` returns for its message."""
    return [_handler(route, group, decided) for route in group.routes]


def _handler(
    route: Route[MessageType], group: RouteGroup[MessageType], decided: Callable[[MessageType], Awaitable[m.Message]]
) -> HTTPRouteHandler:
    async def handle(data: MessageType) -> m.Message:
        return await decided(data)

    # the framework reads the types of body and answer from the annotations, and the operation's id from the name
    handle.__name__ = handle.__qualname__ = route.name
    body = JSONBody[route.message]  # type: ignore[name-defined]  # of a message that is known only here
    handle.__annotations__ = {"data": body, "return": route.answer}
    described = post(route.path, status_code=200, summary=route.summary, tags=[group.tag], opt=group.roles)
    return described(handle)
