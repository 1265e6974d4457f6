"""The error of a broken invariant."""

from __future__ import annotations

import re


class InvariantViolation(AssertionError):
    """``invariant``: INV-n, "rule 4", "progress", or "unexpected" and the type of an error."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


def named(error: Exception) -> str:
    """Return the invariant that the error names; INV-7 if it names none."""
    found = re.search(r"INV-\d", str(error))
    return found[0] if found else "INV-7"
