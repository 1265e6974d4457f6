"""A client that closes its connection while its request is answered: its answer ends, and nothing of it is in the log."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from forebay.http.sendfile import Protocol
from forebay.http.server import Server


@pytest.mark.parametrize("requests", [1, 2])
@pytest.mark.parametrize("sent", [0, 1])
def test_answer_to_a_lost_connection_ends_without_an_error(
    requests: int, sent: int, caplog: pytest.LogCaptureFixture
) -> None:
    """uvicorn marks only the newest of several ``requests`` in one connection as disconnected, and uvloop refuses a write of
    another one. ``sent``: messages of the answer before the connection is lost."""
    protocols: list[Protocol] = []
    lost = asyncio.Event()

    class Noted(Server):
        def _protocol(self, **options: Any) -> Protocol:
            protocol = super()._protocol(**options)
            was_lost = protocol.connection_lost

            def note(exc: Exception | None) -> None:
                was_lost(exc)
                lost.set()

            protocol.connection_lost = note  # type: ignore[method-assign]
            protocols.append(protocol)
            return protocol

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answer = [
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]},
            {"type": "http.response.body", "body": b"ok"},
        ]
        for message in answer[:sent]:
            await send(message)
        protocols[-1].transport.abort()
        await lost.wait()
        for message in answer[sent:]:
            await send(message)

    with (
        caplog.at_level(logging.INFO),
        Noted(app, "http://127.0.0.1:0") as server,  # type: ignore[arg-type]
        socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0)) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * requests)
        while client.recv(1000):
            pass
    assert lost.is_set()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []
