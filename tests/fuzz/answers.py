"""Readers of what another process answers: a driver, and the agent of a host."""

from __future__ import annotations

import atexit
import os
import random
import socket
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import urllib3
from msgspec import inspect

from forebay.http.client import Client
from forebay.messages import COPY_SIZES, Refusal, RegisterAnswer, copy_sizes_text
from forebay.model.errors import (
    AccessError,
    CorruptionError,
    FencedError,
    ForebayError,
    OutOfSpaceError,
    RefusedError,
    UnreachableError,
    UsageError,
)
from tests.fuzz.reader import Reader
from tests.fuzz.samples import sample
from tests.support.state.rows import block, filler
from tests.support.state.stored import Stored
from wal.blocks.local_copies import BLOCK_SUFFIX
from wal.blocks.sending import give_copy
from wal.reading import per_process
from wal.reading.agents import read_from_agent, read_several_from_agent

_SECONDS = 5.0
_EVENT = b"id: 4\ndata: {}\n\n"
_OF_A_SERVICE = (UnreachableError, FencedError, RefusedError, UsageError, AccessError)


def answer_readers() -> dict[str, Reader]:
    """Return the readers of answers."""
    answering = _Answering()
    register = msgspec.json.encode(sample(inspect.type_info(RegisterAnswer), random.Random(0)))
    refusals = tuple(
        _answer(status, msgspec.json.encode(Refusal(code=code, message="m", leader=leader)))
        for status, code, leader in (
            (409, "fenced", None), (401, "unauthenticated", None), (400, "bad-request", None), (503, "not-ready", "http://d2"),
            (507, "no-room", None),
        )
    )  # fmt: skip
    copies = _Copies(answering)
    return {
        "answer of a driver": answering.reader(
            lambda url: _ask(url, lambda client: client.get("/v1/x", RegisterAnswer)),
            _answer(200, register), _chunked(200, register), refused=refusals, allowed=_OF_A_SERVICE,
        ),
        "stream of a driver": answering.reader(
            lambda url: _ask(url, _read_all), _answer(200, _EVENT), _chunked(200, _EVENT), refused=refusals,
            allowed=_OF_A_SERVICE,
        ),
        "block of an agent": answering.reader(
            copies.read, copies.one, refused=(_chunked(206, b"x"), *refusals),
            allowed=(FileNotFoundError, CorruptionError, AccessError, UnreachableError),
        ),
        # a failure is yielded, not raised
        "blocks of an agent": answering.reader(
            copies.read_several, copies.several, _chunked(200, b"x"), *refusals, refused=(), allowed=()
        ),
        "answer to a copy": answering.reader(
            copies.give, _answer(200, b"{}"), _chunked(200, b"{}"), refused=(*refusals, _chunked(409, b"{}")),
            allowed=(OutOfSpaceError, UnreachableError, RefusedError),
        ),
    }  # fmt: skip


def _answer(status: int, body: bytes, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{lines}\r\n".encode() + body


def _chunked(status: int, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} X\r\ntransfer-encoding: chunked\r\n\r\n{len(body):x}\r\n"
    return head.encode() + body + b"\r\n0\r\n\r\n"


def _ask(url: str, ask: Callable[[Client], object]) -> None:
    with closing(Client(url, _SECONDS)) as client:
        ask(client)


def _read_all(client: Client) -> None:
    with client.stream("/v1/events", _SECONDS) as parts:
        for _ in parts:
            pass


class _Answering:
    """A service that gives each request the same bytes, and ends the connection. It runs until the process ends."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._bytes = b""

    def reader(
        self,
        read: Callable[[str], object],
        *honest: bytes,
        refused: tuple[bytes, ...],
        allowed: tuple[type[Exception], ...],
    ) -> Reader:
        """Return a reader that calls ``read`` with the service's URL, which answers the bytes."""

        def answered(data: bytes) -> None:
            self._bytes = data
            read(self._url())

        return Reader(honest=honest, refused=refused, read=answered, allowed=allowed, cost=4)

    def _url(self) -> str:
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self, listener: socket.socket) -> None:
        try:
            while True:
                # a client may keep a connection that was answered, so each has a thread of its own
                threading.Thread(target=self._answer, args=(listener.accept()[0], self._bytes), daemon=True).start()
        except BaseException:  # otherwise each attempt would end with a time-out, which is allowed
            traceback.print_exc()
            os._exit(3)

    def _answer(self, connection: socket.socket, answer: bytes) -> None:
        with connection:
            try:
                connection.recv(1 << 16)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):  # a reset would drop the answer
                    pass
            except OSError:
                pass  # the client has ended the connection


class _Copies:
    """Two blocks of host ``h1``, as its agent answers them."""

    def __init__(self, answering: _Answering) -> None:
        folder = tempfile.TemporaryDirectory()
        atexit.register(folder.cleanup)
        self._stored = Stored(Path(folder.name))
        self._blocks = [block({("t", 0): filler(9)}, sequence=number) for number in (1, 2)]
        self._references = [self._stored.add(*one) for one in self._blocks]
        copies = [path.read_bytes() for path in sorted(self._stored.blocks_directory.rglob(f"*{BLOCK_SUFFIX}"))]
        last = len(copies[0]) - 1
        self.one = _answer(206, copies[0], content_range=f"bytes 0-{last}/{len(copies[0])}")
        self.several = _answer(200, b"".join(copies), **{COPY_SIZES: copy_sizes_text([len(copy) for copy in copies])})

    def read(self, url: str) -> None:
        plan = self._stored.plan("agent", agent_urls={"h1": url}, agent_timeout_seconds=_SECONDS)
        per_process.once("silent agents", dict).clear()
        read_from_agent(self._references[0], plan, "h1")

    def read_several(self, url: str) -> None:
        plan = self._stored.plan("agent", agent_urls={"h1": url}, agent_timeout_seconds=_SECONDS)
        per_process.once("silent agents", dict).clear()
        for _, found in read_several_from_agent(self._references, plan, "h1"):
            assert not isinstance(found, Exception) or isinstance(found, (ForebayError, OSError)), found

    def give(self, url: str) -> None:
        meta, payload = self._blocks[0]
        with urllib3.PoolManager(retries=False) as pool:  # the service ends each connection: none may be used again
            give_copy(pool, url, meta, payload, timeout_seconds=_SECONDS)
