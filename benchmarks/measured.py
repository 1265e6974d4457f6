"""The figures of a benchmark: ratios of alternating runs, their spread, and whether a threshold is kept. Without I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

One = TypeVar("One")
Other = TypeVar("Other")


@dataclass(frozen=True, slots=True)
class Threshold:
    """A bound of a value: at least, or at most, ``limit``."""

    limit: float
    at_least: bool

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure.

    ``value``: the median, of ratios if there is a peer. ``ours`` and ``peer``: medians in ``unit``. ``low`` and ``high``:
    smallest and largest value of the runs. ``threshold``: None for a figure that is only recorded.
    """

    benchmark: str
    what: str
    value: float
    low: float
    high: float
    runs: int
    unit: str
    threshold: Threshold | None = None
    ours: float | None = None
    peer: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.threshold is None:
            return "recorded"
        if self.threshold.holds(self.value):
            return "ok"
        return "below" if self.threshold.at_least else "above"

    @property
    def missed(self) -> bool:
        return self.verdict in ("below", "above")

    @property
    def line(self) -> str:
        wanted = f", wanted {self.threshold}" if self.threshold is not None else ""
        figures = ""
        if self.ours is not None and self.peer is not None:
            figures = f"; ours {shown(self.ours)}, peer {shown(self.peer)} {self.unit}"
            number = f"ratio {self.value:.2f} ({self.low:.2f} to {self.high:.2f}"
        else:
            number = f"{shown(self.value)} {self.unit} ({shown(self.low)} to {shown(self.high)}"
        note = f"; {self.note}" if self.note else ""
        return f"{self.benchmark}: {self.what}: {number}, {self.runs} runs){wanted}: {self.verdict}{figures}{note}"


def shown(number: float) -> str:
    """Return ``number`` with as many digits as a person compares."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def alternate(runs: int, ours: Callable[[], One], peer: Callable[[], Other]) -> list[tuple[One, Other]]:
    """Run ours, peer, ours, peer, …, so that other load on the machine affects both equally."""
    return [(ours(), peer()) for _ in range(runs)]


def ratio(
    benchmark: str,
    what: str,
    pairs: Sequence[tuple[float, float]],
    unit: str,
    threshold: Threshold | None = None,
    note: str = "",
) -> Measured:
    """Return the median of ours / peer over ``pairs`` of neighbouring runs."""
    ratios = [ours / peer for ours, peer in pairs]
    return Measured(
        benchmark,
        what,
        median(ratios),
        min(ratios),
        max(ratios),
        len(pairs),
        unit,
        threshold,
        median(ours for ours, _ in pairs),
        median(peer for _, peer in pairs),
        note,
    )


def figure(
    benchmark: str, what: str, values: Sequence[float], unit: str, threshold: Threshold | None = None, note: str = ""
) -> Measured:
    """Return the median of ``values`` that have no peer."""
    return Measured(benchmark, what, median(values), min(values), max(values), len(values), unit, threshold, note=note)
