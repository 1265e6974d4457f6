"""The metrics of a direct stream. They have the names of an intake's, so one dashboard shows both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as AnswerLate
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from direct.stream.reads import ReadNumbers
from driver.batches.entries import QUEUED, RunningBatch
from driver.decision_loop.loop import DriverLoop
from driver.metrics import definitions as d
from driver.metrics.counting import Counting
from driver.metrics.scrape import label_sets, set_joined, set_listeners
from forebay.messages import TrackedListener
from forebay.metrics.exposition import Metrics
from forebay.metrics.samples import Samples
from forebay.model.errors import UnreachableError
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock

#: maximum number of partitions with series of their own, as ``driver.metrics_partitions_max`` of an intake
PARTITIONS_MAX = 1_000
#: maximum time that a scrape waits for the stream's decision loop; then the values read from it are left out
PATIENCE_SECONDS = 2.0

COUNTED = (d.LOST_OFFSETS, d.SCHEDULING_DELAY, d.PROCESSING, d.TOTAL_DELAY, d.FAILED_ATTEMPTS, d.REPLAYED)


@dataclass(frozen=True, slots=True)
class Running:
    """What a scrape reads of a stream that runs. ``running``: batch id → the batch in work. ``ends``: returns Kafka's end offsets
    when the last batch was planned."""

    loop: DriverLoop
    running: Mapping[int, RunningBatch]
    ends: Callable[[], Mapping[TopicPartition, int]]


class StreamMetrics:
    """The metrics of one direct stream, a collector for a registry of ``prometheus_client``. Thread-safe.

    ``collect`` is called by the registry at each scrape. ``text`` returns the same for a file or a gateway. A registry may have
    the collectors of several streams; every sample has the label ``stream``.
    """

    def __init__(
        self,
        stream: str,
        *,
        interval_seconds: float,
        clock: Clock,
        running: Callable[[], Running | None] = lambda: None,
        listeners: Callable[[], Iterable[TrackedListener]] = tuple,
    ) -> None:
        """``running``: returns None before the start. ``listeners``: returns the status of the stream's listeners."""
        self._interval_seconds = interval_seconds
        self._metrics = Metrics(
            COUNTED,
            labels={"stream": stream},
            release=version("forebay"),
            clock=clock,
            read=self._read,
            owns_process=False,
        )
        self._running = running
        self._listeners = listeners
        self.counting = Counting(self._metrics, clock)

    def describe(self) -> Iterable[Any]:
        """Return no names, so that a registry accepts several streams, and asks a stream for nothing before a scrape."""
        return ()

    def collect(self) -> Iterable[Any]:
        """Return the metrics with their values. May wait ``PATIENCE_SECONDS``."""
        return self._metrics.families()

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format. May wait ``PATIENCE_SECONDS``."""
        return self._metrics.render()

    def _read(self, samples: Samples) -> None:
        samples.set(d.BATCH_INTERVAL, self._interval_seconds)
        set_listeners(samples, self._listeners())
        stream = self._running()
        if stream is None:
            return
        try:
            found = stream.loop.ask(ReadNumbers(), PATIENCE_SECONDS)
        except (UnreachableError, AnswerLate):  # the stream has ended, or its checkpoint's store does not answer
            return
        samples.set(d.COMPLETED_BATCHES, found.batches_completed)
        samples.set(d.COMPLETED_RECORDS, found.records_completed)
        samples.set(d.QUEUED_RECORDS, found.queued_records)
        samples.set(d.LEARNED_RATE, found.learned.rate if found.learned is not None else None)
        running = dict(stream.running)
        samples.counts(d.BATCHES, Counter(running.get(batch_id, QUEUED).state for batch_id in found.unfinished))
        ends = stream.ends()
        names = label_sets(found.positions, PARTITIONS_MAX)
        for metric, values in (
            (d.POSITION, found.positions),
            (d.COMPLETED, found.completed),
            (d.END, ends),
            (d.LAG_RECORDS, {tp: max(0, ends[tp] - at) for tp, at in found.positions.items() if tp in ends}),
        ):
            set_joined(samples, metric, names, [values.get(tp) for tp in found.positions], sum)
