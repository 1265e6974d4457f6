"""Serves an application over HTTP, from a thread. The client is ``forebay.http.client``."""

from __future__ import annotations

import errno
import math
import socket
import threading
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from litestar import Litestar

from forebay import messages
from forebay.http.accepting import Accepting, allow_descriptors
from forebay.http.application import Direct
from forebay.http.bounded import BoundedProtocol
from forebay.http.cross_site import CrossSite
from forebay.http.refusals import send_refusal
from forebay.http.sendfile import Protocol, Senders
from forebay.model.errors import (
    SettingsError,
    StoreError,
    UnreachableError,
    UsageError,
)
from forebay.security.access import OPEN, Guard

#: interval between two checks of unused certificates, in turns of the serving loop (0.1 s)
_CERTIFICATE_TICKS = 600


#: errors of the system that a person must correct; after others, such as an address that is not configured yet, a later start
#: may succeed
_PORT_REFUSED = frozenset({errno.EADDRINUSE, errno.EACCES, errno.EPERM})


class PortInUse(UsageError):
    """A service can't listen at its port: another process uses it, or this process may not."""


class _Gated:
    """Refuses requests that a browser sends for a page of another site, and passes the others to ``app``."""

    def __init__(self, app: Litestar | Direct, cross_site: CrossSite) -> None:
        self._app = app
        self._cross_site = cross_site

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        refused = self._cross_site.check(scope["method"], scope["path"], scope["headers"])
        if refused is None:
            await self._app(scope, receive, send)
        else:
            await send_refusal(send, refused.status, messages.Refusal(code=refused.code, message=refused.message))


class Server:
    """Serves ``app`` at ``url`` from a separate thread. Port 0 selects a free port; the attribute ``url`` then has it.

    Opening returns when requests are answered. Closing returns when the last request is answered, or after ``grace_seconds``.
    ``idle_seconds``: maximum time in which a reader accepts no byte of an answer. ``connections_max``: maximum of authenticated
    connections, beyond which requests are refused with 503; by default that of ``guard``. ``guard`` also has the certificates,
    the limits of a request, the host names, and decides where the server may listen without tokens. ``came_round``: called in
    each turn of the serving loop, ten times per second. ``pages``: as in :class:`forebay.http.cross_site.CrossSite`.
    """

    def __init__(
        self,
        app: Litestar | Direct,
        url: str,
        *,
        grace_seconds: float = 5.0,
        idle_seconds: float = 30.0,
        connections_max: int | None = None,
        came_round: Callable[[], None] = lambda: None,
        guard: Guard = OPEN,
        pages: Collection[str] = (),
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
        self._pages = pages
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
        """The number of requests that are being answered."""
        return len(self._server.server_state.tasks) if self._server is not None else 0

    def _protocol(self, **options: Any) -> Protocol:
        assert self._senders is not None
        return BoundedProtocol(senders=self._senders, guard=self._guard, **options)

    def _accepting(self, server: uvicorn.Server, bound: socket.socket) -> Accepting:
        return Accepting(
            bound,
            lambda connection: self._protocol(
                config=self._config,
                server_state=server.server_state,
                app_state=server.lifespan.state,
                connection=connection,
            ),
            context=self._guard.tls,
            connections_max=self._connections_max,
            handshake_seconds=self._guard.limits.request_seconds,
        )

    def __enter__(self) -> Server:
        """Raises PortInUse, a UsageError, for a port that is in use or not allowed; UnreachableError if the system cannot listen
        there now, as while the address is not configured yet; SettingsError for invalid tokens or certificates."""
        context = self._guard.tls()
        if (context is not None) != (self._scheme == "https"):
            reason = (
                "https needs security.cert_file and security.key_file"
                if context is None
                else "with certificates, write https://"
            )
            raise SettingsError(f"{self._wanted}: {reason}")
        self._senders = Senders(self._idle_seconds)
        family = socket.AF_INET6 if ":" in self._config.host else socket.AF_INET
        bound = self._socket = socket.socket(family)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self._config.host, self._config.port))
        except OSError as error:
            bound.close()
            where = f"cannot listen on {self._config.host}:{self._config.port}"
            if error.errno not in _PORT_REFUSED:
                raise UnreachableError(
                    f"{where} ({error.strerror or error}); if this lasts, correct the url, the host's name or its address"
                ) from None
            raise PortInUse(
                f"{where}: the port is in use or not allowed ({error.strerror or error}); stop the process that uses it, or "
                "set another url"
            ) from None
        host, port = bound.getsockname()[:2]
        try:
            self._guard.check_address(host, self._wanted)
            cross_site = CrossSite(
                self._hosts, proxies=self._guard.proxies, guarded=self._guard.guarded, pages=self._pages
            )
        except (SettingsError, StoreError):
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
