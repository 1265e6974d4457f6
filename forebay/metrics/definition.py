"""What a metric is: name, kind, labels and help. ``docs/METRICS.md`` is written from the definitions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

_NAME = re.compile(r"forebay(_[a-z0-9]+)+")

#: bounds of histograms of durations: of one request or write, of one batch
REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. ``labels``: the names of its labels; each has a bounded number of values. ``buckets``: of a histogram.

    ``values``: the values of the only label, if they are known before the first event: such a counter begins at 0.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name.endswith("_total") != (self.kind == "counter"):
            raise ValueError(f"metric {self.name}: words in lower case, and _total at the end of a counter's name")
        if (self.kind == "histogram") != bool(self.buckets):
            raise ValueError(f"metric {self.name}: a histogram has buckets, and nothing else has")
        if self.values and len(self.labels) != 1:
            raise ValueError(f"metric {self.name}: known values need exactly one label")

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its series in a query."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


def gauge(name: str, text: str, *labels: str, values: tuple[str, ...] = ()) -> Metric:
    """Return a metric that rises and falls."""
    return Metric(name, "gauge", text, labels, values)


def counter(name: str, text: str, *labels: str, values: tuple[str, ...] = ()) -> Metric:
    """Return a metric that only rises, until its process restarts."""
    return Metric(name, "counter", text, labels, values)


def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    """Return a metric that counts events by size."""
    return Metric(name, "histogram", text, labels, buckets=buckets)
