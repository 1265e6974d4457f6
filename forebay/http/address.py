"""URLs of services, as other hosts use them."""

from __future__ import annotations

from urllib.parse import urlsplit

from forebay.model.errors import UsageError


def reached_at(listens_at: str, host: str) -> str:
    """Return the URL for other hosts. A service that listens on every address is reached by its host name."""
    parts = urlsplit(listens_at)
    return f"{parts.scheme}://{host}:{parts.port}" if parts.hostname in ("0.0.0.0", "::") else listens_at  # noqa: S104


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
            and parts._replace(scheme="", netloc="").geturl() in ("", "/")
        )
    except ValueError:
        plain, parts = False, urlsplit("")
    schemes = ("https",) if https else ("http", "https")
    if url and not (plain and parts.scheme in schemes and parts.username is None):
        raise UsageError(f"{whose} is {' or '.join(schemes)}://host:port, not {url!r}")
