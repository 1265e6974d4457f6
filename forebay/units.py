"""Durations and sizes as people write them: ``200ms``, ``64MB``."""

from __future__ import annotations

import re

_DURATIONS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


class Duration(float):
    """Seconds, not negative."""


class Size(int):
    """Bytes, not negative."""


def parse_duration(text: str) -> Duration:
    """``"200ms"`` → 0.2. Raises ValueError that says what is allowed."""
    match = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or match[2] not in _DURATIONS:
        raise ValueError(f"{text!r} is no duration: write a number and one of {', '.join(_DURATIONS)}, as in \"200ms\"")
    return Duration(float(match[1]) * _DURATIONS[match[2]])


def parse_size(text: str) -> Size:
    """``"64MB"`` → 64000000. Raises ValueError that says what is allowed."""
    match = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or match[2] not in _SIZES:
        raise ValueError(f"{text!r} is no size: write a number and one of {', '.join(_SIZES)}, as in \"64MB\"")
    return Size(float(match[1]) * _SIZES[match[2]])
