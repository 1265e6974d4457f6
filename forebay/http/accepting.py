"""Accepts connections one by one, so that each counts from its first byte, also during its TLS handshake."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
from collections.abc import Callable

from forebay.http.unauthenticated import Unauthenticated, peer_of
from forebay.model.errors import SettingsError

log = logging.getLogger(__name__)

#: maximum connections that the kernel queues until they are accepted
_BACKLOG = 2048
#: pause after an error of the listening socket
_REST_SECONDS = 1.0
#: errors of accept for lack of a file descriptor
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
#: minimum time between two warnings about ended connections
_WARNING_SECONDS = 60.0
#: file descriptors for other uses than connections: journal, WAL, Kafka, Spark
_OTHER_DESCRIPTORS = 1024


class AcceptedConnection:
    """One accepted connection. For the serving loop only."""

    __slots__ = ("_accepting", "end", "peer")

    def __init__(self, accepting: Accepting, peer: str) -> None:
        self._accepting = accepting
        self.peer = peer
        #: ends it without an answer
        self.end: Callable[[], object] = lambda: None

    def authenticate(self) -> bool:
        """Count this connection as authenticated. Return False, without a change, if the maximum number is authenticated."""
        return self._accepting.authenticate(self)

    def lost(self) -> None:
        """Free its place for another connection."""
        self._accepting.lost(self)


class Accepting:
    """Accepts connections of ``listening`` and gives each to a protocol from ``make``; with TLS if ``context`` returns a context.

    At most ``connections_max`` connections are authenticated. The same number may be unauthenticated: in their handshake, before
    their first request, or without a valid token. A new connection beyond that ends one of these
    (``forebay.http.unauthenticated``), so a flood of connections takes no place from an authenticated peer (INV-6).
    ``handshake_seconds``: maximum time of a TLS handshake.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[AcceptedConnection], asyncio.Protocol],
        *,
        context: Callable[[], ssl.SSLContext | None],
        connections_max: int,
        handshake_seconds: float,
    ) -> None:
        self._listening = listening
        self._make = make
        self._context = context
        self._connections_max = connections_max
        self._handshake_seconds = handshake_seconds
        self._authenticated: set[AcceptedConnection] = set()
        self._unauthenticated: Unauthenticated[AcceptedConnection] = Unauthenticated(connections_max)
        self._beginning: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._ended = 0  # since the last warning
        self._warned_at: float | None = None

    def start(self) -> None:
        """Listen, and accept connections in the running loop."""
        self._listening.setblocking(False)
        self._listening.listen(_BACKLOG)
        self._task = asyncio.get_running_loop().create_task(self._accept())

    def check(self) -> None:
        """Raise the exception that ended it, if any."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Stop accepting, and end the connections that have no protocol yet."""
        tasks = [*self._beginning, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()

    def authenticate(self, connection: AcceptedConnection) -> bool:
        """As ``AcceptedConnection.authenticate``."""
        if len(self._authenticated) >= self._connections_max:
            return False
        self._unauthenticated.discard(connection)
        self._authenticated.add(connection)
        return True

    def lost(self, connection: AcceptedConnection) -> None:
        """As ``AcceptedConnection.lost``."""
        self._authenticated.discard(connection)
        self._unauthenticated.discard(connection)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._listening)
            except OSError as error:
                log.warning("cannot accept connections: %s", error.strerror)
                oldest = self._unauthenticated.pop() if error.errno in _NO_DESCRIPTOR else None
                if oldest is not None:
                    self._end(oldest)
                await asyncio.sleep(_REST_SECONDS)
                continue
            connection = AcceptedConnection(self, peer_of(address[0].partition("%")[0]))
            task = loop.create_task(self._begin(accepted, connection))
            connection.end = task.cancel
            self._beginning.add(task)
            task.add_done_callback(lambda task, begun=(accepted, connection): self._has_begun(task, *begun))  # type: ignore[misc]
            oldest = self._unauthenticated.add(connection, connection.peer)
            if oldest is not None:
                self._end(oldest)

    async def _begin(self, accepted: socket.socket, connection: AcceptedConnection) -> None:
        context = self._context()
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: self._make(connection),
            accepted,
            ssl=context,
            ssl_handshake_timeout=self._handshake_seconds if context is not None else None,
        )

    def _has_begun(self, task: asyncio.Task[None], accepted: socket.socket, connection: AcceptedConnection) -> None:
        self._beginning.discard(task)
        error = None if task.cancelled() else task.exception()
        if not task.cancelled() and error is None:
            return
        accepted.close()
        connection.lost()
        if isinstance(error, (OSError, asyncio.TimeoutError, SettingsError)):  # an error of the client
            log.debug("a connection ended before its first request: %s", error)
        elif error is not None:
            log.error("cannot serve the connection from %s: %r", connection.peer, error, exc_info=error)

    def _end(self, connection: AcceptedConnection) -> None:
        connection.end()
        self._ended += 1
        now = asyncio.get_running_loop().time()
        if self._warned_at is None or now - self._warned_at >= _WARNING_SECONDS:
            log.warning(
                "ended %d unauthenticated connections, the last one from %s: more than %d at the same time "
                "(connections_max)",
                self._ended,
                connection.peer,
                self._connections_max,
            )
            self._ended, self._warned_at = 0, now


def allow_descriptors(connections_max: int) -> None:
    """Raise this process's limit of open files, so that it suffices for the server's connections.

    Those are at most ``connections_max`` authenticated and as many unauthenticated ones. If the system does not allow that many,
    raise the limit to the maximum and log a warning.
    """
    needed = 2 * connections_max + _OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        log.warning(
            "this process may open only %d files, but connections_max = %d can need %d: raise `ulimit -Hn` or LimitNOFILE",
            allowed,
            connections_max,
            needed,
        )
