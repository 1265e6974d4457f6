"""What the driver counts as it happens: decisions, accepted blocks, batches, failures. Never for a single record."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from driver.journal import events as ev
from driver.journal.statistics import BatchStatistics
from driver.listeners.events import BatchFailed, Happened
from driver.metrics import definitions as d
from forebay.metrics.exposition import Metrics
from forebay.process.clock import Clock

#: how far the longest wait looks back, and how many parts the time has that are forgotten one by one
LONGEST_SECONDS, LONGEST_PARTS = 60.0, 6


class Longest:
    """The longest of the waits within the last ``LONGEST_SECONDS``. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._parts: deque[tuple[int, float]] = deque(maxlen=LONGEST_PARTS)  # number of the part → its longest wait

    def add(self, seconds: float) -> None:
        number = self._number()
        with self._lock:
            if self._parts and self._parts[-1][0] == number:
                seconds = max(seconds, self._parts.pop()[1])
            self._parts.append((number, seconds))

    def seconds(self) -> float:
        oldest = self._number() - LONGEST_PARTS
        with self._lock:
            return max((seconds for number, seconds in self._parts if number > oldest), default=0.0)

    def _number(self) -> int:
        return int(self._clock.monotonic() * LONGEST_PARTS / LONGEST_SECONDS)


class Counting:
    """Counts into ``metrics``. Thread-safe, and cheap enough for the decision loop."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self.longest = Longest(clock)

    def answered(self, waited_seconds: float) -> None:
        """Count a group of requests. ``waited_seconds``: of its oldest request, from its arrival to its answer."""
        self.longest.add(waited_seconds)
        self._metrics.observe(d.DECISION_WAIT, waited_seconds)

    def synced(self, seconds: float) -> None:
        """Count a sync of the journal."""
        self._metrics.observe(d.JOURNAL_SYNC, seconds)

    def note(self, events: Sequence[ev.Event]) -> None:
        """Count events of the journal that have become durable."""
        count = self._metrics.count
        for event in events:
            match event:
                case ev.BlockAdded():
                    meta = event.block.meta
                    count(d.TAKEN_BLOCKS)
                    count(d.TAKEN_RECORDS, amount=meta.records)
                    count(d.TAKEN_BYTES, amount=sum(held.bytes for held in meta.ranges))
                case ev.BatchCompleted():
                    self._completed(event.statistics)
                case ev.ReplayCompleted():
                    count(d.REPLAYED)
                case ev.ReceiverRegistered():
                    count(d.REGISTRATIONS)
                case ev.GapRecorded():
                    count(d.LOST_OFFSETS, amount=event.gap.until_offset - event.gap.from_offset)
                case ev.SpansSkipped():
                    count(d.LOST_OFFSETS, amount=sum(span.size for span in event.spans))

    def _completed(self, statistics: BatchStatistics | None) -> None:
        if statistics is None:
            return
        observe = self._metrics.observe
        observe(d.SCHEDULING_DELAY, statistics.scheduling_delay_ms / 1000)
        observe(d.PROCESSING, statistics.processing_ms / 1000)
        observe(d.TOTAL_DELAY, statistics.total_delay_ms / 1000)
        if statistics.end_to_end_ms is not None:
            observe(d.END_TO_END, statistics.end_to_end_ms / 1000)

    def tell(self, happened: Sequence[Happened]) -> None:
        """Count failed attempts at batches."""
        for event in happened:
            if isinstance(event, BatchFailed):
                self._metrics.count(d.FAILED_ATTEMPTS, "unreadable" if event.unreadable else "job")
