"""Types of settings: what a value may be, beyond its Python type.

msgspec checks the bounds of numbers. ``forebay.settings.reading.conversion`` checks the rest, which is in ``Meta.extra``:

- ``positive``: a duration must be longer than 0;
- ``least``: the least size;
- ``check``: a function that raises ValueError with what is allowed;
- ``allowed``: what is allowed, for a value that does not fit the type or its bounds;
- ``secret``: nothing shows the value;
- ``names_secret``: no error shows the value, because a wrong one may be the secret itself instead of its file's path.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta

from forebay.model.bounds import OFFSET_MAX
from forebay.model.identifiers import NAME_RULE, check_name
from forebay.model.topic_pattern import check_pattern
from forebay.model.units import Duration, Size
from forebay.process.secret_file import check_secret_path

#: wal.url of a stream without a WAL
NO_WAL = "none"
#: receiver.source of a stream that reads Kafka
KAFKA_SOURCE = "kafka"


def checked(check: Callable[[Any], object], *, secret: bool = False, names_secret: bool = False) -> Meta:
    """Return the constraint that ``check`` makes: it raises ValueError with what is allowed."""
    return Meta(extra={"check": check, "secret": secret, "names_secret": names_secret})


def allowed(message: str) -> Meta:
    """Return ``message`` as what an error says to be allowed, instead of what the type and its bounds say."""
    return Meta(extra={"allowed": message})


def matching(pattern: str, message: str, *not_these: str) -> Meta:
    """Return the constraint that all of a text matches ``pattern``, and that it is none of ``not_these``."""
    compiled = re.compile(pattern)

    def check(text: str) -> None:
        if not compiled.fullmatch(text) or text in not_these:
            raise ValueError(message)

    return checked(check)


def least(size: int) -> Meta:
    """Return the constraint that a size is at least ``size`` bytes."""
    return Meta(extra={"least": Size(size)})


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _check_finite(number: float) -> None:
    if not math.isfinite(number):
        raise ValueError("write a number, as in 0.2")


Count = Annotated[int, Meta(ge=0)]
PositiveCount = Annotated[int, Meta(ge=1)]
#: number of entries that a driver keeps in memory, each of about 1 kB
KeptCount = Annotated[int, Meta(ge=1, le=100_000)]
Gain = Annotated[float, Meta(ge=0), checked(_check_finite)]
Fraction = Annotated[float, Meta(ge=0, le=1), allowed("write a number from 0 to 1, as in 0.5")]
PositiveDuration = Annotated[Duration, Meta(extra={"positive": True})]
NonEmptySize = Annotated[Size, least(1)]

# ---- names -----------------------------------------------------------------------------------------------------------


def _check_path_part(name: str) -> None:
    try:
        check_name("", name)
    except ValueError:
        raise ValueError(NAME_RULE) from None


def _check_not_blank(name: str) -> None:
    if not name.strip():
        raise ValueError("write a name, or remove the key")


def _check_listener(name: str) -> None:
    module, _, attribute = name.partition(":")
    if not module.strip() or not attribute.strip():
        raise ValueError('write module:Class, as in "watch:Pager"')


_IDENTIFIERS = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_LABEL = r"[A-Za-z0-9_.-]{1,64}=[A-Za-z0-9_.-]{0,64}"

#: name of a stream or a host, which can be a part of a path
PathName = Annotated[str, checked(_check_path_part)]
GroupName = Annotated[str, checked(_check_not_blank)]
TopicName = Annotated[
    str, matching(r"[A-Za-z0-9._-]{1,249}", "a topic's name has 1 to 249 letters, digits, '.', '_' and '-'", ".", "..")
]
#: ``module:function``
FunctionName = Annotated[
    str, matching(f"{_IDENTIFIERS}:{_IDENTIFIERS}", 'write module:function, as in "jobs:process", or a list of them')
]
SourceName = Annotated[
    str,
    matching(f"{KAFKA_SOURCE}|{_IDENTIFIERS}:{_IDENTIFIERS}", 'write "kafka", or module:Class, as in "sources:Tail"'),
]
#: ``module:Class``
ListenerName = Annotated[str, checked(_check_listener)]
ModuleName = Annotated[
    str, matching(r"[^\W\d]\w*", 'write the name of a module or package as it is imported, as in "jobs"')
]
Label = Annotated[str, matching(_LABEL, 'write key=value, as in "rack=a"')]
PreferredHost = Annotated[
    str,
    matching(
        rf"{_LABEL}|[A-Za-z0-9][A-Za-z0-9_.-]{{0,63}}",
        'write a host\'s name, or a label of hosts as key=value, as in "rack=a"',
    ),
]
DnsName = Annotated[
    str, matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}", 'write a host name alone, as in "forebay.example.com"')
]

# ---- files and URLs --------------------------------------------------------------------------------------------------


def _check_absolute(kind: str) -> Callable[[str], None]:
    def check(path: str) -> None:
        if not os.path.isabs(path):
            raise ValueError(f"write an absolute path of a {kind}")

    return check


def _check_data_folder(path: str) -> None:
    _check_absolute("folder")(path)
    if not path.isprintable() or not {"?", "#"}.isdisjoint(path):
        raise ValueError("choose a path without ?, # and unprintable characters: it becomes part of URLs")


def _check_secret_path(written: str) -> None:
    check_secret_path(written or "/")


def _check_url(url: str) -> None:
    if "://" not in url:
        raise ValueError('write it as "file:///folder"')


def _check_store_url(url: str) -> None:
    _check_url(url)
    if url.startswith("file://") and not url.startswith("file:///"):
        raise ValueError('write an absolute path after file://, as in "file:///var/lib/forebay"')


def _check_wal_url(url: str) -> None:
    if url != NO_WAL:
        _check_store_url(url)


def service_address(url: str) -> tuple[str, int]:
    """Return host and port of a service's URL. Raises ValueError with what is allowed."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # a port that is no number, or above 65535
        host, port, parts = None, None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host or port is None or parts.path not in ("", "/") or parts.query:
        raise ValueError('write it as "http://host:port"')
    return host, port


def _check_peer(url: str) -> None:
    if service_address(url)[1] == 0:
        raise ValueError("name the port: no service listens on port 0")


def check_web_hook(url: str) -> None:
    """Raise ValueError, which does not show the url, if a web hook cannot have it."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fine, parts = False, urlsplit("")
    if not fine:
        raise ValueError('write it as "http://host:port/path"')
    if parts.username is not None or parts.password is not None:
        raise ValueError("remove user and password from the URL")


Folder = Annotated[str, checked(_check_absolute("folder"))]
DataFolder = Annotated[str, checked(_check_data_folder)]
#: a file in PEM form, which may have a private key in it
PemFile = Annotated[str, checked(_check_absolute("file"), names_secret=True)]
SecretFile = Annotated[str, checked(_check_secret_path, names_secret=True)]
Url = Annotated[str, checked(_check_url)]
StoreUrl = Annotated[str, checked(_check_store_url)]
WalUrl = Annotated[str, checked(_check_wal_url)]
ServiceUrl = Annotated[str, checked(service_address)]
#: URL at which another process finds a service
PeerUrl = Annotated[str, checked(_check_peer)]
#: may hold a secret in any of its parts
WebHookUrl = Annotated[str, checked(check_web_hook, secret=True)]

# ---- Kafka -----------------------------------------------------------------------------------------------------------

STARTING_OFFSETS = 'allowed are "earliest", "latest", "committed", {timestamp = MS} and {"topic/partition" = OFFSET, …}'
_TOPIC_PARTITION = re.compile(r"[A-Za-z0-9._-]{1,249}/[0-9]{1,9}")


def _check_pattern(pattern: str) -> None:
    if not pattern.startswith("^"):
        raise ValueError("must begin with ^")
    check_pattern(pattern)


def _check_starting_offsets(starting: str | dict[str, int]) -> None:
    if isinstance(starting, str):
        fine = starting in ("earliest", "latest", "committed")
    else:
        names_fine = set(starting) == {"timestamp"} or all(_TOPIC_PARTITION.fullmatch(key) for key in starting)
        fine = bool(starting) and names_fine and all(0 <= value <= OFFSET_MAX for value in starting.values())
        if set(starting) == {"timestamp"} and starting["timestamp"] < 0:
            raise ValueError(f"the timestamp is before 1970, and Kafka has only later times; {STARTING_OFFSETS}")
    if not fine:
        raise ValueError(STARTING_OFFSETS)


TopicPattern = Annotated[str, checked(_check_pattern)]
StartingOffsets = Annotated[str | dict[str, int], checked(_check_starting_offsets), allowed(STARTING_OFFSETS)]
