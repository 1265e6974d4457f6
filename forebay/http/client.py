"""The HTTP client of one service. Imports nothing of the server. JSON by msgspec."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import urllib3

from forebay import messages
from forebay.http.connections import connections
from forebay.model.errors import (
    AccessError,
    FencedError,
    NoListenerError,
    NotTakenError,
    RefusedError,
    UnreachableError,
    UsageError,
)
from forebay.model.wire import UNDECODABLE
from forebay.security.access import NO_ACCESS, Access

Answer = TypeVar("Answer")

#: maximum bytes of a part of an answer that is read as it arrives
_PART_BYTES = 1 << 16


class Client:
    """Calls one service. Thread-safe; keeps connections. It never retries: callers decide which requests may be repeated."""

    def __init__(self, url: str, timeout_seconds: float = 10.0, access: Access = NO_ACCESS) -> None:
        self._url = url.rstrip("/")
        self._access = access
        self._pool = connections(url, access, urllib3.Timeout(connect=min(timeout_seconds, 5.0), read=timeout_seconds))

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
        return self._request(method, path, body, headers or {}).data

    def _decoded(self, method: str, path: str, data: bytes, answer: type[Answer]) -> Answer:
        try:
            return msgspec.json.decode(data, type=answer)
        except UNDECODABLE as error:
            words = f"the answer to {method} {path} can't be decoded ({error}): another program may listen there"
            raise UnreachableError(f"{self._url}: {words}") from None

    @contextmanager
    def stream(self, path: str, idle_seconds: float) -> Iterator[Iterator[bytes]]:
        """Request ``path``, and give the parts of the body as they arrive. Raises as :meth:`post`; also UnreachableError if no
        part arrives for ``idle_seconds``."""
        timeout = urllib3.Timeout(connect=min(idle_seconds, 5.0), read=idle_seconds)
        response = self._request("GET", path, None, {}, preload_content=False, timeout=timeout)
        try:
            yield self._parts(path, response)
        finally:
            response.close()  # its connection has unread bytes

    def _parts(self, path: str, response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
        try:
            yield from response.stream(_PART_BYTES)
        except urllib3.exceptions.HTTPError as error:
            raise UnreachableError(f"{self._url}: the answer to GET {path} broke off: {_reason(error)}") from None

    def _request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], **how: Any
    ) -> urllib3.BaseHTTPResponse:
        """Return a 2xx answer. Raises as :meth:`post`."""
        try:
            response = self._pool.request(
                method,
                self._url + path,
                body=body,
                headers={"content-type": "application/json", **self._access.headers(), **headers},
                redirect=False,
                **how,
            )
            is_answer = 200 <= response.status < 300
            body = b"" if is_answer else response.data
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError) as error:
            words = f"{self._url} did not answer {method} {path}: {_reason(error)}"
            raise NoListenerError(words, _reason(error)) from None
        except urllib3.exceptions.HTTPError as error:
            raise UnreachableError(f"{self._url} did not answer {method} {path}: {_reason(error)}") from None
        if is_answer:
            return response
        try:
            refusal = msgspec.json.decode(body, type=messages.Refusal)
        except UNDECODABLE:
            refusal = messages.Refusal(code="unknown", message=f"HTTP {response.status}")
        if refusal.code == "fenced":
            raise FencedError(refusal.message)
        if refusal.code in ("unauthenticated", "forbidden"):
            raise AccessError(f"{self._url} refused {method} {path}: {refusal.message}", refusal.code)
        if refusal.code == "bad-request":
            raise UsageError(refusal.message)
        if refusal.leader is not None:
            raise NotTakenError(f"{self._url}: {refusal.message}", refusal.leader)
        if response.status >= 500:
            raise UnreachableError(f"{self._url}: {refusal.message}")
        raise RefusedError(refusal.message, refusal.code)

    def close(self) -> None:
        self._pool.clear()


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error)
