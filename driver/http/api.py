"""The tracker's HTTP routes. Each hands its message to the deciding thread and answers when that has made it durable."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from urllib.parse import urlsplit

from litestar import get, post
from litestar.params import JSONBody

from driver.http.lag import lag
from driver.tracker.requests import Ask, Request
from forebay import messages as m
from forebay.http.server import Direct, application, caller, needs
from forebay.model.errors import UnreachableError, UsageError
from forebay.model.values import RESERVED_PREFIX, is_reserved
from forebay.security.access import OPEN, Guard

FromReceiver = (
    m.RegisterRequest
    | m.HeartbeatRequest
    | m.LookupRequest
    | m.ClaimRequest
    | m.ReleaseRequest
    | m.Fault
    | m.ReportRequest
)
RECEIVER, AGENT, OPERATOR = needs("receiver"), needs("agent"), needs("operator")
WATCHER, QUERY = needs("reader", "operator"), needs("query", "operator")

Submitted = (
    Request
    | m.ReplayRequest
    | m.ResetRequest
    | m.RetryRequest
    | m.ForgetRequest
    | m.StopRequest
    | m.IntakeRequest
    | m.SpanRequest
)
Submit = Callable[[Submitted], "Future[Any]"]


class _Answers:
    """From the deciding thread to the event loop: a group's answers arrive together, and wake the loop once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived: list[tuple[asyncio.Future[Any], Future[Any]]] = []

    async def of(self, future: Future[Any]) -> Any:
        """What ``future`` ends with: its result, or its error raised."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Any] = loop.create_future()
        future.add_done_callback(lambda done: self._arrive(loop, waiting, done))
        return await waiting

    def _arrive(self, loop: asyncio.AbstractEventLoop, waiting: asyncio.Future[Any], done: Future[Any]) -> None:
        with self._lock:
            self._arrived.append((waiting, done))
            first = len(self._arrived) == 1
        if first:
            with contextlib.suppress(RuntimeError):  # the server has closed its loop: nobody waits any more
                loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
        for waiting, done in arrived:
            if waiting.done():  # whoever asked has gone
                continue
            error = done.exception()
            if error is None:
                waiting.set_result(done.result())
            else:
                waiting.set_exception(error)


def check_agent_url(url: str, https: bool) -> None:
    """Tasks send their token to ``url``, which an agent says of itself. Raises UsageError for what is no address of a service;
    ``https``: for one that is not guarded as the driver is."""
    try:
        parts = urlsplit(url)
        plain = (
            parts.hostname is not None
            and parts.port != 0
            and parts._replace(scheme="", netloc="").geturl() in ("", "/")
        )
    except ValueError:
        plain, parts = False, urlsplit("")
    schemes = ("https",) if https else ("http", "https")
    if url and not (plain and parts.scheme in schemes and parts.username is None):
        raise UsageError(f"an agent's url is {' or '.join(schemes)}://host:port, not {url!r}")


def tracker_application(
    submit: Submit,
    status: Callable[[], Future[Any]],
    ready: Callable[[], str | None],
    release: str,
    guard: Guard = OPEN,
) -> Direct:
    """``submit`` queues a request for the deciding thread; ``status`` asks it for a StatusAnswer; ``ready`` says why the
    driver is not ready, or None."""

    answers = _Answers()

    async def decided(request: Submitted) -> Any:
        return await answers.of(submit(request))

    async def of_receiver(request: FromReceiver) -> Any:
        receiver_id = request.receiver_id
        if is_reserved(receiver_id):
            raise UsageError(
                f"receiver id {receiver_id!r}: ids that begin with {RESERVED_PREFIX!r} are the driver's own; choose another one"
            )
        caller.get().require("receiver", receiver_id)
        return await decided(request)

    @post(
        "/v1/receivers/register",
        status_code=200,
        summary="Register a receiver: its epoch",
        tags=["receivers"],
        opt=RECEIVER,
    )
    async def register(data: JSONBody[m.RegisterRequest]) -> m.RegisterAnswer:
        return await of_receiver(data)  # type: ignore[no-any-return]

    @post(
        "/v1/receivers/heartbeat",
        status_code=200,
        summary="A receiver's state; commands for it",
        tags=["receivers"],
        opt=RECEIVER,
    )
    async def heartbeat(data: JSONBody[m.HeartbeatRequest]) -> m.HeartbeatAnswer:
        return await of_receiver(data)  # type: ignore[no-any-return]

    @post(
        "/v1/partitions/look",
        status_code=200,
        summary="Newest token, life and position",
        tags=["receivers"],
        opt=RECEIVER,
    )
    async def look(data: JSONBody[m.LookupRequest]) -> m.LookupAnswer:
        return await of_receiver(data)  # type: ignore[no-any-return]

    @post(
        "/v1/partitions/claim",
        status_code=200,
        summary="Claim partitions by compare-and-set",
        tags=["receivers"],
        opt=RECEIVER,
    )
    async def claim(data: JSONBody[m.ClaimRequest]) -> m.ClaimAnswer:
        return await of_receiver(data)  # type: ignore[no-any-return]

    @post("/v1/partitions/release", status_code=200, summary="End claims", tags=["receivers"], opt=RECEIVER)
    async def release_claims(data: JSONBody[m.ReleaseRequest]) -> m.Done:
        return await of_receiver(data)  # type: ignore[no-any-return]

    @post(
        "/v1/partitions/trouble",
        status_code=200,
        summary="Kafka does not go on at the position",
        tags=["receivers"],
        opt=RECEIVER,
    )
    async def fault(data: JSONBody[m.Fault]) -> m.FaultAnswer:
        return await of_receiver(data)  # type: ignore[no-any-return]

    @post("/v1/blocks/report", status_code=200, summary="Report stored blocks", tags=["receivers"], opt=RECEIVER)
    async def report(data: JSONBody[m.ReportRequest]) -> m.ReportAnswer:
        return await of_receiver(data)  # type: ignore[no-any-return]

    @post(
        "/v1/agents/heartbeat", status_code=200, summary="An agent's state; commands for it", tags=["agents"], opt=AGENT
    )
    async def agent_heartbeat(data: JSONBody[m.AgentHeartbeatRequest]) -> m.AgentHeartbeatAnswer:
        caller.get().require("agent", data.host)
        check_agent_url(data.url, guard.https)
        return await decided(data)  # type: ignore[no-any-return]

    @get("/v1/cursors/intake", summary="What is taken in, and how to read it", tags=["queries"], opt=QUERY)
    async def intake() -> m.IntakeAnswer:
        return await decided(m.IntakeRequest())  # type: ignore[no-any-return]

    @post("/v1/cursors/open", status_code=200, summary="Read by a cursor: its epoch", tags=["queries"], opt=QUERY)
    async def open_cursor(data: JSONBody[m.OpenCursorRequest]) -> m.OpenCursorAnswer:
        return await decided(data)  # type: ignore[no-any-return]

    @post("/v1/cursors/move", status_code=200, summary="What a query has finished", tags=["queries"], opt=QUERY)
    async def move_cursor(data: JSONBody[m.MoveCursorRequest]) -> m.Done:
        return await decided(data)  # type: ignore[no-any-return]

    @post("/v1/cursors/close", status_code=200, summary="A query ends", tags=["queries"], opt=QUERY)
    async def close_cursor(data: JSONBody[m.CloseCursorRequest]) -> m.Done:
        return await decided(data)  # type: ignore[no-any-return]

    @post("/v1/cursors/earliest", status_code=200, summary="From where on the WAL has all", tags=["queries"], opt=QUERY)
    async def earliest(data: JSONBody[m.EarliestRequest]) -> m.EarliestAnswer:
        return await decided(data)  # type: ignore[no-any-return]

    @post("/v1/cursors/times", status_code=200, summary="Blocks of times", tags=["queries"], opt=QUERY)
    async def times(data: JSONBody[m.TimesRequest]) -> m.TimesAnswer:
        return await decided(data)  # type: ignore[no-any-return]

    @post("/v1/cursors/blocks", status_code=200, summary="Blocks of offsets", tags=["queries"], opt=QUERY)
    async def blocks(data: JSONBody[m.BlocksRequest]) -> m.BlocksAnswer:
        return await decided(data)  # type: ignore[no-any-return]

    @post("/v1/cursors/span", status_code=200, summary="Blocks of what Kafka has lost", tags=["queries"], opt=QUERY)
    async def span(data: JSONBody[m.SpanRequest]) -> m.SpanAnswer:
        return await decided(data)  # type: ignore[no-any-return]

    @post(
        "/v1/operator/drop-cursor", status_code=200, summary="Hold nothing for a cursor", tags=["people"], opt=OPERATOR
    )
    async def drop_cursor(data: JSONBody[m.DropCursorRequest]) -> m.OperatorAnswer:
        return await decided(data)  # type: ignore[no-any-return]

    @post(
        "/v1/operator/accept-gap", status_code=200, summary="Accept a gap or a new life", tags=["people"], opt=OPERATOR
    )
    async def accept_gap(data: JSONBody[m.AcceptGapRequest]) -> m.OperatorAnswer:
        return await decided(data)  # type: ignore[no-any-return]

    @post(
        "/v1/operator/fence",
        status_code=200,
        summary="End the epoch of a receiver that is gone",
        tags=["people"],
        opt=OPERATOR,
    )
    async def fence(data: JSONBody[m.FenceRequest]) -> m.OperatorAnswer:
        return await decided(data)  # type: ignore[no-any-return]

    @post(
        "/v1/operator/accept-loss",
        status_code=200,
        summary="Run a batch without ranges of it",
        tags=["people"],
        opt=OPERATOR,
    )
    async def accept_loss(data: JSONBody[m.AcceptLossRequest]) -> m.OperatorAnswer:
        return await decided(data)  # type: ignore[no-any-return]

    @post("/v1/operator/replay", status_code=200, summary="Run completed batches again", tags=["people"], opt=OPERATOR)
    async def replay(data: JSONBody[m.ReplayRequest]) -> m.OperatorAnswer:
        return await decided(data)  # type: ignore[no-any-return]

    @post(
        "/v1/operator/reset",
        status_code=200,
        summary="Begin new lives elsewhere; a dry run first",
        tags=["people"],
        opt=OPERATOR,
    )
    async def reset(data: JSONBody[m.ResetRequest]) -> m.ResetAnswer:
        return await decided(data)  # type: ignore[no-any-return]

    @post(
        "/v1/operator/forget",
        status_code=200,
        summary="Wait for a receiver or host no more",
        tags=["people"],
        opt=OPERATOR,
    )
    async def forget(data: JSONBody[m.ForgetRequest]) -> m.OperatorAnswer:
        return await decided(data)  # type: ignore[no-any-return]

    @post("/v1/operator/retry", status_code=200, summary="Try failed batches again now", tags=["people"], opt=OPERATOR)
    async def retry(data: JSONBody[m.RetryRequest]) -> m.OperatorAnswer:
        return await decided(data)  # type: ignore[no-any-return]

    @post(
        "/v1/operator/stop",
        status_code=200,
        summary="End the driver, after a drain if asked",
        tags=["people"],
        opt=OPERATOR,
    )
    async def stop(data: JSONBody[m.StopRequest]) -> m.OperatorAnswer:
        return await decided(data)  # type: ignore[no-any-return]

    @get("/v1/status", summary="Partitions, receivers, agents, batches", tags=["people"], opt=WATCHER)
    async def get_status() -> m.StatusAnswer:
        return await answers.of(status())  # type: ignore[no-any-return]

    @get("/v1/lag", summary="How far each partition is; the ends Kafka knows", tags=["people"], opt=WATCHER)
    async def get_lag() -> m.LagAnswer:
        return await answers.of(submit(Ask(lag)))  # type: ignore[no-any-return]

    @get("/v1/health", summary="200 if ready, else 503 with the reason", tags=["people"], opt=needs())
    async def health() -> m.Done:
        why = ready()
        if why is not None:
            raise UnreachableError(why if caller.get().known else "not ready")
        return m.Done()

    app = application(
        "Forebay driver",
        release,
        [
            register,
            heartbeat,
            look,
            claim,
            release_claims,
            fault,
            report,
            agent_heartbeat,
            intake,
            open_cursor,
            move_cursor,
            close_cursor,
            earliest,
            times,
            blocks,
            span,
            drop_cursor,
            accept_gap,
            accept_loss,
            replay,
            fence,
            reset,
            forget,
            retry,
            stop,
            get_status,
            get_lag,
            health,
        ],
        guard,
    )
    # what receivers send all the time; anything unusual about it goes through the framework's own route
    hot = {"/v1/blocks/report": m.ReportRequest, "/v1/receivers/heartbeat": m.HeartbeatRequest}
    return Direct(app, hot, of_receiver, guard, RECEIVER["roles"])
