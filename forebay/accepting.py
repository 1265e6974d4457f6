"""How a server takes connections in: one by one, so that each counts from its first byte on, a handshake without an end too."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial

from forebay.errors import SettingsError

log = logging.getLogger(__name__)

#: connections that the kernel keeps until they are taken in
_BACKLOG = 2048
#: after an error of the listening socket, such as no descriptor left
_REST_SECONDS = 1.0


class Accepting:
    """Gives each connection of ``listening`` to a protocol that ``make`` makes, by https where ``context`` gives one for it.

    ``make`` is given what the protocol calls when its connection is lost. With ``connections_max`` that are not, those whose
    handshake is not over among them, others are ended at once (INV-6). ``handshake_seconds``: what a handshake may take.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[Callable[[], None]], asyncio.Protocol],
        context: Callable[[], ssl.SSLContext | None],
        connections_max: int,
        handshake_seconds: float,
    ) -> None:
        self._listening = listening
        self._make = make
        self._context = context
        self._connections_max = connections_max
        self._handshake_seconds = handshake_seconds
        self._connections: set[int] = set()  # by number, in the order in which they came
        self._begun: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

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
        """Takes no more in, and gives up those that have not come as far as a protocol."""
        tasks = [*self._begun, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        for number in itertools.count():
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                log.warning("no connection could be taken in: %s", error.strerror)
                await asyncio.sleep(_REST_SECONDS)
                continue
            if len(self._connections) >= self._connections_max:
                connection.close()
                continue
            self._connections.add(number)
            task = loop.create_task(self._begin(connection, partial(self._connections.discard, number)))
            self._begun.add(task)
            task.add_done_callback(self._begun.discard)

    async def _begin(self, connection: socket.socket, lost: Callable[[], None]) -> None:
        try:
            context = self._context()
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._make(lost),
                connection,
                ssl=context,
                ssl_handshake_timeout=self._handshake_seconds if context is not None else None,
            )
        except (OSError, asyncio.TimeoutError, SettingsError) as error:  # what a client does wrong is the client's
            log.debug("a connection came to nothing: %s", error)
            connection.close()
            lost()
