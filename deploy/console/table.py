"""Tables for people: the few signs they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Group:
    """A table below its title; columns of whole numbers stand to the right. Text is never read as markup."""
    cells = [list(row) for row in rows]
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        right = bool(cells) and all(isinstance(row[number], int) for row in cells)
        made.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in cells:
        made.add_row(*(Text(str(value)) for value in row))
    # above the table and not its title, which would be wrapped to the table's width
    return Group(Text(title, style="bold"), made)


def bytes_text(count: int) -> str:
    """``64000000`` → ``64.0 MB``."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
