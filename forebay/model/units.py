"""Durations and sizes in the notation of the configuration (``200ms``, ``64MB``), and times as text."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from decimal import Decimal

_DURATIONS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600), "d": Decimal(86400)}
_SIZES = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]+)")

#: 100 years: a longer duration is a mistake, and would overflow the operating system's timeouts
_LONGEST_SECONDS = 36_525 * 86_400
_LARGEST_BYTES = 2**63 - 1


class Duration(float):
    """Seconds, not negative."""


class Size(int):
    """Bytes, not negative."""


def parse_duration(text: object) -> Duration:
    """Return the seconds of a duration: ``"200ms"`` → 0.2. Raises ValueError, which says what is allowed."""
    match = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or match[2] not in _DURATIONS:
        raise ValueError(f'is not a duration: write a number and one of {", ".join(_DURATIONS)}, as in "200ms"')
    seconds = Decimal(match[1]) * _DURATIONS[match[2]]
    if seconds > _LONGEST_SECONDS:
        raise ValueError("is longer than 100 years: write a shorter duration")
    return Duration(seconds)


def parse_size(text: object) -> Size:
    """Return the bytes of a size: ``"64MB"`` → 64000000. Raises ValueError, which says what is allowed."""
    match = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or match[2] not in _SIZES:
        raise ValueError(f'is not a size: write a number and one of {", ".join(_SIZES)}, as in "64MB"')
    size = Decimal(match[1]) * _SIZES[match[2]]
    if size != int(size):
        raise ValueError("is not a whole number of bytes")
    if size > _LARGEST_BYTES:
        raise ValueError("is larger than any store: write a smaller size")
    return Size(size)


def utc_text(time_ms: int, timespec: str = "seconds") -> str:
    """Return a time, in milliseconds since 1970 UTC, as ISO 8601 text with its zone: ``2026-11-23T08:15:00Z``.

    ``timespec``: the precision, as in ``datetime.isoformat``.
    """
    return datetime.fromtimestamp(time_ms / 1000, timezone.utc).isoformat(timespec=timespec).replace("+00:00", "Z")
