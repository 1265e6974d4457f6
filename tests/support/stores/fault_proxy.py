"""An HTTP proxy between a store's client and its server that injects the faults of networks and stores.

It counts requests by verb; each request meets the first fault that is armed for it.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

Kind = Literal[
    "latency",  # the answer comes `seconds` later
    "status",  # answered with `status`, and not carried out
    "reset",  # the connection is reset, the request not carried out
    "half-request",  # half of the body arrives at the server, then both connections are closed
    "reset-after",  # carried out, and the connection reset instead of the answer
    "silence",  # not carried out, and never answered
    "silence-after",  # carried out, and never answered: a time-out after success
    "half-answer",  # carried out, half of the answer sent, then the connection is closed
    "answer",  # answered with `status` and `body`, and not carried out
    "slow",  # the answer's body comes at `bytes_per_second`
    "twice",  # carried out twice, as by a proxy that repeats requests; the second answer is given
    "overtaken",  # carried out after a request that came later, or after `seconds`
    "late",  # answered with `status`, and carried out `seconds` later
]
_WAIT_SECONDS_MAX = 120.0
_PIECE_BYTES = 4096


@dataclass(slots=True)
class Fault:
    """``verb``: None for all. ``skip``: requests that pass before the first one is met; ``times``: how many are met; ``every``:
    2 for each second one. ``answered``: called when the server has answered and the client has not received the answer yet."""

    kind: Kind
    verb: str | None = None
    skip: int = 0
    times: int = 1_000_000_000
    every: int = 1
    seconds: float = 0.0
    status: int = 503
    body: bytes = b""
    bytes_per_second: int = 100_000
    part_of_path: str = ""
    answered: Callable[[], object] = lambda: None
    met: int = 0
    seen: int = 0

    def takes(self, verb: str, path: str) -> bool:
        if (self.verb is not None and self.verb != verb) or self.part_of_path not in path:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.seen += 1
        if self.met >= self.times or self.seen % self.every:
            return False
        self.met += 1
        return True


@dataclass(slots=True)
class _Message:
    """Start line and headers as received, and the body as it was sent (chunks with their lengths)."""

    start: bytes
    headers: list[bytes]
    body: bytes = b""

    def header(self, name: bytes) -> bytes:
        for line in self.headers:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name:
                return value.strip()
        return b""

    def head(self) -> bytes:
        return b"\r\n".join([self.start, *self.headers]) + b"\r\n\r\n"


@dataclass
class FaultProxy:
    """``target_port``: of the server, on this machine. Listens at ``url`` while it is open (``with``)."""

    target_port: int
    faults: list[Fault] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    heads: deque[bytes] = field(default_factory=lambda: deque(maxlen=100))  # of the newest requests, as they came

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._answers = threading.Condition()
        self._came = self._newest_answered = 0
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    proxy._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def arm(self, kind: Kind, verb: str | None = None, **rest: Any) -> Fault:
        fault = Fault(kind, verb, **rest)
        with self._lock:
            self.faults.append(fault)
        return fault

    def calm(self) -> None:
        """No fault any more."""
        with self._lock:
            self.faults.clear()

    def _fault(self, verb: str, path: str) -> Fault | None:
        with self._lock:
            self.counts[verb] += 1
            return next((fault for fault in self.faults if fault.takes(verb, path)), None)

    def _serve(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with client.makefile("rb") as reading:
            while not self._closing.is_set():
                request = _head(reading)
                if request is None:
                    return
                self.heads.append(request.head())
                if request.header(b"expect").lower() == b"100-continue":
                    client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                    request.headers = [h for h in request.headers if not h.lower().startswith(b"expect:")]
                request.body = _body(reading, request)
                verb, path = (part.decode() for part in request.start.split(b" ")[:2])
                if not self._answer(client, request, verb, self._fault(verb, path)):
                    return

    def _answer(self, client: socket.socket, request: _Message, verb: str, fault: Fault | None) -> bool:
        """Whether the connection goes on."""
        kind = fault.kind if fault is not None else None
        with self._answers:
            self._came += 1
            place = self._came
        if fault is not None and kind == "latency":
            self._closing.wait(fault.seconds)
        elif fault is not None and kind == "overtaken":
            with self._answers:
                self._answers.wait_for(lambda: self._newest_answered > place, fault.seconds)
        elif fault is not None and kind == "status":
            _send_status(client, verb, fault.status)
            return True
        elif fault is not None and kind == "late":
            threading.Thread(target=self._carry_out_late, args=(request, verb, fault.seconds), daemon=True).start()
            _send_status(client, verb, fault.status)
            return True
        elif fault is not None and kind == "answer":
            client.sendall(
                b"HTTP/1.1 %d Made Up\r\nContent-Length: %d\r\n\r\n%s" % (fault.status, len(fault.body), fault.body)
            )
            return True
        elif kind == "reset":
            _reset(client)
            return False
        elif kind == "silence":
            self._hold(client)
            return False
        try:
            if kind == "half-request":
                with self._connected() as server:
                    server.sendall(request.head() + request.body[: len(request.body) // 2])
                _reset(client)
                return False
            if kind == "twice":
                self._carry_out(request, verb)
            answer = self._carry_out(request, verb)
        except OSError:
            answer = None  # the server is away
        if answer is None:
            _reset(client)
            return False
        with self._answers:
            self._newest_answered = max(self._newest_answered, place)
            self._answers.notify_all()
        if fault is not None:
            fault.answered()
        if kind == "reset-after":
            _reset(client)
            return False
        if kind == "silence-after":
            self._hold(client)
            return False
        whole = answer.head() + answer.body
        if kind == "half-answer":
            client.sendall(whole[: len(whole) - max(1, len(answer.body) // 2)])
            return False
        if fault is not None and kind == "slow":
            client.sendall(answer.head())
            for at in range(0, len(answer.body), _PIECE_BYTES):
                client.sendall(answer.body[at : at + _PIECE_BYTES])
                self._closing.wait(_PIECE_BYTES / fault.bytes_per_second)
            return True
        client.sendall(whole)
        return answer.header(b"connection").lower() != b"close"

    def _connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.target_port), 30.0)

    def _carry_out(self, request: _Message, verb: str) -> _Message | None:
        """Return the server's answer; None if the server ended the connection without one."""
        with self._connected() as server:
            server.sendall(request.head() + request.body)
            with server.makefile("rb") as reading:
                answer = _head(reading)
                if answer is not None and verb != "HEAD":
                    answer.body = _body(reading, answer, answer=True)
                return answer

    def _carry_out_late(self, request: _Message, verb: str, seconds: float) -> None:
        self._closing.wait(seconds)
        with contextlib.suppress(OSError):  # the server is away: the request is lost
            self._carry_out(request, verb)

    def _hold(self, client: socket.socket) -> None:
        """Until the client gives up."""
        client.settimeout(0.1)
        for _ in range(int(_WAIT_SECONDS_MAX / 0.1)):
            if self._closing.is_set():
                return
            try:
                if not client.recv(1):
                    return
            except TimeoutError:
                continue


def _head(reading: Any) -> _Message | None:
    start = reading.readline().rstrip(b"\r\n")
    if not start:
        return None
    headers = []
    while line := reading.readline().rstrip(b"\r\n"):
        headers.append(line)
    return _Message(start, headers)


def _body(reading: Any, message: _Message, answer: bool = False) -> bytes:
    if message.header(b"transfer-encoding").lower() == b"chunked":
        parts = []
        while True:
            size_line = reading.readline()
            size = int(size_line.split(b";")[0], 16)
            parts.append(size_line + reading.read(size) + reading.readline())
            if not size:
                return b"".join(parts)
    length = message.header(b"content-length")
    if length:
        body: bytes = reading.read(int(length))
        return body
    if answer and not message.start.split(b" ")[1].startswith((b"204", b"304")):
        rest: bytes = reading.read()
        return rest
    return b""


def _send_status(client: socket.socket, verb: str, status: int) -> None:
    code = {409: b"ConditionalRequestConflict", 503: b"SlowDown"}.get(status, b"InternalError")
    body = b"" if verb == "HEAD" else b"<Error><Code>%s</Code><Message>injected</Message></Error>" % code
    client.sendall(b"HTTP/1.1 %d Injected\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))


def _reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
