"""Certificates at work: what a handshake is made with, taken up anew when the files change, and named before they expire."""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

from forebay.model.errors import SettingsError
from forebay.process.clock import Clock, SystemClock

log = logging.getLogger(__name__)

#: a certificate that ends sooner is named in the log
EXPIRY_NOTICE = timedelta(days=14)
#: and named again after so long
NOTICE_SECONDS = 24 * 3600.0

#: of a file: modified, size, inode
_Look = tuple[int, int, int]


class Certificates:
    """The ssl context of ``cert_file`` with its ``key_file``, and of the authorities in ``ca_file``; None: none of its own, the
    system's. A server (``server``) that has authorities wants a certificate of each client.

    Files that have changed make a new context for the connections that come; those that are open keep theirs. Files that can't
    be used any more (one of two is written by now) leave the context as it was, and the log says so. Thread-safe.
    """

    def __init__(
        self,
        server: bool,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._server = server
        self._ca_file = ca_file
        self._cert_file = cert_file
        self._key_file = key_file
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._seen: tuple[_Look | None, ...] | None = None
        self._context: ssl.SSLContext | None = None
        self._expires: datetime | None = None
        self._notice_at = 0.0

    def context(self) -> ssl.SSLContext:
        """For the next handshake. Cheap: the files are looked at, not read. Raises SettingsError if they could never be used."""
        with self._lock:
            seen = tuple(_look(path) for path in (self._ca_file, self._cert_file, self._key_file))
            if self._context is None or seen != self._seen:
                self._renew(seen)
            self._tell_of_expiry()
            assert self._context is not None
            return self._context

    def _renew(self, seen: tuple[_Look | None, ...]) -> None:
        try:
            context = self._made()
        except SettingsError as error:
            if self._context is None:
                raise
            self._seen = seen
            log.error("%s; the certificates that were read before still count", error)
            return
        if self._context is not None:
            log.info("certificates have changed: %s", ", ".join(filter(None, (self._cert_file, self._ca_file))))
        self._context, self._seen = context, seen
        self._expires = _expires(self._cert_file) if self._cert_file is not None else None
        self._notice_at = self._clock.monotonic()

    def _made(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if self._server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._cert_file is not None:
            _own(context, self._cert_file, self._key_file)
        if self._ca_file is not None:
            _trust(context, self._ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
        elif not self._server:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return context

    def _tell_of_expiry(self) -> None:
        now = self._clock.monotonic()
        if self._expires is None or now < self._notice_at:
            return
        self._notice_at = now + NOTICE_SECONDS
        left = self._expires - datetime.fromtimestamp(self._clock.wall_ms() / 1000, timezone.utc)
        if left <= timedelta(0):
            log.error(
                "%s expired at %s: nobody believes it any more; put a new one in its place",
                self._cert_file,
                self._until,
            )
        elif left < EXPIRY_NOTICE:
            log.warning(
                "%s expires at %s, in %d days: put a new one in its place", self._cert_file, self._until, left.days
            )

    @property
    def _until(self) -> str:
        assert self._expires is not None
        return self._expires.strftime("%Y-%m-%d %H:%M UTC")


def _look(path: str | None) -> _Look | None:
    """None: none is named, or it is not there."""
    try:
        status = os.stat(path) if path is not None else None
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino) if status is not None else None


def _expires(cert_file: str) -> datetime | None:
    """When the first certificate of the file, its own, ends; None where that can't be told."""
    from cryptography import x509  # takes a tenth of a second, and most processes have no certificate

    try:
        return x509.load_pem_x509_certificates(Path(cert_file).read_bytes())[0].not_valid_after_utc
    except (OSError, ValueError):
        return None


def _own(context: ssl.SSLContext, cert_file: str, key_file: str | None) -> None:
    key = "security.cert_file"

    def load() -> None:
        # a key with a passphrase would be asked for at the terminal: it has none, and the file is guarded by its mode
        context.load_cert_chain(cert_file, key_file, password=lambda: "")

    def words(error: ssl.SSLError) -> str:
        reason = (error.reason or "no certificate in it").lower().replace("_", " ")
        return f"{key}: {cert_file} and {key_file} can't be used: {reason}"

    _load(load, words, f"{key}: {cert_file} or {key_file}")


def _trust(context: ssl.SSLContext, ca_file: str) -> None:
    key = "security.ca_file"
    _load(
        lambda: context.load_verify_locations(ca_file),
        lambda _: f"{key}: {ca_file} has no certificate of an authority in PEM form",
        f"{key}: {ca_file}",
    )


def _load(load: Callable[[], None], words: Callable[[ssl.SSLError], str], what: str) -> None:
    try:
        load()
    except ssl.SSLError as error:
        raise SettingsError(words(error)) from None
    except OSError as error:
        raise SettingsError(f"{what} can't be read: {error.strerror}") from None
