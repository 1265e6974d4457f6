"""Tables fit the terminal without broken words."""

from __future__ import annotations

import io

from rich.console import Console

from deploy.console.table import table


def shown(width: int, columns: tuple[str, ...], *rows: tuple[object, ...]) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=width).print(table("Title", columns, rows))
    return [line.rstrip() for line in screen.getvalue().splitlines() if line.strip()]


COLUMNS = ("partition", "state", "records")
ROWS = (("flights/0", "active", 4988), ("orders [red]", "claimed", 12))


def test_wide_terminal_shows_a_row_on_a_line_with_numbers_at_the_right() -> None:
    title, head, _, first, second = shown(80, COLUMNS, *ROWS)
    assert (title, head.split()) == ("Title", ["partition", "state", "records"])
    assert first.split() == ["flights/0", "active", "4988"] and first.endswith(" 4988")
    assert second.split() == ["orders", "[red]", "claimed", "12"] and second.endswith("   12")


def test_narrow_terminal_shows_a_value_on_a_line_and_breaks_no_word() -> None:
    assert shown(24, COLUMNS, *ROWS) == [
        "Title",
        "partition  flights/0", "state      active", "records    4988",
        "partition  orders [red]", "state      claimed", "records    12",
    ]  # fmt: skip


def test_form_changes_where_the_longest_cells_no_longer_fit() -> None:
    assert "─" in "".join(shown(31, COLUMNS, *ROWS)) and "flights/0" in "".join(shown(31, COLUMNS, *ROWS))
    assert "─" not in "".join(shown(30, COLUMNS, *ROWS))


def test_long_texts_are_wrapped_at_spaces() -> None:
    lines = shown(40, ("what", "where", "why"), ("gap", "t/0", "a long reason in many words that can be wrapped"))
    assert lines[1].split() == ["what", "where", "why"] and len(lines) > 4
    assert "wrapped" in lines[-1].split()


def test_table_without_rows_says_none() -> None:
    assert shown(12, COLUMNS) == shown(80, COLUMNS) == ["Title: none"]


def test_table_of_two_columns_keeps_its_form() -> None:
    assert "─" in "".join(shown(12, ("what", "value"), ("a long-unbroken-word", "x")))
