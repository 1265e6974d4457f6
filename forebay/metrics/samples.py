"""The values that are read at a scrape, and their text.

A stream of 1,000 partitions has 5,000 series. prometheus_client makes several objects for each sample;
here the beginning of each line is kept from scrape to scrape, and only the value is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forebay.metrics.definition import Metric

#: label value for all that a metric does not name
OTHER = "other"

#: values of the labels of one series
Labels = tuple[str, ...]


class Samples:
    """Collects the values of one scrape."""

    def __init__(self) -> None:
        self.metrics: dict[Metric, dict[Labels, float]] = {}

    def set(self, metric: Metric, value: float | None, *labels: str) -> None:
        """Set the value of ``metric`` for ``labels``. None: it is unknown, and the series is left out."""
        if value is not None:
            self.metrics.setdefault(metric, {})[labels] = value

    def series(self, metric: Metric, values: Iterable[tuple[Labels, float | None]]) -> None:
        """Set many values of ``metric``, as :meth:`set`."""
        found = {labels: value for labels, value in values if value is not None}
        if found:
            self.metrics.setdefault(metric, {}).update(found)

    def states(self, metric: Metric, present: str) -> None:
        """Set each of the label values that ``metric`` knows: 1 for ``present``, 0 for the others."""
        for value in metric.values:
            self.set(metric, float(value == present), value)

    def counts(self, metric: Metric, found: Mapping[str, float]) -> None:
        """Set how many are ``found`` with each value of the label; 0 for a value that ``metric`` knows and that is not found.

        If ``metric`` names its values, all others are added up as ``OTHER``: they may be text of other processes.
        """
        named = {value: found.get(value, 0) for value in metric.values} if metric.values else dict(found)
        if others := [count for value, count in found.items() if value not in named]:
            named[OTHER] = sum(others)
        for value, count in named.items():
            self.set(metric, count, value)


class Text:
    """Writes samples in Prometheus' text format. ``labels``: name and value of the labels that every sample has."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = [_label(name, value) for name, value in labels.items()]
        #: name of the metric → labels → the beginning of the line, as far as the last text had it
        self._begun: dict[str, dict[Labels, str]] = {}

    def of(self, samples: Samples) -> bytes:
        """Return the text of ``samples``."""
        lines: list[str] = []
        begun: dict[str, dict[Labels, str]] = {}
        for metric, values in samples.metrics.items():
            known = self._begun.get(metric.name, {})
            lines.append(f"# HELP {metric.name} {_escaped(metric.help)}")
            lines.append(f"# TYPE {metric.name} {metric.kind}")
            beginnings = begun[metric.name] = {
                labels: known.get(labels) or self._beginning(metric, labels) for labels in values
            }
            lines += [f"{beginnings[labels]}{+value}" for labels, value in values.items()]  # +True is 1
        self._begun = begun
        return "".join(f"{line}\n" for line in lines).encode()

    def _beginning(self, metric: Metric, labels: Labels) -> str:
        pairs = (*self._labels, *map(_label, metric.labels, labels))
        return f"{metric.name}{{{','.join(pairs)}}} " if pairs else f"{metric.name} "


def _label(name: str, value: str) -> str:
    quoted = _escaped(value).replace('"', r"\"")
    return f'{name}="{quoted}"'


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
