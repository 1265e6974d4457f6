"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(written: str, known: Iterable[str]) -> str:
    """Return ``"did you mean NAME? "`` with the most similar of ``known``, or "" if none is similar to ``written``."""
    close = difflib.get_close_matches(written, sorted(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}? " if close else ""
