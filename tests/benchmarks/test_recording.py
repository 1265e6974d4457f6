"""The tables and plots that a run writes into the docs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.recording import record
from benchmarks.sheets import Bars, Lines, Sheet, line, spread

ABOUT = {"processor": "a processor, 2 cores", "load before": "0.10 0.20 0.30"}
PAGE = "# Title\n\n<!-- figures: some -->\nold\n<!-- end of figures -->\n\nAfter.\n"


def _sheet(*values: float) -> Sheet:
    plots = (
        Lines("size", "rate", (line("one", [(1, values), (10, values)]), line("two", [(1, [1.0]), (10, [4.0])]))),
        Bars("rate", (("Forebay", values), ("other", (1.0,)))),
    )
    return Sheet("some", "Some figures", ("size", "rate"), (("1", spread(values)),), plots)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path


def test_record_replaces_only_what_is_between_the_comments(docs: Path) -> None:
    """What a person wrote around the figures stays, and a second run leaves no trace of the first."""
    record([_sheet(9.0, 9.5)], ABOUT, 2, docs)
    record([_sheet(2.0, 3.0, 4.0)], ABOUT, 3, docs)
    assert (docs / "page.md").read_text() == (
        "# Title\n\n<!-- figures: some -->\n\n| size | rate |\n| --- | --- |\n| 1 | 3 (2 – 4) |\n\n"
        "![Some figures](images/some.svg)\n\na processor, 2 cores; load before: 0.10 0.20 0.30; 3 runs.\n\n"
        "<!-- end of figures -->\n\nAfter.\n"
    )


@pytest.mark.parametrize(("own", "message"), [(None, "5 runs"), (2, "2 runs"), (1, "1 run")])
def test_record_names_runs_of_a_sheet_that_has_fewer(docs: Path, own: int | None, message: str) -> None:
    record([replace(_sheet(9.0), runs=own)], ABOUT, 5, docs)
    assert f"load before: 0.10 0.20 0.30; {message}.\n" in (docs / "page.md").read_text()


def test_the_same_figures_draw_the_same_picture(docs: Path) -> None:
    """A picture changes in the repository only if a figure did."""
    image = docs / "images" / "some.svg"
    drawn = []
    for values in ((2.0, 3.0), (2.0, 3.0), (2.0, 5.0)):
        record([_sheet(*values)], ABOUT, 2, docs)
        drawn.append(image.read_bytes())
    assert drawn[0] == drawn[1] != drawn[2]
    assert b"<svg" in drawn[0]


def test_record_without_a_place_fails(docs: Path) -> None:
    (docs / "page.md").write_text("# Title\n")
    with pytest.raises(LookupError, match=r"no page below .* has the line <!-- figures: some -->"):
        record([_sheet(1.0)], ABOUT, 1, docs)
