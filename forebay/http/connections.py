"""Kept HTTP connections of a client to services, by the certificates that its :class:`forebay.security.access.Access` has."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import urllib3

from forebay.security.access import Access


class _Connections(urllib3.PoolManager):
    """Each request goes by the certificates as they are then; connections that were made with others are left."""

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
    """Kept connections to services like that at ``url``. Raises SettingsError for certificates that can't be read."""
    if urlsplit(url).scheme == "https":
        access.tls()
    return _Connections(access, timeout)
