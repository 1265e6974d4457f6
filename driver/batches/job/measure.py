"""Measures one run of a batch, in the thread that runs it."""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from operator import attrgetter

from driver.batches.job.work import BatchWork
from driver.journal.events import JobFailed
from driver.journal.history import merge, ranges_of_spans
from driver.journal.statistics import BatchStatistics
from driver.listeners.offsets import batch_ranges
from forebay.kafka.consume.planning import sizes
from forebay.messages import BatchRange
from forebay.model.bounds import total_size
from forebay.process.clock import Clock
from wal.reading import TierCounts

_RECORDS, _BYTES, _NEWEST = attrgetter("records"), attrgetter("bytes"), attrgetter("max_timestamp_ms")


class RunMeasure:
    """The measures of one run of ``work``, from its first start under this driver to its completion.

    Call :meth:`begin` before each attempt at an output, and :meth:`add` after one that succeeded. The content of the batch is
    the one at the first start: ranges whose loss is accepted later are part of it.
    """

    def __init__(self, work: BatchWork, clock: Clock) -> None:
        self._clock = clock
        self._work = work
        self._began = clock.monotonic()
        self._worked_seconds = 0.0
        #: number of attempts at all outputs, and the duration of the last one that succeeded
        self.attempts = 0
        self.attempt_seconds = 0.0
        #: the last failed attempt; None: none failed
        self.failure: JobFailed | None = None
        #: tier → ranges read from it, and its failures, by the attempts that succeeded
        self.tiers: dict[str, int] = {}
        #: from the time when the run was due to its first start, in milliseconds
        self.scheduling_delay_ms = max(0, clock.wall_ms() - work.due_ms)
        references = list(chain.from_iterable(work.tasks))
        self.blocks = len(references)
        #: records, or offsets in a direct stream; accepted losses count too
        self.records = sum(map(_RECORDS, references)) + sizes(work.spans)
        ranges = list(chain.from_iterable(reference.ranges for reference in references))
        #: size of keys and values; None in a direct stream
        self.bytes = None if work.spans else total_size(map(_BYTES, ranges))
        newest = filter((-1).__lt__, map(_NEWEST, ranges))
        self._oldest_range_ms = None if work.replay else min(newest, default=None)

    @cached_property
    def ranges(self) -> tuple[BatchRange, ...]:
        """The offsets of the batch by partition, touching ranges joined. Slow for many blocks at its first use."""
        blocks = (r for task in self._work.tasks for reference in task for r in reference.ranges)
        spans = zip(self._work.spans, self._work.incarnations, strict=True)
        return batch_ranges(merge(chain(blocks, ranges_of_spans(spans))))

    def begin(self) -> None:
        """Begin an attempt at an output."""
        self._began = self._clock.monotonic()
        self.attempts += 1

    def add(self, tiers: TierCounts) -> None:
        """Add the attempt since :meth:`begin`, which succeeded and read from ``tiers``."""
        self.attempt_seconds = self._clock.monotonic() - self._began
        self._worked_seconds += self.attempt_seconds
        for tier, count in tiers.items():
            self.tiers[tier] = self.tiers.get(tier, 0) + count

    def statistics(self, ended_ms: int) -> BatchStatistics:
        """Return the statistics of the run, whose last output ended at ``ended_ms``."""
        return BatchStatistics(
            records=self.records,
            bytes=self.bytes,
            scheduling_delay_ms=self.scheduling_delay_ms,
            processing_ms=max(0, round(self._worked_seconds * 1000)),
            total_delay_ms=max(0, ended_ms - self._work.due_ms),
            end_to_end_ms=None if self._oldest_range_ms is None else max(0, ended_ms - self._oldest_range_ms),
            tiers=self.tiers,
            rerun=self._work.rerun or self.failure is not None,
            error=self.failure.error if self.failure is not None else "",
            place=self.failure.place if self.failure is not None else "",
        )
