"""Writes the tables and plots of a run into the docs: the table between two comments, the plot as SVG.

A page of the docs has, for each sheet, the lines ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``. The text between
them is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.sheets import Bars, Lines, Sheet

DOCS = Path(__file__).parents[1] / "docs"
_COLORS = ("#1f6feb", "#d97706", "#15803d", "#7c3aed", "#be123c")


def record(sheets: list[Sheet], about: Mapping[str, str], runs: int, docs: Path = DOCS) -> list[Path]:
    """Write each sheet, and return the files. Raises LookupError as :func:`page_of`."""
    written: list[Path] = []
    for sheet in sheets:
        page = page_of(sheet, docs)
        image = docs / "images" / f"{sheet.name}.svg"
        image.parent.mkdir(exist_ok=True)
        draw(sheet, image)
        page.write_text(placed(page.read_text(), sheet, about, runs))
        written += [page, image]
    return written


def page_of(sheet: Sheet, docs: Path = DOCS) -> Path:
    """Return the page with the sheet's place. Raises LookupError if there is none."""
    page = next((page for page in sorted(docs.rglob("*.md")) if _place(sheet.name) in page.read_text()), None)
    if page is None:
        raise LookupError(f"no page below {docs} has the line {_place(sheet.name)}")
    return page


def placed(text: str, sheet: Sheet, about: Mapping[str, str], runs: int) -> str:
    """Return ``text`` with the sheet in its place."""
    figures = f"{sheet.markdown()}\n![{sheet.title}](images/{sheet.name}.svg)\n"
    number = runs if sheet.runs is None else sheet.runs
    ran = "1 run" if number == 1 else f"{number} runs"
    machine = f"{about['processor']}; load before: {about['load before']}; {ran}."
    between = re.compile(f"({re.escape(_place(sheet.name))}\n).*?(<!-- end of figures -->)", re.DOTALL)
    return between.sub(lambda found: f"{found[1]}\n{figures}\n{machine}\n\n{found[2]}", text)


def _place(name: str) -> str:
    return f"<!-- figures: {name} -->"


def draw(sheet: Sheet, image: Path) -> None:
    """Draw the plots of the sheet side by side into ``image``; the same figures give the same bytes."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update(
        {"svg.hashsalt": sheet.name, "svg.fonttype": "none", "font.size": 9, "font.family": "sans-serif"}
    )
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(sheet.plots), figsize=(4.6 * len(sheet.plots) + 0.6, 3.2), squeeze=False)
    for place, (axis, plot) in enumerate(zip(axes[0], sheet.plots, strict=True)):
        axis.grid(visible=True, color="#e5e7eb", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        match plot:
            case Bars():
                _bars(axis, plot)
                axis.tick_params(labelleft=place == 0 or not isinstance(sheet.plots[0], Bars))
            case Lines():
                _lines(axis, plot)
    figure.tight_layout()
    figure.savefig(image, metadata={"Date": None, "Title": sheet.title}, facecolor="white")
    pyplot.close(figure)


def _bars(axis: Any, plot: Bars) -> None:
    names = [name for name, _ in plot.bars]
    middles = [median(values) for _, values in plot.bars]
    below = [middle - min(values) for middle, (_, values) in zip(middles, plot.bars, strict=True)]
    above = [max(values) - middle for middle, (_, values) in zip(middles, plot.bars, strict=True)]
    colors = [_COLORS[0] if name.startswith("Forebay") else "#9ca3af" for name in names]
    axis.barh(names, middles, xerr=[below, above], color=colors, ecolor="#374151", capsize=3)
    axis.invert_yaxis()
    axis.set_xlabel(plot.x)
    axis.set_xlim(left=0)


def _lines(axis: Any, plot: Lines) -> None:
    for color, line in zip(_COLORS, plot.lines, strict=False):
        xs = [x for x, _ in line.points]
        axis.plot(
            xs, [median(values) for _, values in line.points], marker="o", markersize=4, color=color, label=line.name
        )
        lows, highs = ([extreme(values) for _, values in line.points] for extreme in (min, max))
        axis.fill_between(xs, lows, highs, color=color, alpha=0.15, linewidth=0)
    if plot.x_log:
        axis.set_xscale("log")
    if plot.y_log:
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    if plot.ticks:
        axis.set_xticks([place for place, _ in plot.ticks], [text for _, text in plot.ticks])
        axis.minorticks_off()
    axis.set_xlabel(plot.x)
    axis.set_ylabel(plot.y)
    if len(plot.lines) > 1:
        axis.legend(frameon=False)
