"""Foreign text on a terminal: names, errors and records may hold control characters."""

from __future__ import annotations

from forebay.model.text import one_line, printable

__all__ = ["one_line", "printable"]
