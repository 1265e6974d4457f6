"""Where the driver of an intake is, and the token and certificates for it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from forebay.security.access import Access
from pyspark_forebay.intake.client import Intake
from pyspark_forebay.options.values import tracker_urls


@dataclass(frozen=True, slots=True)
class IntakeAccess:
    """The intake through which records are read.

    ``url``: the url of its driver; with standbys all urls, separated by commas. ``token_file``: a file with a ``query``
    token, which may also be in the environment variable ``FOREBAY_TOKENS``. ``ca_file``: the authorities that sign the
    driver's certificate. ``cert_file``, ``key_file``: the caller's own certificate and its key. All three are PEM files.
    ``timeout_seconds``: how long the driver may be unavailable.
    """

    url: str
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    timeout_seconds: float = 120.0


class IntakeEndpoint(msgspec.Struct, frozen=True):
    """An :class:`IntakeAccess` with its files read. It is pickled to tasks; ``access`` omits the token from its ``repr``."""

    urls: tuple[str, ...]
    access: Access
    patience_seconds: float

    @classmethod
    def of(cls, tracker: IntakeAccess | str | None) -> IntakeEndpoint | None:
        """Read the token file and return the endpoint; None if ``tracker`` is None or "", which means that only Kafka
        is read.

        ``tracker``: an access, or only the url. Raises UsageError, SettingsError.
        """
        if not tracker:
            return None
        given = IntakeAccess(tracker) if isinstance(tracker, str) else tracker
        access = Access(
            role="query",
            token_file=given.token_file,
            ca_file=given.ca_file,
            cert_file=given.cert_file,
            key_file=given.key_file,
        )
        return cls(tracker_urls(given.url, "tracker"), access.carried(), given.timeout_seconds)

    def connect(self, patience_seconds: float | None = None) -> Intake:
        """Return a client, which the caller closes. ``patience_seconds``: None for the access's ``timeout_seconds``."""
        return Intake(self.urls, self.access, self.patience_seconds if patience_seconds is None else patience_seconds)
