"""The secrets that the configuration, the files that it names, and the environment hold, to be removed from other texts."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from forebay.model.errors import SettingsError, StoreError
from forebay.process.secret_file import read_secret, secret_path
from forebay.security.roles import ROLES
from forebay.settings.redaction import is_secret_name

#: a shorter text is no secret worth the name, and would be found everywhere inside other text
LENGTH_MIN = 4
#: settings that name files whose contents are secrets
_SECRET_FILES = (("security", "token_file"), ("wal", "key_file"))
#: settings whose whole value is a secret
_SECRET_KEYS = frozenset({"web_hook"})
#: name=value in an option such as spark.driver.extraJavaOptions or sasl.oauthbearer.config
_ASSIGNED = re.compile(r"(?<![\w.-])(?P<name>[\w.-]{1,120})=([^\s,;]+)")
_URL = re.compile(r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}://[^\s\"'<>]+", re.IGNORECASE)


def known_secrets(raw: Mapping[str, Any], environment: Mapping[str, str]) -> frozenset[str]:
    """Return the secrets in ``raw``, a configuration as TOML gives it, in the files that it names, and in ``environment``.

    Each one is also returned in the forms in which other texts may have it: in JSON, in a URL, in base64. A file that can't be
    read has no secret that this process could reveal.
    """
    found = {*_in_values("", raw), *_in_values("", dict(environment)), *_in_files(raw, environment)}
    return frozenset(form for secret in found if len(secret) >= LENGTH_MIN for form in _forms(secret))


def _in_values(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _in_values(f"{name}.{key}" if name and is_secret_name(name) else str(key), inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _in_values(name, inner)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if is_secret_name(name):
            yield str(value)
    elif isinstance(value, str):
        if is_secret_name(name) or name in _SECRET_KEYS:
            yield value
            for line in value.splitlines():  # tokens, keys and credentials
                yield from _parts(line)
        for url in _URL.findall(value):
            yield from _in_url(url)
        yield from (found[2].strip("\"'") for found in _ASSIGNED.finditer(value) if is_secret_name(found["name"]))


def _in_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    if parts.password:
        yield parts.password
    elif parts.username and parts.scheme in ("http", "https"):
        yield parts.username


def _in_files(raw: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[str]:
    for section, key in _SECRET_FILES:
        table = raw.get(section, {})
        written = environment.get(f"FOREBAY__{section.upper()}__{key.upper()}") or (
            table.get(key) if isinstance(table, Mapping) else None
        )
        if not isinstance(written, str) or not written:
            continue
        try:
            text = read_secret(f"{section}.{key}", secret_path(f"{section}.{key}", written, environment))
        except (SettingsError, StoreError):
            continue
        for line in text.splitlines():
            parts = list(_parts(line))
            # role and token, or key id and key
            yield from parts[-1:] if not line.lstrip().startswith("#") else parts


def _parts(line: str) -> Iterator[str]:
    """Yield the parts of a line, without roles of tokens such as ``reader`` and ``receiver:r1``. The last word may be a token
    that begins like a role."""
    *parts, last = line.split() or [""]
    yield from (word for word in parts if word.partition(":")[0] not in ROLES)
    if last not in ROLES:
        yield last


def _forms(secret: str) -> Iterator[str]:
    yield secret
    yield json.dumps(secret)[1:-1]
    yield quote(secret, safe="")
    yield unquote(secret)
    yield base64.b64encode(secret.encode()).decode()
