"""URLs of services, as other hosts use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from forebay.model.errors import UsageError
from forebay.security.access import is_loopback

if TYPE_CHECKING:
    from forebay.settings.schema import Settings


def reached_at(listens_at: str, host: str) -> str:
    """Return the URL for other hosts. A service that listens on every address is reached by its host name."""
    parts = urlsplit(listens_at)
    return f"{parts.scheme}://{host}:{parts.port}" if parts.hostname in ("0.0.0.0", "::") else listens_at  # noqa: S104  only compared


def loopback_note(settings: Settings, service: Literal["driver", "agent"]) -> str:
    """Return why other hosts can't reach ``service`` of this host, although driver.urls names other hosts; "" if they can.

    It is only a note: the service may not run on this host, or a proxy may be in front of it.
    """
    url = settings.driver.url if service == "driver" else settings.agent.url
    others = [other for other in settings.driver.urls if not _on_loopback(other)]
    if not others or not _on_loopback(url):
        return ""
    missed = {
        "driver": f"other hosts can't reach a driver of this host, although driver.urls names {', '.join(others)}",
        "agent": "tasks on other hosts can't read blocks from an agent of this host",
    }
    parts = urlsplit(url)
    anywhere = f"{parts.scheme}://0.0.0.0:{parts.port}"
    return f'{service}.url = "{url}" is on loopback, so {missed[service]}; if one runs here, set {service}.url = "{anywhere}"'


def _on_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "localhost" or is_loopback(host)


def check_service_url(whose: str, url: str, https: bool) -> None:
    """Raise UsageError if ``url``, which a client reports as its own, is not the address of a service; "" is none.

    ``whose``: names the URL in the error. ``https``: only https is allowed. Others send their tokens to this URL, so it must be
    protected in the same way as the driver's URL.
    """
    try:
        parts = urlsplit(url)
        plain = (
            parts.hostname is not None
            and parts.port != 0
            # compared with the text, because urlsplit ignores some characters: line ends, and spaces before the scheme
            and url.lower().removesuffix("/") == f"{parts.scheme}://{parts.netloc}".lower()
            and url.isprintable()
            and not {" ", "\\"} & set(url)
        )
    except ValueError:
        plain, parts = False, urlsplit("")
    schemes = ("https",) if https else ("http", "https")
    if url and not (plain and parts.scheme in schemes and parts.username is None):
        raise UsageError(f"{whose} must be {' or '.join(f'{scheme}://host:port' for scheme in schemes)}, not {url!r}")
