"""Which of the known names somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(written: str, known: Iterable[str]) -> str:
    """``"did you mean NAME? "``, or "" if no known name is like ``written``."""
    close = difflib.get_close_matches(written, sorted(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}? " if close else ""
