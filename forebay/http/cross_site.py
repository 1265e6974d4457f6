"""Refuses, by their headers, requests that a browser sends for a page of another site. No I/O.

A service without tokens trusts every request, and a browser on the same machine can reach it for any page that it shows. There
are two such attacks:

- *Cross-site request*: a page of another site sends a request. The browser names the site in ``Origin`` and ``Sec-Fetch-Site``.
  Without a preflight request, a browser sends only a GET, a HEAD, or a POST with the content type of a form. So a POST needs
  ``application/json``.
- *DNS rebinding*: an attacker makes the name of the page's site resolve to this machine. The browser then takes
  the service for that site, and ``Host`` has the site's name. Only names are resolved, so a numeric address in ``Host`` is
  harmless.

With tokens, rebinding gains nothing, since no browser has the token. Then every ``Host`` is accepted.

A link on another site may lead to a service's own pages. They hold no data, and no other site can put them into a frame. The
browser marks such a request as a navigation to a document, which a page cannot pretend.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit

import msgspec

JSON = "application/json"
#: values of Sec-Fetch-Site for the service's own pages, and for an address that the user typed
_OWN_SITE = ("same-origin", "none")
_HOST = re.compile(r"[A-Za-z0-9._-]+(:[0-9]*)?|\[[A-Za-z0-9:.%]+\](:[0-9]*)?")
#: number of Host headers whose verdict is kept: a service has few names, and a receiver sends the same one all the time
HOSTS_KEPT = 16
_LOCAL_NAMES = ("localhost", "ip6-localhost", "ip6-loopback")


class Refused(msgspec.Struct, frozen=True):
    """The refusal of a request that a browser may have sent for another site."""

    status: int
    code: str
    message: str


class CrossSite:
    """Decides for one service which requests it refuses.

    ``hosts``: its host names, besides the loopback names and all numeric addresses. ``proxies``: names of proxies in front of it,
    whose pages count as its own. ``guarded``: whether it requires tokens. ``pages``: the paths of its pages without data.
    """

    def __init__(
        self, hosts: Iterable[str], *, proxies: Iterable[str], guarded: bool, pages: Iterable[str] = ()
    ) -> None:
        self._pages = frozenset(pages)
        self._proxies = frozenset(_plain(host) for host in proxies)
        self._hosts = self._proxies | {_plain(host) for host in hosts}
        self._guarded = guarded
        self._is_own = lru_cache(HOSTS_KEPT)(self._is_service_host)

    def check(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> Refused | None:
        """Return the refusal; None if the request may be served. ``headers``: as in ASGI, with names in lower case."""
        hosts: list[str] = []
        origins: list[str] = []
        sites: list[str] = []
        types: list[str] = []
        fetched: dict[bytes, str] = {}
        for name, value in headers:
            if name == b"host":
                hosts.append(value.decode("latin-1"))
            elif name == b"origin":
                origins.append(value.decode("latin-1"))
            elif name == b"sec-fetch-site":
                sites.append(value.decode("latin-1"))
            elif name in (b"sec-fetch-mode", b"sec-fetch-dest"):
                fetched[name] = value.decode("latin-1").strip().lower()
            elif name == b"content-type":
                types.append(value.decode("latin-1"))
        if len(hosts) != 1:
            return Refused(400, "bad-request", "the request needs one Host header")
        if not self._guarded and not self._is_own(hosts[0]):
            return Refused(
                421,
                "bad-request",
                f"host {_shown(hosts[0])} is not a name of this service, which requires no tokens: add it to "
                f"security.hosts, or use an address such as 127.0.0.1",
            )
        for origin in origins:
            if not self._is_own_origin(origin, hosts[0]):
                return Refused(
                    403,
                    "forbidden",
                    f"origin {_shown(origin)} is another site than {_shown(hosts[0])}: its pages may not send requests "
                    f"here; if it is a proxy of this service, add its host name to security.hosts",
                )
        followed = fetched == {b"sec-fetch-mode": "navigate", b"sec-fetch-dest": "document"}
        for site in () if followed and method == "GET" and path in self._pages else sites:
            if site.strip().lower() not in _OWN_SITE:
                return Refused(
                    403,
                    "forbidden",
                    f"Sec-Fetch-Site {_shown(site)}: a page of another site may not send requests here",
                )
        if method == "POST" and types != [JSON] and [_media_type(written) for written in types] != [JSON]:
            return Refused(
                415,
                "bad-request",
                f"a POST needs the header `content-type: {JSON}`, not {_shown(', '.join(types)) if types else 'none'}",
            )
        return None

    def _is_service_host(self, host: str) -> bool:
        name = _name(host)
        return name in _LOCAL_NAMES or name in self._hosts or _is_address(name)

    def _is_own_origin(self, origin: str, host: str) -> bool:
        scheme, separator, place = origin.strip().lower().partition("://")
        if not separator or scheme not in ("http", "https"):
            return False  # also "null": a file, or a page without rights
        return place == host.strip().lower() or _name(place) in self._proxies


def _name(written: str) -> str:
    """Return the name in ``name``, ``name:port`` or ``[address]:port``; "" for anything else."""
    if _HOST.fullmatch(written) is None:
        return ""
    try:
        return _plain(urlsplit(f"//{written}").hostname or "")
    except ValueError:
        return ""


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _media_type(written: str) -> str:
    return written.partition(";")[0].strip().lower()


def _shown(value: str) -> str:
    """Return ``value`` short and escaped, for a terminal or log."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "...'"
