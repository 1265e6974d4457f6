"""Foreign text for people: names, errors and records may hold control characters."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

#: control characters except line feed, and characters that change the direction of text or are invisible
_UNSAFE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)


def split_url(url: str) -> SplitResult:
    """Return the parts of ``url``; empty ones if it is no URL: its port is no number, or its brackets hold no IPv6 address."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError too
    except ValueError:
        return urlsplit("")
    return parts


def printable(text: str) -> str:
    r"""Return ``text`` with each unsafe character as its escape, such as ``\x1b``; line feeds stay."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    r"""Return ``text`` as :func:`printable`, with line feeds as ``\n`` too."""
    return printable(text).replace("\n", "\\n")


def printable_json(text: str) -> str:
    r"""Return a JSON document with each unsafe character in its texts as an escape of JSON, such as ``\u009b``."""
    return _UNSAFE.sub(lambda found: "".join(f"\\u{unit:04x}" for unit in _units(found[0])), text)


def _units(character: str) -> tuple[int, ...]:
    """Return the UTF-16 code units of a character."""
    data = character.encode("utf-16-be", "surrogatepass")
    return tuple(int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2))
