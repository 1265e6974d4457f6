"""Tables with plots, which a benchmark keeps beside its figures and ``--record`` writes into the docs. Without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.measured import shown


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plot: for each x the values of the runs; the median is the line, least and greatest are its band."""

    name: str
    points: tuple[tuple[float, tuple[float, ...]], ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """A plot of lines, with a logarithmic x axis by default. ``ticks``: texts for places on the x axis; default: its numbers."""

    x: str
    y: str
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...] = ()
    y_log: bool = False
    x_log: bool = True


@dataclass(frozen=True, slots=True)
class Bars:
    """A plot with one bar for each name: its median, and a mark from the least to the greatest value."""

    x: str
    bars: tuple[tuple[str, tuple[float, ...]], ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table and its plots, side by side. ``name``: also of the picture, and of the place in the docs. ``runs``: the number of
    runs, if it is not that of all benchmarks."""

    name: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    plots: tuple[Lines | Bars, ...]
    runs: int | None = None

    def markdown(self) -> str:
        lines = [self.head, tuple("---" for _ in self.head), *self.rows]
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def spread(values: Sequence[float]) -> str:
    """Return the median, and least and greatest value if there are several."""
    if len(values) == 1:
        return shown(values[0])
    return f"{shown(median(values))} ({shown(min(values))} – {shown(max(values))})"


def line(name: str, points: Iterable[tuple[float, Iterable[float]]]) -> Line:
    return Line(name, tuple((x, tuple(values)) for x, values in points))
