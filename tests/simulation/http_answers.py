"""Answers of HTTP between the simulated services, as bytes: the product's client decodes them, and the product encodes refusals.

A connection is modelled: an answer may not arrive, may end early, or may be that of another program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import msgspec

from forebay.http.client import TIMEOUT_SECONDS, Client
from forebay.http.kept import NoAnswerError
from forebay.http.refusals import refusal_of
from forebay.security.access import NO_ACCESS

Answer = TypeVar("Answer")

URL = "http://driver"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """``is_cut``: the connection ends before the length that the head names."""

    status: int
    body: bytes
    is_cut: bool = False

    @classmethod
    def of(cls, answer: Any) -> HttpAnswer:
        """Return the answer of a service: a message, or the refusal for an error."""
        if isinstance(answer, Exception):
            refusal, status = refusal_of(answer)
            return cls(status, msgspec.json.encode(refusal))
        return cls(200, msgspec.json.encode(answer))

    def cut(self, at: int) -> HttpAnswer:
        """Return the answer up to a part of its body. Every other head names no length, and the client notices no early end."""
        length = at * len(self.body) // CUTS
        return replace(self, body=self.body[:length], is_cut=bool(at % 2))

    def read(self) -> bytes:
        if self.is_cut:
            raise NoAnswerError(f"it ended after {len(self.body)} bytes")
        return self.body


#: places at which an answer may be cut
CUTS = 40
#: what a proxy, or another program at the driver's address, may answer in place of a driver
OTHER_ANSWERS = (
    HttpAnswer(502, b"<html><h1>502 Bad Gateway</h1></html>"),
    HttpAnswer(504, b""),
    HttpAnswer(503, b'{"message": "busy"}'),
    HttpAnswer(409, b"<html><h1>409 Conflict</h1></html>"),
    HttpAnswer(404, b'{"detail": "Not Found"}'),
    HttpAnswer(403, b"Forbidden"),
    HttpAnswer(400, b"Bad Request"),
    HttpAnswer(302, b""),
    HttpAnswer(204, b""),
    HttpAnswer(200, b"<html>It works!</html>"),
    HttpAnswer(200, b"{}"),
    HttpAnswer(200, b"null"),
    HttpAnswer(200, b"\xff\xfe"),
)


class SimulatedClient(Client):
    """The product's client of the driver, for one thread.

    ``exchange``: sends a message to a path and returns the answer; None if none arrives in time.
    """

    def __init__(self, exchange: Callable[[str, msgspec.Struct], HttpAnswer | None]) -> None:
        self._connections = cast(Any, _Connections(exchange))
        self._url = URL
        self._access = NO_ACCESS
        self._timeout_seconds = TIMEOUT_SECONDS

    def post(self, path: str, body: msgspec.Struct, answer: type[Answer]) -> Answer:
        cast(_Connections, self._connections).message = body
        return super().post(path, body, answer)


class _Connections:
    """In place of ``forebay.http.kept.Kept``. ``message``: what the next request sends."""

    def __init__(self, exchange: Callable[[str, msgspec.Struct], HttpAnswer | None]) -> None:
        self._exchange = exchange
        self.message: msgspec.Struct

    def request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], idle_seconds: float
    ) -> HttpAnswer:
        answer = self._exchange(path, self.message)
        if answer is None:
            raise NoAnswerError(f"timed out after {idle_seconds:g} s")
        return answer
