"""The HTTP client of one service. Imports nothing of the server. JSON by msgspec."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from forebay import messages
from forebay.http.kept import Kept, NoAnswerError, NotConnectedError, Response
from forebay.model.errors import (
    AccessError,
    FencedError,
    ForebayError,
    NoListenerError,
    NotTakenError,
    RefusedError,
    UnreachableError,
    UsageError,
)
from forebay.model.wire import UNDECODABLE
from forebay.security.access import NO_ACCESS, Access

Answer = TypeVar("Answer")

#: maximum time a service may take to answer, if a client is not given another
TIMEOUT_SECONDS = 10.0
#: maximum time to connect
_CONNECT_SECONDS = 5.0
#: maximum bytes of a part of an answer that is read as it arrives
_PART_BYTES = 1 << 16


class Client:
    """Calls one service. Thread-safe; keeps connections. It never retries: callers decide which requests may be repeated."""

    def __init__(self, url: str, timeout_seconds: float = TIMEOUT_SECONDS, access: Access = NO_ACCESS) -> None:
        self._url = url.rstrip("/")
        self._access = access
        self._timeout_seconds = timeout_seconds
        self._connections = Kept(self._url, access, min(timeout_seconds, _CONNECT_SECONDS))

    @property
    def url(self) -> str:
        return self._url

    def post(self, path: str, body: msgspec.Struct, answer: type[Answer]) -> Answer:
        """Send ``body``, and return the answer as type ``answer``.

        Raises UnreachableError (no answer, another program's, or 5xx), its subclasses NotTakenError (no process could decide the
        request) and AccessError (the service accepts no token of this process), FencedError, RefusedError, UsageError (400).
        """
        return self._decoded("POST", path, self.request("POST", path, msgspec.json.encode(body)), answer)

    def get(self, path: str, answer: type[Answer]) -> Answer:
        """Request ``path``, and return the answer as type ``answer``. Raises as :meth:`post`."""
        return self._decoded("GET", path, self.request("GET", path), answer)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> bytes:
        """Return the body of a 2xx answer. Raises as :meth:`post`."""
        answer = self._request(method, path, body, headers or {}, self._timeout_seconds)
        try:
            return answer.read()
        except NoAnswerError as error:
            raise self._no_answer(method, path, error) from None

    def _decoded(self, method: str, path: str, data: bytes, answer: type[Answer]) -> Answer:
        try:
            return msgspec.json.decode(data, type=answer)
        except UNDECODABLE as error:
            message = f"the answer to {method} {path} can't be decoded ({error}): another program may listen there"
            raise UnreachableError(f"{self._url}: {message}") from None

    @contextmanager
    def stream(self, path: str, idle_seconds: float) -> Iterator[Iterator[bytes]]:
        """Request ``path``, and give the parts of the body as they arrive. Raises as :meth:`post`; also UnreachableError if no
        part arrives for ``idle_seconds``."""
        answer = self._request("GET", path, None, {}, idle_seconds)
        try:
            yield self._parts(path, answer)
        finally:
            answer.close()  # its connection has unread bytes

    def _parts(self, path: str, answer: Response) -> Iterator[bytes]:
        try:
            while part := answer.part(_PART_BYTES):
                yield part
        except NoAnswerError as error:
            raise UnreachableError(f"{self._url}: the answer to GET {path} broke off: {error}") from None

    def _request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], idle_seconds: float
    ) -> Response:
        """Return a 2xx answer. Raises as :meth:`post`."""
        sent = {"content-type": "application/json", **self._access.headers(), **headers}
        try:
            answer = self._connections.request(method, path, body, sent, idle_seconds)
            if 200 <= answer.status < 300:
                return answer
            found = answer.read()
        except NotConnectedError as error:
            raise NoListenerError(f"{self._url} did not answer {method} {path}: {error}", str(error)) from None
        except NoAnswerError as error:
            raise self._no_answer(method, path, error) from None
        raise self._refused(method, path, answer.status, found)

    def _no_answer(self, method: str, path: str, error: NoAnswerError) -> UnreachableError:
        return UnreachableError(f"{self._url} did not answer {method} {path}: {error}")

    def _refused(self, method: str, path: str, status: int, body: bytes) -> ForebayError:
        """Return the error of an answer that is not 2xx."""
        try:
            refusal = msgspec.json.decode(body, type=messages.Refusal)
        except UNDECODABLE:
            refusal = messages.Refusal(code="unknown", message=f"HTTP {status}")
        if refusal.code == "fenced":
            return FencedError(refusal.message)
        if refusal.code in ("unauthenticated", "forbidden"):
            return AccessError(f"{self._url} refused {method} {path}: {refusal.message}", refusal.code)
        if refusal.code == "bad-request":
            return UsageError(refusal.message)
        if refusal.leader is not None:
            return NotTakenError(f"{self._url}: {refusal.message}", refusal.leader)
        if status >= 500:
            return UnreachableError(f"{self._url}: {refusal.message}")
        return RefusedError(refusal.message, refusal.code)

    def close(self) -> None:
        """Close the connections that no request uses."""
        self._connections.close()
