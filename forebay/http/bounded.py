"""The protocol of one connection, with limits on a request's bytes, headers and time, and on authenticated connections."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from forebay import messages
from forebay.http.accepting import AcceptedConnection
from forebay.http.refusals import send_refusal
from forebay.http.sendfile import Protocol
from forebay.model.numbers import whole_number
from forebay.security.access import Guard

#: minimum rate of a body, in addition to the time allowed for the request's head
BODY_BYTES_PER_SECOND_MIN = 1 << 16
#: limits of a request's head, for all clients: a longer one is refused while it is parsed
URL_BYTES_MAX = 8 << 10
HEADERS_MAX = 100
HEADERS_BYTES_MAX = 32 << 10
#: maximum requests of one connection that wait for the answer to an earlier one
PIPELINED_MAX = 8


class _TooMuchError(Exception):
    """A request exceeds a limit, and is not read any further. ``status``: of the refusal."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class BoundedProtocol(Protocol):
    """The server's protocol with limits: bytes and number of headers, time for a request to arrive, authenticated connections.

    A connection counts as authenticated after the head of its first request with a valid token; in a service without tokens,
    after its first head.
    """

    _overdue: asyncio.TimerHandle | None = None
    #: whether a part of a request has arrived
    _arriving = False
    _authenticated = False
    #: upper bound of the request's bytes that the parser holds
    _held_bytes = 0
    _headers_bytes = 0
    _too_much: _TooMuchError | None = None

    def __init__(self, *args: Any, guard: Guard, connection: AcceptedConnection, **options: Any) -> None:
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
            self._too_much = _TooMuchError(431, f"a header may have at most {HEADERS_BYTES_MAX} bytes")
            self.send_400_response("")
            return
        waits = self.timeout_keep_alive_task is None and (self.cycle is None or self.cycle.response_complete)
        if waits and self._overdue is None:
            self._expect(self._limits.request_seconds)  # empty lines end the wait for a request, but begin none

    def send_400_response(self, msg: str) -> None:
        """Answer input that is not a request, or exceeds a limit."""
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
            self._refuse(400, f"at most {PIPELINED_MAX} requests of a connection may wait for an answer")
        super().on_message_begin()
        self._held_bytes = self._headers_bytes = 0
        self._arriving = True

    def on_url(self, url: bytes) -> None:
        self._held_bytes = 0
        if len(self.url) + len(url) > URL_BYTES_MAX:
            self._refuse(414, f"a URL may have at most {URL_BYTES_MAX} bytes")
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the head, or of the trailer after a body."""
        self._held_bytes = 0
        self._headers_bytes += len(name) + len(value)
        if self._headers_bytes > HEADERS_BYTES_MAX:
            self._refuse(431, f"the headers of a request may have at most {HEADERS_BYTES_MAX} bytes")
        if len(self.headers) >= HEADERS_MAX:
            self._refuse(431, f"a request may have at most {HEADERS_MAX} headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        said = next((value for name, value in self.headers if name == b"content-length"), b"")
        body_bytes = whole_number(said)
        if body_bytes is None:
            body_bytes = self._limits.request_bytes
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
            self._expect(self._limits.request_seconds)  # the unread rest of a body, of any announced length

    def _has_room(self) -> bool:
        """Return False if the connection would be authenticated by this request, but the maximum is reached."""
        if not self._authenticated:
            sent = next((value for name, value in self.headers if name == b"authorization"), b"").decode("latin-1")
            if self._guard.authorize(sent or None, frozenset()).known:
                self._authenticated = self._connection.authenticate()
                return self._authenticated
        return True

    def _refuse(self, status: int, message: str) -> None:
        """End the parsing. The parser reports it, and ``send_400_response`` sends the answer."""
        self._too_much = _TooMuchError(status, message)
        raise self._too_much

    def _expect(self, seconds: float) -> None:
        self._arrived()
        self._overdue = self.loop.call_later(seconds, self.transport.abort)

    def _arrived(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


async def _turn_away(scope: Any, receive: Any, send: Any) -> None:
    message = "the maximum of authenticated connections is open (security.connections_max, agent.connections_max)"
    await send_refusal(send, 503, messages.Refusal(code="not-ready", message=message))
