"""Tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from deploy.console.text import printable


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Group:
    """Return a table below its title. Columns of whole numbers are aligned right. Text is never read as markup."""
    cells = [list(row) for row in rows]
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        right = bool(cells) and all(isinstance(row[number], int) for row in cells)
        made.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in cells:
        made.add_row(*(Text(printable(str(value))) for value in row))
    # above the table, because rich wraps the title of a table to the table's width
    return Group(Text(printable(title), style="bold"), made)
