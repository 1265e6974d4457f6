"""The metrics of one process: values that it counts, values that are read at each scrape, and their text.

The registry belongs to the object, not to the process: tests run several services in one process, and a user's own metrics in
a driver's process stay apart.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from forebay.metrics.definition import Metric, gauge
from forebay.metrics.samples import Samples, Text
from forebay.process.clock import Clock

#: the text format that every version of Prometheus and its like reads
MEDIA_TYPE = "text/plain; version=0.0.4"
#: time for which one text answers all scrapes
FRESH_SECONDS = 0.5

BUILD_INFO = gauge("forebay_build_info", "Release of the service and of Python; the value is 1.", "version", "python")


class Metrics:
    """The metrics of one service. Thread-safe.

    ``counted``: metrics that the service counts by :meth:`count` and :meth:`observe`; histograms and counters. ``labels``:
    name and value of the labels that every sample has. ``read`` sets the values of all other metrics; it is called once for each
    scrape, in the thread of the scrape, and may wait. ``owns_process``: whether the metrics of the process are part of it.
    """

    def __init__(
        self,
        counted: Sequence[Metric],
        *,
        labels: Mapping[str, str],
        release: str,
        clock: Clock,
        read: Callable[[Samples], None] = lambda _: None,
        owns_process: bool = True,
    ) -> None:
        self._release = release
        self._clock = clock
        self.read = read
        self._lock = threading.Lock()
        self._text, self._rendered_at = b"", 0.0
        self._lines = Text(labels)
        self._registry = CollectorRegistry(auto_describe=False)
        self._labelled = _Labelled(self._registry, dict(labels))
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in counted:
            if metric.kind == "histogram":
                self._histograms[metric.name] = Histogram(
                    metric.name, metric.help, metric.labels, registry=self._registry, buckets=metric.buckets
                )
            else:
                made = self._counters[metric.name] = Counter(
                    metric.name, metric.help, metric.labels, registry=self._registry
                )
                for value in metric.values:
                    made.labels(value)
        if owns_process:
            ProcessCollector(registry=self._registry)

    def count(self, metric: Metric, *labels: str, amount: float = 1) -> None:
        """Add ``amount`` to a counter."""
        made = self._counters[metric.name]
        (made.labels(*labels) if labels else made).inc(amount)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Add one event to a histogram."""
        made = self._histograms[metric.name]
        (made.labels(*labels) if labels else made).observe(value)

    def families(self) -> Iterable[Family]:
        """Yield what :meth:`render` returns as families, for another registry."""
        return text_string_to_metric_families(self.render().decode())

    def render(self) -> bytes:
        """Return the text of all metrics. May wait for :attr:`read`.

        One text answers all scrapes within ``FRESH_SECONDS``, so that many scrapers cost no more than a few.
        """
        with self._lock:
            now = self._clock.monotonic()
            if not self._text or now - self._rendered_at >= FRESH_SECONDS:
                self._text, self._rendered_at = self._rendered(), now
            return self._text

    def _rendered(self) -> bytes:
        samples = Samples()
        samples.set(BUILD_INFO, 1, self._release, platform.python_version())
        self.read(samples)
        lines = self._lines.of(samples)
        return lines + generate_latest(self._labelled)  # last, so that no count is older than what was read


class _Labelled(Collector):
    """A registry whose samples all have ``labels`` too. It leaves out the time at which each counter was made."""

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        self._registry = registry
        self._labels = labels

    def collect(self) -> Iterable[Family]:
        for family in self._registry.collect():
            family.samples = [
                sample._replace(labels={**self._labels, **sample.labels})
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            yield family
