"""TLS contexts of certificate files: a changed file makes a new context, and the log warns before a certificate expires."""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

from forebay.model.errors import SettingsError, StoreError
from forebay.process.clock import Clock, SystemClock
from forebay.process.os_errors import failure

log = logging.getLogger(__name__)

#: the log warns about a certificate that expires within this time
EXPIRY_NOTICE = timedelta(days=14)
#: interval between two warnings
NOTICE_SECONDS = 24 * 3600.0

#: state of a file: modification time, size, inode
_FileState = tuple[int, int, int]


class Certificates:
    """The TLS context of ``cert_file`` with ``key_file`` (None: no certificate) and the authorities in ``ca_file`` (None: the
    system's). Thread-safe.

    A server (``server``) with ``ca_file`` requires a certificate of each client. If files change, new connections use a new
    context, and open ones keep theirs. If the files become invalid, for example while they are being replaced, the previous
    context stays, and the log has an error.
    """

    def __init__(
        self,
        *,
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
        self._seen: tuple[_FileState | None, ...] | None = None
        self._context: ssl.SSLContext | None = None
        self._wrong = ""  # the error of the last attempt, if it failed
        self._expires: datetime | None = None
        self._notice_at = 0.0

    def context(self) -> ssl.SSLContext:
        """Return the context for the next handshake. Cheap: unchanged files are not read. Raises SettingsError if the files were
        never valid, StoreError if they could not be read even once."""
        with self._lock:
            seen = tuple(_file_state(path) for path in (self._ca_file, self._cert_file, self._key_file))
            if self._context is None or seen != self._seen:
                self._renew(seen)
            self._warn_of_expiry()
            assert self._context is not None
            return self._context

    def _renew(self, seen: tuple[_FileState | None, ...]) -> None:
        try:
            context = self._made()
        except (SettingsError, StoreError) as error:
            if self._context is None:
                raise
            if str(error) != self._wrong:
                log.error("%s; the previous certificates stay valid", error)
            self._wrong = str(error)
            return  # the next handshake tries again, because the cause may pass without a change of the files
        if self._context is not None:
            log.info("changed certificates are in use: %s", ", ".join(filter(None, (self._cert_file, self._ca_file))))
        self._context, self._seen, self._wrong = context, seen, ""
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

    def _warn_of_expiry(self) -> None:
        now = self._clock.monotonic()
        if self._expires is None or now < self._notice_at:
            return
        self._notice_at = now + NOTICE_SECONDS
        left = self._expires - datetime.fromtimestamp(self._clock.wall_ms() / 1000, timezone.utc)
        if left <= timedelta(0):
            log.error(
                "%s expired at %s, so peers refuse it; replace it by a new certificate",
                self._cert_file,
                self._until,
            )
        elif left < EXPIRY_NOTICE:
            log.warning(
                "%s expires at %s, in %d days; replace it by a new certificate", self._cert_file, self._until, left.days
            )

    @property
    def _until(self) -> str:
        assert self._expires is not None
        return self._expires.strftime("%Y-%m-%d %H:%M UTC")


def _file_state(path: str | None) -> _FileState | None:
    """Return the state of a file; None if there is no path or no file."""
    try:
        status = os.stat(path) if path is not None else None
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino) if status is not None else None


def _expires(cert_file: str) -> datetime | None:
    """Return when the file's first certificate, its own, expires; None if it can't be parsed."""
    from cryptography import x509  # takes a tenth of a second, and most processes have no certificate

    try:
        return x509.load_pem_x509_certificates(Path(cert_file).read_bytes())[0].not_valid_after_utc
    except (OSError, ValueError):
        return None


def _own(context: ssl.SSLContext, cert_file: str, key_file: str | None) -> None:
    key = "security.cert_file"

    def load() -> None:
        # OpenSSL would ask for a passphrase at the terminal; keys have none, and the file's mode protects them
        context.load_cert_chain(cert_file, key_file, password=lambda: "")

    def message(error: ssl.SSLError) -> str:
        reason = (error.reason or "no certificate in the file").lower().replace("_", " ")
        return f"{key}: cannot use {cert_file} and {key_file}: {reason}"

    _load(load, message, f"{key}: {cert_file} or {key_file}")


def _trust(context: ssl.SSLContext, ca_file: str) -> None:
    key = "security.ca_file"
    _load(
        lambda: context.load_verify_locations(ca_file),
        lambda _: f"{key}: {ca_file} has no certificate of an authority in PEM form",
        f"{key}: {ca_file}",
    )


def _load(load: Callable[[], None], message: Callable[[ssl.SSLError], str], what: str) -> None:
    try:
        load()
    except ssl.SSLError as error:
        raise SettingsError(message(error)) from None
    except OSError as error:
        raise failure(f"{what}: cannot be read", error) from None
