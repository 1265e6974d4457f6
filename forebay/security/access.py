"""Tokens and certificates of a process: what a client sends, and what a service requires. ``forebay.security.roles`` decides."""

from __future__ import annotations

import functools
import ipaddress
import logging
import os
import socket
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from forebay.model.errors import SettingsError, StoreError
from forebay.process.os_errors import failure
from forebay.process.secret_file import read_secret, secret_path
from forebay.security.certificates import Certificates
from forebay.security.roles import Caller, Role, Tokens, authorize, parse_tokens

if TYPE_CHECKING:
    from forebay.settings.schema import SecuritySettings, Settings

log = logging.getLogger(__name__)

#: variable with the content of a token file, instead of ``security.token_file``
TOKENS_VARIABLE = "FOREBAY_TOKENS"
_KEY = "security.token_file"


class TokenFile:
    """The tokens of a file or of the environment. When either changes, it is read again. Thread-safe.

    ``written``: the value of ``security.token_file``. If the file becomes unreadable or invalid, the previous tokens stay valid,
    and the log has an error.
    """

    def __init__(self, written: str | None, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment
        self._written = written
        self._lock = threading.Lock()
        self._variable: tuple[str, Tokens] | None = None
        self._seen: tuple[int, int, int] | None = None
        self._tokens: Tokens | None = None
        self._wrong = ""

    @property
    def tokens(self) -> Tokens | None:
        """The current tokens; None if none are configured. Raises SettingsError or StoreError if they were never readable."""
        text = self._environment.get(TOKENS_VARIABLE, "")
        if not text.strip() and self._written is None:
            return None
        with self._lock:
            if text.strip():
                if self._variable is None or self._variable[0] != text:  # a notebook may set it at any time
                    self._variable = text, parse_tokens(text, TOKENS_VARIABLE)
                return self._variable[1]
            assert self._written is not None
            try:
                self._read(secret_path(_KEY, self._written, self._environment))
            except (SettingsError, StoreError) as error:
                if self._tokens is None:
                    raise
                if str(error) != self._wrong:
                    log.error("%s; the previous tokens stay valid", error)
                self._wrong = str(error)
            return self._tokens

    def _read(self, path: Path) -> None:
        try:
            status = path.stat()
        except OSError as error:
            raise failure(f"{_KEY}: cannot read {path}", error) from None
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen == self._seen:
            return
        tokens = parse_tokens(read_secret(_KEY, path), f"{_KEY}: {path}")
        if self._seen is not None:
            log.info("%s: %s has changed: %s", _KEY, path, tokens.summary)
        self._tokens, self._seen, self._wrong = tokens, seen, ""


@functools.lru_cache(maxsize=64)
def _token_file(written: str | None, process: int) -> TokenFile:
    return TokenFile(written)


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The credentials of a client: a token for ``role`` (and ``name``, if the token is bound to one), and a certificate.

    Can be pickled: Spark's tasks receive one with their data. ``token``: used if this process has no token in ``token_file`` or
    the environment. ``repr`` shows no token.
    """

    role: Role = "operator"
    name: str | None = None
    token: str = ""
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @classmethod
    def of(cls, settings: Settings, role: Role, name: str | None = None) -> Access:
        """Raises SettingsError if tokens are configured but none fits ``role`` and ``name``, or a file is unreadable."""
        security = settings.security
        access = cls(
            role=role,
            name=name,
            token_file=security.token_file,
            ca_file=security.ca_file,
            cert_file=security.cert_file,
            key_file=security.key_file,
        )
        access.headers()
        if access.ca_file or access.cert_file:
            access.tls()
        return access

    @classmethod
    def of_tasks(cls, settings: Settings) -> Access:
        """Return the access of tasks, whose hosts may have no token file. Certificates have the same paths there."""
        return cls.of(settings, "task").carried()

    def carried(self) -> Access:
        """Return a copy that contains its token, for processes whose hosts may have no token file. Raises SettingsError."""
        return msgspec.structs.replace(self, token=self._token() or "")

    def headers(self) -> dict[str, str]:
        """Return the headers for a request. Raises SettingsError if tokens are configured but none fits."""
        token = self._token()
        return {"authorization": f"Bearer {token}"} if token else {}

    def _token(self) -> str | None:
        try:
            tokens = _token_file(self.token_file, os.getpid()).tokens
        except (SettingsError, StoreError):
            if not self.token:
                raise
            return self.token
        if tokens is None:
            return self.token or None
        found = tokens.first(self.role, self.name) or self.token
        if not found:
            who = f"{self.role} {self.name!r}" if self.name else self.role
            read_only = tokens.first("reader") is not None and self.role in ("task", "query")
            raise SettingsError(
                f"{_KEY}: no token in {self.token_file or TOKENS_VARIABLE} is for {who}: add a line that "
                f"`forebay token new {self.role}` prints to it, and to the token file of the services"
                + ("; a reader's token only reads status and lag" if read_only else "")
            )
        return found

    def tls(self) -> ssl.SSLContext:
        """Return the context for the next handshake. Raises SettingsError if a file is not a certificate or its key."""
        return _client_certificates(self.ca_file, self.cert_file, self.key_file, os.getpid()).context()

    def __repr__(self) -> str:
        return f"<Access of {self.role}{f' {self.name}' if self.name else ''}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("of", self.role)]


#: without a token; trusts the system's authorities
NO_ACCESS = Access()


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for all clients of a service, authenticated or not (INV-6). The defaults are those of ``[security]``."""

    request_bytes: int = 8_000_000  # maximum of a body
    request_seconds: float = 30.0  # until a request has arrived, from the connection or the previous answer on
    connections_max: int = 1_000

    @classmethod
    def of(cls, security: SecuritySettings) -> ClientLimits:
        return cls(
            request_bytes=int(security.request_size),
            request_seconds=float(security.request_timeout),
            connections_max=security.connections_max,
        )


def hosts_of(settings: Settings) -> frozenset[str]:
    """Return the host names in the services' URLs and of this machine."""
    urls = (*settings.driver.all_urls, settings.driver.url, settings.agent.url)
    names = {urlsplit(url).hostname or "" for url in urls}
    return frozenset({*names, settings.agent.host or "", socket.gethostname()} - {""})


class Guard:
    """What a service requires of its clients. Without settings: nothing."""

    def __init__(self, settings: Settings | None = None) -> None:
        security = settings.security if settings is not None else None
        self.limits = ClientLimits() if security is None else ClientLimits.of(security)
        self._file = TokenFile(security.token_file if security is not None else None, None if security else {})
        #: host names of the services, and of proxies in front of them
        self.hosts = hosts_of(settings) if settings is not None else frozenset()
        self.proxies = frozenset(security.hosts) if security is not None else frozenset()
        self._certificates: Certificates | None = None
        if security is not None and security.cert_file is not None:
            self._certificates = Certificates(
                server=True, ca_file=security.ca_file, cert_file=security.cert_file, key_file=security.key_file
            )

    @property
    def guarded(self) -> bool:
        """Whether clients need a token. Raises SettingsError if the tokens are unreadable."""
        return self._file.tokens is not None

    @property
    def https(self) -> bool:
        """Whether the service has a certificate."""
        return self._certificates is not None

    def authorize(self, authorization: str | None, roles: frozenset[Role]) -> Caller:
        """As ``forebay.security.roles.authorize``, with the current tokens. Cheap: an unchanged file is not read."""
        return authorize(self._file.tokens, authorization, roles)

    def tls(self) -> ssl.SSLContext | None:
        """Return the context for the next handshake; None for plain HTTP. Raises SettingsError if a file is not a certificate or
        its key."""
        return self._certificates.context() if self._certificates is not None else None

    def check_address(self, address: str, where: str) -> None:
        """Raise SettingsError if a service without tokens is reachable from other hosts. ``where``: its URL."""
        if self.guarded or is_loopback(address):
            return
        raise SettingsError(
            f"{where}: without tokens a service only listens on this machine (127.0.0.1): save the output of "
            f"`forebay token new ROLE` in a file and name the file in {_KEY}, or put it into {TOKENS_VARIABLE}"
        )


#: the guard of a service without tokens: every client has all roles
OPEN = Guard()


def announce(guard: Guard, url: str) -> None:
    """Log whether a service at ``url`` has no tokens, which is possible on loopback alone, or sends them unencrypted."""
    if not guard.guarded:
        log.info("%s listens without tokens: every process on this machine has all rights there", url)
    elif url.startswith("http:") and not is_loopback(urlsplit(url).hostname or ""):
        log.warning("%s: tokens and records are sent unencrypted; name a certificate in security.cert_file", url)


def is_loopback(address: str) -> bool:
    """Return whether the numeric ``address`` is reachable only from this machine."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


@functools.lru_cache(maxsize=64)
def _client_certificates(
    ca_file: str | None, cert_file: str | None, key_file: str | None, process: int
) -> Certificates:
    return Certificates(server=False, ca_file=ca_file, cert_file=cert_file, key_file=key_file)
