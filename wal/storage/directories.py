"""Durable names: a new or renamed file survives a power loss only if the folders on its path are synced."""

from __future__ import annotations

import os
from contextlib import suppress


def sync_directory(folder: str | os.PathLike[str]) -> None:
    """Make the names in ``folder`` durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_above(folder: str | os.PathLike[str]) -> None:
    """Make the name of ``folder`` durable, and those of the folders above it on the same file system, the topmost first.

    Folders that this process must not open are left out: others made them. Raises OSError.
    """
    for above in _above(os.path.abspath(folder)):
        with suppress(PermissionError):
            sync_directory(above)


def _above(folder: str) -> list[str]:
    found: list[str] = []
    device = os.stat(folder).st_dev
    place = os.path.dirname(folder)
    while place not in found and os.stat(place).st_dev == device:
        found.append(place)
        place = os.path.dirname(place)
    return found[::-1]
