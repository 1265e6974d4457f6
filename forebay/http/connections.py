"""A pool of HTTP connections to services, with the certificates of :class:`forebay.security.access.Access`."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import urllib3

from forebay.security.access import Access


class _Connections(urllib3.PoolManager):
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


def connections(url: str, access: Access, timeout: urllib3.Timeout | None = None) -> urllib3.PoolManager:
    """Return a connection pool for a service at ``url``. Raises SettingsError for unreadable certificates."""
    if urlsplit(url).scheme == "https":
        access.tls()
    return _Connections(access, timeout)
