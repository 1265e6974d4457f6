"""HTTP between the parts: one way to serve a Litestar application. JSON by msgspec. The client is ``forebay.http.client``."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import uvicorn
from litestar import Litestar, Request, Response
from litestar.connection import ASGIConnection
from litestar.exceptions import ClientException, HTTPException, ValidationException
from litestar.handlers.base import BaseRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from forebay import messages
from forebay.http.accepting import Accepting, Connection, allow_descriptors
from forebay.http.cross_site import JSON, CrossSite
from forebay.http.sendfile import Protocol, Senders
from forebay.model.errors import (
    AccessError,
    FencedError,
    ForebayError,
    NotTakenError,
    OutOfSpaceError,
    RefusedError,
    SettingsError,
    UnreachableError,
    UsageError,
)
from forebay.security.access import OPEN, Guard
from forebay.security.roles import ANY_ROLE, EVERYBODY, Caller, Role

Answer = TypeVar("Answer")

_STATUS = {
    "bad-request": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not-found": 404,
    "fenced": 409,
    "conflict": 409,
    "not-ready": 503,
    "no-room": 507,
}
#: a body that arrives more slowly is given up, beyond the time that its head may take
BODY_BYTES_PER_SECOND_MIN = 1 << 16
#: bounds of a request's head, for everybody: a longer one is refused before anything else is known of it
URL_BYTES_MAX = 8 << 10
HEADERS_MAX = 100
HEADERS_BYTES_MAX = 32 << 10
#: requests of one connection that wait for the answer to an earlier one
PIPELINED_MAX = 8
#: what a 401 must say of how to do better (RFC 9110, 11.6.1)
_CHALLENGE = "Bearer"
#: turns of the serving loop, of a tenth of a second, between two looks at certificates that nobody has asked for
_CERTIFICATE_TICKS = 600
_ROLES = "roles"
_JSON = JSON.encode()

#: who sent the request that is handled now
caller: ContextVar[Caller] = ContextVar("caller", default=EVERYBODY)


def needs(*roles: Role) -> dict[str, Any]:
    """``opt`` of a route: the roles that may use it; none: everybody, without a token too."""
    return {_ROLES: frozenset(roles)}


def application(title: str, release: str, routes: Sequence[Any], guard: Guard | None = None) -> Litestar:
    """A Litestar application of ``routes`` that answers every error with a ``messages.Refusal`` and serves
    ``/v1/openapi.json``. ``guard``: asks for the roles that each route :func:`needs`; whose routes don't say is refused with
    ValueError. The description is for whoever has any role."""
    guards: list[Any] = []
    if guard is not None:
        if silent := [str(route) for route in routes if _ROLES not in route.opt]:
            raise ValueError(f"these routes don't say which roles they need: {', '.join(silent)}")
        guards.append(_guarding(guard))
    return Litestar(
        route_handlers=list(routes),
        guards=guards,
        openapi_config=OpenAPIConfig(
            title=title, version=release, path="/v1", render_plugins=[JsonRenderPlugin(path="/openapi.json")]
        ),
        exception_handlers={Exception: _refuse},
        request_class=_Request,
        request_max_body_size=(guard or OPEN).limits.request_bytes,
        logging_config=None,
    )


class _Request(Request[Any, Any, Any]):
    """Decodes a body as what its route takes. The framework's own way makes plain values of it first; where these do not fit, it
    leaves a cycle of a frame and an error, which holds body and values until a collection, minutes later on a quiet service."""

    async def json(self) -> Any:
        field = self.route_handler.parsed_data_field
        assert field is not None
        try:
            return msgspec.json.decode(await self.body(), type=field.annotation, strict=False)
        except msgspec.ValidationError as error:
            message, _, place = str(error).partition(" - at `$")
            wrong = {"key": place.strip(".`") or "data", "message": message}
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ClientException(str(error)) from None
        raise ValidationException(f"Validation failed for {self.method} {self.url.path}", extra=[wrong])


def _guarding(guard: Guard) -> Callable[[ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], Awaitable[None]]:
    async def check(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        roles = handler.opt.get(_ROLES, ANY_ROLE)
        caller.set(guard.authorize(connection.headers.get("authorization"), roles))

    return check


def _refuse(_: Request[Any, Any, Any], error: Exception) -> Response[messages.Refusal]:
    if isinstance(error, HTTPException):
        code = "not-found" if error.status_code == 404 else "bad-request"
        return Response(messages.Refusal(code=code, message=_words(error)), status_code=error.status_code)
    refusal, status = _refusal(error)
    headers = {"www-authenticate": _CHALLENGE} if status == 401 else {}
    return Response(refusal, status_code=status, headers=headers)


def _refusal(error: Exception) -> tuple[messages.Refusal, int]:
    """What is answered, and with which status. Raises ``error`` if it is none of the project's."""
    if isinstance(error, FencedError):
        refusal = messages.Refusal(code="fenced", message=str(error))
    elif isinstance(error, (RefusedError, AccessError)):
        refusal = messages.Refusal(code=error.code, message=str(error))
    elif isinstance(error, NotTakenError):
        refusal = messages.Refusal(code="not-ready", message=str(error), leader=error.leader)
    elif isinstance(error, (UsageError, ValueError)):
        refusal = messages.Refusal(code="bad-request", message=str(error))
    elif isinstance(error, OutOfSpaceError):
        refusal = messages.Refusal(code="no-room", message=str(error))
    elif isinstance(error, ForebayError):
        refusal = messages.Refusal(code="not-ready", message=str(error))
    else:
        raise error
    return refusal, _STATUS.get(refusal.code, 409)


def _words(error: HTTPException) -> str:
    """The detail, and which fields were wrong and why."""
    extra = error.extra if isinstance(error.extra, list) else []
    wrong = [f"{e.get('key', 'body')}: {e.get('message')}" for e in extra if isinstance(e, dict)]
    return "; ".join([error.detail, *wrong])


class Direct:
    """``app`` with a short way: a POST to one of ``routes`` (path → type of its body) is decoded, given to ``handle`` and
    answered without the framework's layers, which cost more than all the rest of a small message.

    ``app`` has the same routes, describes them in its OpenAPI document, and gets every request that is not plainly in
    order (another method, no length, too long, no token, a body that does not fit), so that it alone says what is wrong.
    ``roles``: that may use ``routes``.
    """

    def __init__(
        self,
        app: Any,
        routes: Mapping[str, Any],
        handle: Callable[[Any], Awaitable[Any]],
        guard: Guard = OPEN,
        roles: frozenset[Role] = ANY_ROLE,
    ) -> None:
        self._app = app
        self._decoders = {path: msgspec.json.Decoder(body) for path, body in routes.items()}
        self._handle = handle
        self._guard = guard
        self._roles = roles

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        decoder = self._decoders.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"") if decoder else b""
        if decoder is None or not length.isdigit() or int(length) > self._guard.limits.request_bytes:
            await self._app(scope, receive, send)
            return
        sent = next((value for name, value in scope["headers"] if name == b"authorization"), b"").decode("latin-1")
        try:
            caller.set(self._guard.authorize(sent or None, self._roles))
        except AccessError:
            await self._app(scope, receive, send)
            return
        events = [await receive()]
        while events[-1]["type"] == "http.request" and events[-1].get("more_body", False):
            events.append(await receive())
        try:
            data = decoder.decode(b"".join(event.get("body", b"") for event in events))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            unread = iter(events)

            async def again() -> Any:
                event = next(unread, None)
                return event if event is not None else await receive()

            await self._app(scope, again, send)
            return
        try:
            answer, status = await self._handle(data), 200
        except Exception as error:
            answer, status = _refusal(error)
        body = msgspec.json.encode(answer)
        headers = [(b"content-type", _JSON), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class _Gated:
    """``app`` for requests that no web page of another site made a browser send; others are refused before it sees them."""

    def __init__(self, app: Litestar | Direct, cross_site: CrossSite) -> None:
        self._app = app
        self._cross_site = cross_site

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        refused = self._cross_site.check(scope["method"], scope["headers"])
        if refused is None:
            await self._app(scope, receive, send)
        else:
            await _answer(send, refused.status, messages.Refusal(code=refused.code, message=refused.message))


async def _answer(send: Any, status: int, refusal: messages.Refusal) -> None:
    """Sends ``refusal`` and ends the connection."""
    body = msgspec.json.encode(refusal)
    headers = [
        (b"content-type", _JSON),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _TooMuchError(Exception):
    """A request is not read any further: ``status`` and the words of its refusal."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class _Bounded(Protocol):
    """The server's protocol with bounds: bytes and number of headers, time for a request to arrive, authenticated connections.

    A connection counts as authenticated from the head of its first request with a valid token on; where none is asked for,
    from its first head on.
    """

    _overdue: asyncio.TimerHandle | None = None
    #: a request has begun to arrive, and has not arrived
    _arriving = False
    _authenticated = False
    #: bytes of the parts of the request that the parser has not passed on, at most
    _held_bytes = 0
    _headers_bytes = 0
    _too_much: _TooMuchError | None = None

    def __init__(self, *args: Any, guard: Guard, connection: Connection, **options: Any) -> None:
        super().__init__(*args, **options)
        self._guard = guard
        self._limits = guard.limits
        self._connection = connection
        self._served = self.app

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection.end = transport.abort
        self._expect(self._limits.request_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        self._connection.lost()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._held_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._held_bytes > HEADERS_BYTES_MAX:
            self._too_much = _TooMuchError(431, f"a header may have {HEADERS_BYTES_MAX} bytes")
            self.send_400_response("")
            return
        waits = self.timeout_keep_alive_task is None and (self.cycle is None or self.cycle.response_complete)
        if waits and self._overdue is None:
            self._expect(self._limits.request_seconds)  # empty lines, which end the wait for a request and begin none

    def send_400_response(self, msg: str) -> None:
        """The answer to what is no request, or too much of one."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # an earlier request is being answered
            return
        too_much = self._too_much
        refusal = messages.Refusal(code="bad-request", message=str(too_much) if too_much is not None else msg)
        body = msgspec.json.encode(refusal)
        status = STATUS_LINE[too_much.status if too_much is not None else 400]
        self.transport.write(
            b"%scontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (status, len(body), body)
        )
        self.transport.close()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED_MAX:
            self._refuse(400, f"{PIPELINED_MAX} requests of a connection may wait for its answers")
        super().on_message_begin()
        self._held_bytes = self._headers_bytes = 0
        self._arriving = True

    def on_url(self, url: bytes) -> None:
        self._held_bytes = 0
        if len(self.url) + len(url) > URL_BYTES_MAX:
            self._refuse(414, f"a URL may have {URL_BYTES_MAX} bytes")
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of the head, or of the trailer that may follow a body."""
        self._held_bytes = 0
        self._headers_bytes += len(name) + len(value)
        if self._headers_bytes > HEADERS_BYTES_MAX:
            self._refuse(431, f"a request's headers may have {HEADERS_BYTES_MAX} bytes")
        if len(self.headers) >= HEADERS_MAX:
            self._refuse(431, f"a request may have {HEADERS_MAX} headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        said = next((value for name, value in self.headers if name == b"content-length"), b"")
        body_bytes = int(said) if said.isdigit() else self._limits.request_bytes
        self._expect(self._limits.request_seconds + body_bytes / BODY_BYTES_PER_SECOND_MIN)
        self.app = self._served if self._has_room() else _turn_away
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._held_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._arriving = False
        self._arrived()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._arriving and self.cycle.response_complete and not self.transport.is_closing():
            self._expect(
                self._limits.request_seconds
            )  # the rest of a body that nobody reads, however long it says it is

    def _has_room(self) -> bool:
        """False if this request needs a place among the authenticated connections, and there is none."""
        if not self._authenticated:
            sent = next((value for name, value in self.headers if name == b"authorization"), b"").decode("latin-1")
            if self._guard.authorize(sent or None, frozenset()).known:
                self._authenticated = self._connection.authenticate()
                return self._authenticated
        return True

    def _refuse(self, status: int, words: str) -> None:
        """Ends the parsing: the parser reports it, and the connection is answered by ``send_400_response``."""
        self._too_much = _TooMuchError(status, words)
        raise self._too_much

    def _expect(self, seconds: float) -> None:
        self._arrived()
        self._overdue = self.loop.call_later(seconds, self.transport.abort)

    def _arrived(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


async def _turn_away(scope: Any, receive: Any, send: Any) -> None:
    words = "as many authenticated connections as allowed are open (security.connections_max, agent.connections_max)"
    await _answer(send, 503, messages.Refusal(code="not-ready", message=words))


class Server:
    """Serves ``app`` at ``url`` from a thread of its own; ``url`` with port 0 takes a free one.

    Opening returns when requests are answered; closing when the last one in flight is, or after ``grace_seconds``.
    ``idle_seconds``: a reader that takes nothing for so long is given up. ``connections_max``: authenticated connections, more
    are turned away (503); by default as ``guard`` says, whose are the certificates, the bounds of a request, the host names, and
    where it may listen without tokens.
    ``came_round`` is called by the serving loop, ten times a second.
    """

    def __init__(
        self,
        app: Litestar | Direct,
        url: str,
        grace_seconds: float = 5.0,
        idle_seconds: float = 30.0,
        connections_max: int | None = None,
        came_round: Callable[[], None] = lambda: None,
        guard: Guard = OPEN,
    ) -> None:
        parts = urlsplit(url)
        self._wanted = url
        self._scheme = parts.scheme or "http"
        self._guard = guard
        self._connections_max = connections_max or guard.limits.connections_max
        self._idle_seconds = idle_seconds
        self._senders: Senders | None = None
        self._came_round = came_round
        self._app = app
        self._hosts = {*guard.hosts, parts.hostname or ""} - {""}
        self._config = uvicorn.Config(
            app,
            host=parts.hostname or "127.0.0.1",
            port=parts.port or 0,
            loop="uvloop",
            log_config=None,
            access_log=False,
            log_level="error",  # warnings are of requests that are no HTTP: an answer each, no line in the log
            lifespan="off",
            proxy_headers=False,
            timeout_graceful_shutdown=math.ceil(grace_seconds),
            interface="asgi3",
            ws="none",
        )
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None
        self.url = ""

    @property
    def requests(self) -> int:
        """How many are being answered now."""
        return len(self._server.server_state.tasks) if self._server is not None else 0

    def _protocol(self, **options: Any) -> Protocol:
        assert self._senders is not None
        return _Bounded(senders=self._senders, guard=self._guard, **options)

    def _accepting(self, server: uvicorn.Server, bound: socket.socket) -> Accepting:
        return Accepting(
            bound,
            lambda connection: self._protocol(
                config=self._config,
                server_state=server.server_state,
                app_state=server.lifespan.state,
                connection=connection,
            ),
            self._guard.tls,
            self._connections_max,
            self._guard.limits.request_seconds,
        )

    def __enter__(self) -> Server:
        """Raises UsageError for a port that is taken, SettingsError for tokens or certificates that won't do."""
        context = self._guard.tls()
        if (context is not None) != (self._scheme == "https"):
            words = (
                "https needs security.cert_file and security.key_file" if context is None else "write it with https://"
            )
            raise SettingsError(f"{self._wanted}: {words}")
        self._senders = Senders(self._idle_seconds)
        family = socket.AF_INET6 if ":" in self._config.host else socket.AF_INET
        bound = self._socket = socket.socket(family)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self._config.host, self._config.port))
        except OSError as error:
            bound.close()
            raise UsageError(
                f"can't listen on {self._config.host}:{self._config.port}: the port is taken or not allowed "
                f"({error.strerror or error}); stop what uses it or set another url"
            ) from None
        host, port = bound.getsockname()[:2]
        try:
            self._guard.check_address(host, self._wanted)
            cross_site = CrossSite(self._hosts, self._guard.proxies, self._guard.guarded)
        except SettingsError:
            bound.close()
            raise
        self._config.app = _Gated(self._app, cross_site)
        allow_descriptors(self._connections_max)
        self.url = f"{self._scheme}://{host}:{port}"
        started = threading.Event()
        came_round, guard = self._came_round, self._guard
        accepting = self._accepting

        class Announcing(uvicorn.Server):
            async def startup(self, sockets: Any = None) -> None:
                await super().startup([])
                self.accepting = accepting(self, bound)
                self.accepting.start()
                started.set()

            async def on_tick(self, counter: int) -> bool:
                self.accepting.check()
                came_round()
                if counter % _CERTIFICATE_TICKS == 0:
                    guard.tls()
                return await super().on_tick(counter)

            async def shutdown(self, sockets: Any = None) -> None:
                await self.accepting.stop()
                await super().shutdown([])

        self._server = Announcing(self._config)
        self._thread = threading.Thread(target=self._server.run, name="http", daemon=True)
        self._thread.start()
        if not started.wait(30):
            raise UnreachableError(f"the HTTP server at {self.url} did not start within 30 s")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
        if self._senders is not None:
            self._senders.close()
        if self._socket is not None:
            self._socket.close()
