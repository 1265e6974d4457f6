"""How a server accepts connections: one by one, so that each counts from its first byte on, during its handshake too."""

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

#: connections that the kernel keeps until they are accepted
_BACKLOG = 2048
#: pause after the listening socket reported an error that ending a connection does not solve
_REST_SECONDS = 1.0
#: errors of accept that another descriptor would solve
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
#: least time between two warnings about ended connections
_WARNING_SECONDS = 60.0
#: descriptors that a process needs beside its connections: journal, WAL, Kafka, Spark
_OTHER_DESCRIPTORS = 1024


class Connection:
    """One accepted connection. For the serving loop alone."""

    __slots__ = ("_accepting", "end", "peer")

    def __init__(self, accepting: Accepting, peer: str) -> None:
        self._accepting = accepting
        self.peer = peer
        #: ends it without an answer
        self.end: Callable[[], object] = lambda: None

    def authenticate(self) -> bool:
        """Count as authenticated from now on. False, and nothing changes, while as many as allowed are authenticated."""
        return self._accepting.authenticate(self)

    def lost(self) -> None:
        """Give its place to another connection."""
        self._accepting.lost(self)


class Accepting:
    """Accept connections of ``listening`` and give each to a protocol from ``make``; by https if ``context`` returns a context.

    At most ``connections_max`` connections are authenticated. Beside them, as many more may be on their way there: in their
    handshake, before their first request, or without a valid token. A newcomer beyond that ends one of these
    (``forebay.http.unauthenticated``), so a flood of them takes no place from an authenticated peer (INV-6).
    ``handshake_seconds``: the time that a TLS handshake may take.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[Connection], asyncio.Protocol],
        context: Callable[[], ssl.SSLContext | None],
        connections_max: int,
        handshake_seconds: float,
    ) -> None:
        self._listening = listening
        self._make = make
        self._context = context
        self._connections_max = connections_max
        self._handshake_seconds = handshake_seconds
        self._authenticated: set[Connection] = set()
        self._unauthenticated: Unauthenticated[Connection] = Unauthenticated(connections_max)
        self._beginning: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._ended = 0  # since the last warning
        self._warned_at: float | None = None

    def start(self) -> None:
        """Of the running loop."""
        self._listening.setblocking(False)
        self._listening.listen(_BACKLOG)
        self._task = asyncio.get_running_loop().create_task(self._accept())

    def check(self) -> None:
        """Raises what ended it, if anything did."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Accept no more, and end the connections that have no protocol yet."""
        tasks = [*self._beginning, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()

    def authenticate(self, connection: Connection) -> bool:
        """As ``Connection.authenticate``."""
        if len(self._authenticated) >= self._connections_max:
            return False
        self._unauthenticated.discard(connection)
        self._authenticated.add(connection)
        return True

    def lost(self, connection: Connection) -> None:
        """As ``Connection.lost``."""
        self._authenticated.discard(connection)
        self._unauthenticated.discard(connection)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._listening)
            except OSError as error:
                log.warning("no connection can be accepted: %s", error.strerror)
                oldest = self._unauthenticated.pop() if error.errno in _NO_DESCRIPTOR else None
                if oldest is not None:
                    self._end(oldest)
                await asyncio.sleep(_REST_SECONDS)
                continue
            connection = Connection(self, peer_of(address[0].partition("%")[0]))
            task = loop.create_task(self._begin(accepted, connection))
            connection.end = task.cancel
            self._beginning.add(task)
            task.add_done_callback(lambda task, begun=(accepted, connection): self._has_begun(task, *begun))  # type: ignore[misc]
            oldest = self._unauthenticated.add(connection, connection.peer)
            if oldest is not None:
                self._end(oldest)

    async def _begin(self, accepted: socket.socket, connection: Connection) -> None:
        context = self._context()
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: self._make(connection),
            accepted,
            ssl=context,
            ssl_handshake_timeout=self._handshake_seconds if context is not None else None,
        )

    def _has_begun(self, task: asyncio.Task[None], accepted: socket.socket, connection: Connection) -> None:
        self._beginning.discard(task)
        error = None if task.cancelled() else task.exception()
        if not task.cancelled() and error is None:
            return
        accepted.close()
        connection.lost()
        if isinstance(error, (OSError, asyncio.TimeoutError, SettingsError)):  # a mistake of the client
            log.debug("a connection ended before its first request: %s", error)
        elif error is not None:
            log.error("a connection could not be served: %r", error, exc_info=error)

    def _end(self, connection: Connection) -> None:
        connection.end()
        self._ended += 1
        now = asyncio.get_running_loop().time()
        if self._warned_at is None or now - self._warned_at >= _WARNING_SECONDS:
            log.warning(
                "%d connections ended before they authenticated, the last one from %s: more than %d at a time "
                "(connections_max) make room for new ones",
                self._ended,
                connection.peer,
                self._connections_max,
            )
            self._ended, self._warned_at = 0, now


def allow_descriptors(connections_max: int) -> None:
    """Raise this process's limit of open descriptors as far as ``connections_max`` authenticated connections and as many others
    need, or as far as the system allows; then a warning names the limit."""
    needed = 2 * connections_max + _OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        log.warning(
            "this process may open %d files; %d connections (connections_max) can need %d: raise `ulimit -Hn` or LimitNOFILE",
            allowed,
            connections_max,
            needed,
        )
