"""Exhaustive ``match`` statements, proved by the type checker. ``typing`` has the same function from Python 3.11 on."""

from __future__ import annotations

from typing import NoReturn


def assert_never(value: NoReturn) -> NoReturn:
    """Raise ``AssertionError``. As the last case of a ``match``, mypy reports each type that has no case of its own."""
    raise AssertionError(f"no case for {value!r}")
