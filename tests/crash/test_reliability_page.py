"""docs/RELIABILITY.md lists every failpoint as the code names it."""

from __future__ import annotations

from pathlib import Path

from forebay.process import failpoints

PAGE = Path(__file__).parents[2] / "docs" / "RELIABILITY.md"


def table() -> str:
    rows = [f"| `{name}` | {where} |" for name, where in failpoints.NAMES.items()]
    return "\n".join(["| failpoint | where the process is killed |", "| --- | --- |", *rows])


def test_the_page_lists_every_failpoint() -> None:
    assert table() in PAGE.read_text(), f"put this table into {PAGE}:\n{table()}"
