"""Readers of what arrives at a service: whole requests at a server, and the bodies of every message of the driver."""

from __future__ import annotations

import atexit
import errno
import logging
import random
import socket
import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from driver.http import api
from forebay.http.server import Server
from forebay.messages import ReportRequest
from forebay.model.errors import UsageError
from forebay.model.values import Block, Handle
from forebay.model.wire import UNDECODABLE
from forebay.security.access import Guard
from tests.fuzz.reader import Reader
from tests.fuzz.samples import sample
from tests.support.state.guarded import settings
from tests.support.state.rows import block, filler

_TOKEN = "t" * 24
_ANSWER_SECONDS = 20.0
#: the server has ended the connection with bytes unread
_ENDED = (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN)
_GROUPS = (api.RECEIVER_ROUTES, api.AGENT_ROUTES, api.QUERY_ROUTES, api.OPERATOR_ROUTES)
#: statuses of a refusal by the service itself that are no fault: not ready
_NOT_READY = 503


def request_readers() -> dict[str, Reader]:
    """Return the readers of requests."""
    bodies = {route.path: _bodies(route.message) for group in _GROUPS for route in group.routes}
    requests = tuple(_request(path, body) for path, honest in bodies.items() for body in honest[:1])
    reads = tuple(
        f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {_TOKEN}\r\n\r\n".encode()
        for path in ("/v1/health", "/", "/v1/lag?x=%20&y", "/metrics")
    )
    messages = {
        f"message {route.path}": Reader(
            honest=bodies[route.path], read=msgspec.json.Decoder(route.message).decode, allowed=UNDECODABLE
        )
        for group in _GROUPS
        for route in group.routes
    }
    served = _Served()
    return {"request": Reader(honest=(*requests, *reads), read=served.ask, allowed=(), cost=2), **messages}


def _bodies(message: type[msgspec.Struct]) -> tuple[bytes, ...]:
    if message is ReportRequest:  # its numbers and ids must agree
        meta = block({("t", 0): filler(5)})[0]
        given = Block(meta, Handle("s/blocks/r1/0000000000000001/00000001.seg", 64, 640, 7), True, ("h2",))
        return (msgspec.json.encode(ReportRequest(receiver_id=meta.receiver_id, epoch=meta.epoch, blocks=(given,))),)
    kind = inspect.type_info(message)
    return tuple(msgspec.json.encode(sample(kind, random.Random(number))) for number in range(3))


def _request(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {_TOKEN}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Served:
    """A server of the driver's routes, whose decisions all refuse, until the process ends."""

    def __init__(self) -> None:
        self._address: tuple[str, int] | None = None
        self._errors: list[str] = []

    def ask(self, data: bytes) -> None:
        """Send the bytes, and no more. The server answers what is a request, and ends the connection, without an error of its
        own."""
        with socket.create_connection(self._address or self._started(), timeout=_ANSWER_SECONDS) as connection:
            answer = b""
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while part := connection.recv(1 << 16):
                    answer += part
            except OSError as error:
                if error.errno not in _ENDED:
                    raise
        assert not self._errors, self._errors
        if answer:
            assert answer.startswith(b"HTTP/1.1 "), answer[:100]
            status = int(answer[9:12])
            assert 100 <= status < 500 or status == _NOT_READY, answer[:300]

    def _started(self) -> tuple[str, int]:
        stack = ExitStack()
        atexit.register(stack.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tokens = folder / "tokens"
        tokens.write_text(f"{_TOKEN}\n")
        tokens.chmod(0o600)
        guard = Guard(settings(folder, token_file=str(tokens), request_timeout="2s"))
        app = api.tracker_application(
            _refused, status=partial(_refused, None), ready=lambda: None, release="1", guard=guard
        )
        server = stack.enter_context(Server(app, "http://127.0.0.1:0", guard=guard))
        handler = _Collecting(self._errors.append)
        for name in ("", "uvicorn", "uvicorn.error", "litestar", "asyncio"):
            logging.getLogger(name).addHandler(handler)
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        self._address = (host, int(port))
        return self._address


class _Collecting(logging.Handler):
    def __init__(self, found: Callable[[str], object]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        self._found(self.format(record))


def _refused(_: object) -> Future[Any]:
    answer: Future[Any] = Future()
    answer.set_exception(UsageError("refused"))
    return answer
