"""Values as a TOML file writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from forebay.model.units import Duration, Size

#: units of a duration in milliseconds and of a size in bytes, the largest first
_DURATION_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
_SIZE_UNITS = (
    ("TB", 10**12), ("TiB", 2**40), ("GB", 10**9), ("GiB", 2**30), ("MB", 10**6), ("MiB", 2**20), ("KB", 10**3), ("KiB", 2**10),
    ("B", 1),
)  # fmt: skip


def toml_text(value: Any) -> str:
    """Return ``value`` as TOML writes it, a duration or size in the largest unit that divides it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Duration):
        return f'"{_in_units(round(value * 1000), _DURATION_UNITS, "0s")}"'
    if isinstance(value, Size):
        return f'"{_in_units(int(value), _SIZE_UNITS, "0B")}"'
    if isinstance(value, str):
        return msgspec.json.encode(value).decode()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_text, value))}]"
    if isinstance(value, Mapping):
        return (
            f"{{ {', '.join(f'{toml_text(key)} = {toml_text(of)}' for key, of in value.items())} }}" if value else "{}"
        )
    return str(value)


def _in_units(amount: int, units: tuple[tuple[str, int], ...], nothing: str) -> str:
    return next((f"{amount // size}{unit}" for unit, size in units if amount and amount % size == 0), nothing)
