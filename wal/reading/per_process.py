"""Clients and keys that a process opens once: Spark's workers fork, and no connection or client survives a fork."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

Opened = TypeVar("Opened")
_opened: dict[tuple[int, str], Any] = {}


def once(name: str, make: Callable[[], Opened]) -> Opened:
    """Return what ``make`` made under ``name`` in this process; call it at the first use."""
    key = (os.getpid(), name)
    if key not in _opened:
        _opened[key] = make()
    opened: Opened = _opened[key]
    return opened


def forget(name: str) -> None:
    """Discard what was made under ``name``, so that the next use makes it again."""
    _opened.pop((os.getpid(), name), None)
