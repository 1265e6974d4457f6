"""A pool of HTTP connections to services, with the certificates of :class:`forebay.security.access.Access`."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import urllib3

from forebay.http.arriving import BoundedAnswer
from forebay.security.access import Access


class _Http(urllib3.connection.HTTPConnection):
    response_class = BoundedAnswer


class _Https(urllib3.connection.HTTPSConnection):
    response_class = BoundedAnswer


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Https


class BoundedConnections(urllib3.PoolManager):
    """Connections whose answers have the limits of :class:`forebay.http.arriving.BoundedAnswer`."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}


class _Connections(BoundedConnections):
    """Uses the current certificates for each request; connections made with older ones are not used any more."""

    def __init__(self, access: Access, timeout: urllib3.Timeout | None) -> None:
        super().__init__(maxsize=4, retries=False, timeout=timeout)
        self._access = access

    def connection_from_host(
        self, host: str | None, port: int | None = None, scheme: str | None = "http", pool_kwargs: Any = None
    ) -> urllib3.HTTPConnectionPool:
        if scheme == "https":
            pool_kwargs = {**(pool_kwargs or {}), "ssl_context": self._access.tls()}
        return super().connection_from_host(host, port, scheme, pool_kwargs)


def is_chunked(answer: urllib3.BaseHTTPResponse) -> bool:
    """Return whether the body comes in chunks. Do not read it then: urllib3 accepts a chunk of a negative size, and reads all
    up to the end of the connection. Services of Forebay state the length of each body."""
    return "transfer-encoding" in answer.headers


def connections(url: str, access: Access, timeout: urllib3.Timeout | None = None) -> urllib3.PoolManager:
    """Return a connection pool for a service at ``url``. Raises SettingsError for unreadable certificates."""
    if urlsplit(url).scheme == "https":
        access.tls()
    return _Connections(access, timeout)
