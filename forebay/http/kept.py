"""Kept HTTP connections to one service, on the standard library's ``http.client``.

Nearly every command calls a service, and importing urllib3 would make its start slower.
"""

from __future__ import annotations

import socket
import ssl
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from select import POLLIN, poll
from urllib.parse import urlsplit

from forebay.http.arriving import HEAD_BYTES_MAX, BoundedAnswer, SlowAnswerError
from forebay.model.units import utc_text
from forebay.process.clock import SystemClock
from forebay.security.access import Access

#: maximum number of connections that are kept while no request uses them
KEPT_MAX = 4
#: maximum bytes of an answer that is read as a whole; the largest ones name each of 100,000 partitions
ANSWER_BYTES_MAX = 256 << 20
_PART_BYTES = 1 << 20
_PORTS = {"http": 80, "https": 443}
#: OpenSSL's codes of a certificate that is not valid yet, and of an expired one
_OUT_OF_TIME = (9, 10)
#: what a broken connection or the answer of another program raises; ValueError and OverflowError: a chunk of negative size
_BROKEN = (OSError, HTTPException, ValueError, OverflowError)


class NotConnectedError(Exception):
    """No connection could be made, so the service has not seen the request. Its text is the reason."""


class NoAnswerError(Exception):
    """A connection was made, but no complete answer arrived. Its text is the reason."""


class _Connection(HTTPConnection):
    response_class = BoundedAnswer


class Response:
    """The head of an answer. Its body must be read with :meth:`read` or :meth:`part`, or dropped with :meth:`close`."""

    def __init__(self, kept: Kept, *, connection: HTTPConnection, response: BoundedAnswer, idle_seconds: float) -> None:
        self.status = response.status
        self._kept = kept
        self._connection = connection
        self._response = response
        self._idle_seconds = idle_seconds

    def read(self) -> bytes:
        """Return the whole body, and keep the connection for the next request. Raises NoAnswerError."""
        try:
            body = b"".join(self._parts())
        except _BROKEN as error:
            self.close()
            raise NoAnswerError(_reason(error, self._idle_seconds)) from None
        self._kept.give_back(self._connection)
        return body

    def _parts(self) -> Iterator[bytes]:
        """Yield the body. The length that an answer states does not decide how much memory is allocated."""
        self._response.limit(ANSWER_BYTES_MAX + HEAD_BYTES_MAX)  # chunks may be tiny, and have endless extensions
        # a chunk may state a negative size, and `read` would read to the end of the connection then
        read = self._response.read1 if self._response.chunked else self._response.read
        size = 0
        while part := read(_PART_BYTES):
            size += len(part)
            if size > ANSWER_BYTES_MAX:
                raise HTTPException(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
            yield part
        if self._response.length:  # read raises no error at an early end
            raise HTTPException(f"the answer ended {self._response.length} bytes early")

    def part(self, bytes_max: int) -> bytes:
        """Return the next bytes of the body when some have arrived; b"" at its end. Raises NoAnswerError."""
        self._response.restart()
        try:
            part = self._response.read1(bytes_max)
        except _BROKEN as error:
            raise NoAnswerError(_reason(error, self._idle_seconds)) from None
        if not part and self._response.length:  # read1 raises no error at an early end
            raise NoAnswerError(f"the answer ended {self._response.length} bytes early")
        return part

    def close(self) -> None:
        """Close the connection. Unread bytes of the body are lost."""
        self._response.close()
        self._connection.close()


class Kept:
    """Connections to the service at ``url``. Each is used by one request at a time. Thread-safe.

    An unused connection is kept for the next request. It is closed instead if the certificates have changed since it was made,
    or if the service has closed it. A request is never sent twice.
    """

    def __init__(self, url: str, access: Access, connect_seconds: float) -> None:
        """Raises SettingsError for unreadable certificates."""
        scheme, self._host, self._port, self._path = _address(url)
        self._access = access if scheme == "https" else None
        self._connect_seconds = connect_seconds
        self._lock = threading.Lock()
        self._free: list[tuple[HTTPConnection, ssl.SSLContext | None]] = []
        weakref.finalize(self, _close_all, self._free)  # a client that is never closed leaves no connection open
        self._tls()

    def request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], idle_seconds: float
    ) -> Response:
        """Send a request, and return its answer when its head has arrived. ``idle_seconds``: the maximum time without a byte, and
        without a minimum of bytes (:mod:`forebay.http.arriving`).

        Raises NotConnectedError, NoAnswerError; SettingsError for certificates that were never readable.
        """
        connection = self._taken() or self._connected()
        try:
            connection.sock.settimeout(idle_seconds)
            # the service may have answered before it closed the connection, as it refuses a body that is too large
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._path + path, body, headers)
            response = connection.getresponse()
            assert isinstance(response, BoundedAnswer)
        except _BROKEN as error:
            connection.close()
            raise NoAnswerError(_reason(error, idle_seconds)) from None
        return Response(self, connection=connection, response=response, idle_seconds=idle_seconds)

    def give_back(self, connection: HTTPConnection) -> None:
        """Keep a connection whose answer has been read. Called by :class:`Response`."""
        if connection.sock is None:  # the service ended it with its answer
            return
        tls = connection.sock.context if isinstance(connection.sock, ssl.SSLSocket) else None
        with self._lock:
            if len(self._free) < KEPT_MAX:
                self._free.append((connection, tls))
                return
        connection.close()

    def close(self) -> None:
        """Close the connections that no request uses."""
        with self._lock:
            _close_all(self._free)

    def _tls(self) -> ssl.SSLContext | None:
        return self._access.tls() if self._access is not None else None

    def _taken(self) -> HTTPConnection | None:
        """Return a kept connection that the service has not closed; None without one."""
        current = self._tls()
        while True:
            with self._lock:
                if not self._free:
                    return None
                connection, tls = self._free.pop()
            if tls is current and not _is_readable(connection.sock):
                return connection
            connection.close()

    def _connected(self) -> HTTPConnection:
        """Raises NotConnectedError, NoAnswerError."""
        if not self._host:
            raise NotConnectedError("not the URL of a service, as in http://HOST:PORT")
        tls = self._tls()
        try:
            sock = socket.create_connection((self._host, self._port), self._connect_seconds)
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
            raise NotConnectedError(_reason(error, self._connect_seconds)) from None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                # certificates name hosts without a final dot, and addresses without a zone
                sock = tls.wrap_socket(sock, server_hostname=self._host.partition("%")[0].rstrip("."))
        except OSError as error:
            sock.close()
            raise NoAnswerError(_reason(error, self._connect_seconds)) from None
        connection = _Connection(self._host, self._port)
        connection.auto_open = 0  # otherwise http.client could send a request again, or without TLS
        connection.sock = sock
        return connection


def _close_all(free: list[tuple[HTTPConnection, ssl.SSLContext | None]]) -> None:
    while free:
        free.pop()[0].close()


def _address(url: str) -> tuple[str, str, int, str]:
    """Return scheme (in lower case), host, port and path of ``url``; the host is empty if it is not the URL of a service."""
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.scheme in _PORTS else None
        return parts.scheme, host or "", parts.port or _PORTS.get(parts.scheme, 0), parts.path
    except ValueError:  # not a valid port or address
        return "", "", 0, ""


def _is_readable(sock: socket.socket) -> bool:
    """Return whether bytes or the end of the connection have arrived although no request is open."""
    waiting = poll()
    waiting.register(sock, POLLIN)
    return bool(waiting.poll(0))


def _reason(error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError) and not isinstance(error, SlowAnswerError):
        return f"timed out after {seconds:g} s"
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _OUT_OF_TIME:
        now = utc_text(SystemClock().wall_ms())
        return f"{error.strerror}; this host's clock says {now}: correct it, or renew the certificate"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
