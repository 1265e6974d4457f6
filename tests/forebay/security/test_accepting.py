"""A server without file descriptors keeps running; a starting one raises its limit to what its connections need."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
from typing import Any

import pytest

from forebay.http import accepting
from forebay.http.accepting import AcceptedConnection, Accepting, allow_descriptors


class Silent(asyncio.Protocol):
    """Answers nothing."""

    def __init__(self, connection: AcceptedConnection) -> None:
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connection.end = transport.abort

    def connection_lost(self, _: Exception | None) -> None:
        self._connection.lost()


@pytest.mark.parametrize(("number", "ends"), [(errno.EMFILE, True), (errno.ENFILE, True), (errno.ECONNABORTED, False)])
def test_server_without_descriptors_ends_oldest_silent_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int, ends: bool
) -> None:
    monkeypatch.setattr(accepting, "_REST_SECONDS", 0.0)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        accept, accepted = loop.sock_accept, 0

        async def refused_once(listening: socket.socket) -> Any:
            nonlocal accepted
            accepted += 1
            if accepted == 3:
                raise OSError(number, os.strerror(number))
            return await accept(listening)

        monkeypatch.setattr(loop, "sock_accept", refused_once)
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        server = Accepting(listening, Silent, context=lambda: None, connections_max=8, handshake_seconds=30.0)
        server.start()
        opened = [await asyncio.open_connection(*listening.getsockname()) for _ in range(3)]
        reading = [asyncio.ensure_future(reader.read(1)) for reader, _ in opened]
        while accepted < 5:  # the third connection is accepted after the error, and the next one waited for
            await asyncio.sleep(0.01)
        opened.append(await asyncio.open_connection(*listening.getsockname()))
        reading.append(asyncio.ensure_future(opened[3][0].read(1)))
        while accepted < 6:  # so the end of another connection would have been seen
            await asyncio.sleep(0.01)
        if ends:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reading[0], 30) == b""
        assert [task.done() for task in reading] == [ends, False, False, False]
        server.check()
        await server.stop()
        for task, (_, writer) in zip(reading, opened, strict=True):
            task.cancel()
            writer.close()
        await asyncio.gather(*reading, return_exceptions=True)

    asyncio.run(run())
    assert f"cannot accept connections: {os.strerror(number)}" in caplog.text


def test_server_pauses_between_errors_that_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: it takes no processor time from the rest of the service."""
    pause_seconds = 0.05
    monkeypatch.setattr(accepting, "_REST_SECONDS", pause_seconds)

    async def run() -> None:
        loop, attempts = asyncio.get_running_loop(), 0

        async def refused(_: socket.socket) -> Any:
            nonlocal attempts
            attempts += 1
            await asyncio.sleep(0)
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

        monkeypatch.setattr(loop, "sock_accept", refused)
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        server = Accepting(listening, Silent, context=lambda: None, connections_max=8, handshake_seconds=30.0)
        begun = loop.time()
        server.start()
        while attempts < 4:
            await asyncio.sleep(0.01)
        assert attempts <= 1 + (loop.time() - begun) / pause_seconds
        await server.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "warns"),
    [
        (1024, 1 << 20, 3024, False),
        (1024, 2000, 2000, True),
        (1024, resource.RLIM_INFINITY, 3024, False),
        (4096, 4096, None, False),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, False),
        (2000, 2000, None, True),
    ],
)
def test_descriptor_limit_is_raised_or_warned_about(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    soft: int,
    hard: int,
    wanted: int | None,
    warns: bool,
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    allow_descriptors(1000)
    assert given == ([] if wanted is None else [(wanted, hard)])
    assert ("ulimit -Hn" in caplog.text) == warns
