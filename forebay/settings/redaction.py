"""Removal of secrets from settings and texts that people and programs may read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

#: what is shown instead of a secret
HIDDEN = "(hidden)"

#: part of the name of a pass-through option or environment variable that holds a secret
_NAME_PART = (
    r"pass(?:word|wd|phrase|code)|secret|token|credential|jaas|private|signature|authorization|cookie"
    r"|(?:access|account|api|encryption|shared|storage)[._-]?key|connection[._-]?string|oauthbearer\.config|\.pem\b"
    r"|user[._-]info|client[._-]assertion|(?<![a-z0-9])(?:sas|sig)(?![a-z0-9])|[._-]pwd(?![a-z0-9])"
)
_SECRET_NAME = re.compile(rf"{_NAME_PART}|(?:^|[._])key$", re.IGNORECASE)
#: names that match, but hold a path or an address
_NO_SECRET_NAME = re.compile(r"(?:[._](?:file|location|path|endpoint\.url|timeout|interval))$", re.IGNORECASE)
#: user and password in a URL; a URL of another scheme than HTTP may name a container before the @. A password may have an @ and,
#: as secrets of S3 do, a /; a port and a path are none
_CREDENTIALS = re.compile(
    r"(https?://|(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,30}://(?=[^\s/@:]{0,300}:))"
    r"(?:[^\s/\"']{1,2000}|[^\s/@]{1,2000}|[^\s/@:?#]{1,300}:(?![0-9]{1,5}[/,?#])[^\s@\"']{1,300})@",
    re.IGNORECASE,
)
#: a JSON Web Token
_JWT = re.compile(r"(?<![\w.-])eyJ[\w-]{8,4000}\.[\w-]{8,8000}\.[\w-]{0,2000}")
#: name=value or name: value in a text, as in -Djavax.net.ssl.keyStorePassword=… or {"password": "…"}, also in a JSON text in JSON
_ASSIGNED = re.compile(
    rf"(?<![\w.-])([\w.-]{{0,80}}?(?:{_NAME_PART})[\w.-]{{0,80}})((?:\\*[\"'])?)(\s*[=:]\s*)"
    rf"(\\+\".*?\\+\"|\"(?:\\.|[^\"\\])*\"|'[^']*'|(?:[^\s,;&\"'}}\]\\]|\\(?![\"']))+)",
    re.IGNORECASE,
)
#: in a URL or connection string; the environment's variable PWD is a folder
_PWD = re.compile(r"([;?&]pwd\s*=\s*)[^\s;&\"']+", re.IGNORECASE)
_BEARER = re.compile(r"(\b(?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE)
_PEM = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)


def is_secret_name(name: str) -> bool:
    """Return whether an option or environment variable of this name can hold a secret."""
    return _SECRET_NAME.search(name) is not None and _NO_SECRET_NAME.search(name) is None


def shown_value(name: str, value: Any) -> Any:
    """Return ``value`` of the option ``name`` without secrets: HIDDEN as a whole, or without the parts that can be secret."""
    if value not in (None, "") and is_secret_name(name):
        return HIDDEN
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {key: shown_value(str(key), of) for key, of in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown_value(name, item) for item in value]
    return value


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """Return ``text`` with HIDDEN in place of each of ``secrets``, credentials in URLs, and values with secret names."""
    for secret in sorted(set(secrets) - {""}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _PEM.sub(rf"\1{HIDDEN}", text)
    text = _CREDENTIALS.sub(rf"\1{HIDDEN}@", text)
    text = _JWT.sub(HIDDEN, text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _PWD.sub(rf"\1{HIDDEN}", text)
    return _ASSIGNED.sub(_without_value, text)


def _without_value(found: re.Match[str]) -> str:
    name, quote, sign, value = found.groups()
    quoted = re.match(r"\\*[\"']", value)
    # an unquoted value of JSON is a number, a truth value, or a list or table, whose own names are looked at
    if HIDDEN in value or not is_secret_name(name) or (quote and not quoted):
        return found[0]
    around = quoted[0] if quoted else ""
    return f"{name}{quote}{sign}{around}{HIDDEN}{around}"
