"""Watches the files that a contender writes: from their first byte until they have all bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

_LOOK_SECONDS = 0.01
_PATIENCE_SECONDS = 120.0


def landed_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # renamed meanwhile
            continue
    return total


def until(reached: Callable[[], bool], what: str) -> float:
    """Return the monotonic time at which ``reached`` is true, looked at each 10 ms. Raises RuntimeError after two minutes."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    never = threading.Event()
    while not reached():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not reached within {_PATIENCE_SECONDS:.0f} s")
        never.wait(_LOOK_SECONDS)
    return time.monotonic()
