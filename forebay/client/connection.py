"""The connection of a client to the driver that leads a stream."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar
from urllib.parse import urlencode

from typing_extensions import Self

from forebay import messages as m
from forebay.http.client import TIMEOUT_SECONDS
from forebay.http.driver_client import DriverClient
from forebay.security.access import Access
from forebay.security.roles import Role
from forebay.settings.schema import Settings

Answer = TypeVar("Answer", bound=m.Message)


class _Token(Access, frozen=True):
    """Access with a token that was given as such, whatever the environment has."""

    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}


class ClientConnection:
    """The connection that all parts of the client share, with its life cycle."""

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        token: str | None = None,
        token_file: str | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        role: Role = "operator",
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """``url``: of the driver; of all drivers if there are standbys.

        ``token``: for ``Authorization``. Without it, the token of ``role`` in ``token_file`` or in ``$FOREBAY_TOKENS`` is
        used, if any. ``ca``: file with the authorities that sign the driver's certificate; by default the system's. ``cert``,
        ``key``: files of the client's own certificate.
        """
        kind = Access if token is None else _Token
        access = kind(role=role, token=token or "", token_file=token_file, ca_file=ca, cert_file=cert, key_file=key)
        urls = (url,) if isinstance(url, str) else tuple(url)
        self._driver = DriverClient(urls, timeout_seconds=timeout_seconds, access=access)

    @classmethod
    def of(cls, settings: Settings, *, role: Role = "operator", timeout_seconds: float = TIMEOUT_SECONDS) -> Self:
        """Return the client of the stream that ``settings`` configure. Raises SettingsError if a token is configured but none
        is of ``role``."""
        client = cls.__new__(cls)
        client._driver = DriverClient.of(settings, timeout_seconds, role)
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._driver.close()

    @property
    def url(self) -> str:
        """The URL of the driver to which the next request goes first."""
        return self._driver.url

    def _get(self, path: str, answer: type[Answer], **query: object) -> Answer:
        wanted = {name: value for name, value in query.items() if value not in ("", None)}
        return self._driver.get(f"{path}?{urlencode(wanted)}" if wanted else path, answer)
