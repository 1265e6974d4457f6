"""Tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from forebay.model.text import printable

#: signs between two columns of a table, and at its two edges
_BETWEEN, _EDGES = 3, 2
#: a table of so few columns keeps its form, because its rows could not become narrower
_COLUMNS_MIN = 2


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Group:
    """Return a table below its title, or "title: none" without rows. Columns of whole numbers are aligned right. Text is never
    read as markup.

    If a terminal is so narrow that words would be broken, each row is shown as lines of a column's name and its value.
    """
    cells = [list(row) for row in rows]
    right = tuple(bool(cells) and all(isinstance(row[number], int) for row in cells) for number in range(len(columns)))
    texts = tuple(tuple(printable(str(value)) for value in row) for row in cells)
    if not texts:
        return Group(Text(f"{printable(title)}: none", style="bold"))
    # above the table, because rich wraps the title of a table to the table's width
    return Group(Text(printable(title), style="bold"), _Fitted(tuple(columns), right, texts))


@dataclass(frozen=True, slots=True)
class _Fitted:
    """The rows of a table, in the form that fits the terminal. ``right``: for each column, whether it is aligned right."""

    columns: tuple[str, ...]
    right: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fits = self._needed() <= options.max_width
        yield self._table() if fits or len(self.columns) <= _COLUMNS_MIN else self._lines()

    def _needed(self) -> int:
        """Return the width at which no word is broken."""
        widths = (
            max((cell_len(word) for text in (name, *cells) for word in text.split()), default=0)
            for name, *cells in zip(self.columns, *self.rows, strict=True)
        )
        return sum(widths) + _BETWEEN * (len(self.columns) - 1) + _EDGES

    def _table(self) -> Table:
        made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name, right in zip(self.columns, self.right, strict=True):
            made.add_column(name, justify="right" if right else "left", overflow="fold")
        for row in self.rows:
            made.add_row(*map(Text, row))
        return made

    def _lines(self) -> Table:
        made = Table.grid(padding=(0, 2, 0, 0))
        made.add_column(overflow="fold")
        made.add_column(overflow="fold")
        for row in self.rows:
            made.add_row()
            for number, (name, text) in enumerate(zip(self.columns, row, strict=True)):
                made.add_row(Text(name), Text(text, style="bold" if number == 0 else ""))
        made.add_row()
        return made
