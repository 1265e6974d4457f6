"""The recent past of the stream: samples every 10 s for one hour and every minute for a day, in memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from driver.http.observation.overview import lag_records, lag_seconds
from driver.http.observation.snapshot import Snapshot
from driver.http.observation.steps import Rates
from forebay import messages as m
from forebay.model.errors import UnreachableError

NAMES = (
    "records_in_per_second",
    "records_completed_per_second",
    "lag_records",
    "lag_seconds",
    "waiting_records",
    "waiting_blocks",
    "scheduling_delay_ms",
    "processing_ms",
    "total_delay_ms",
    "end_to_end_ms",
    "receivers_active",
)
#: (interval, number) of the samples kept: an hour, a day
FINE, COARSE = (10_000, 360), (60_000, 1_440)
#: maximum number of points in an answer
POINTS_MAX = 1_500
#: time over which present rates are measured, and the minimum time between two of its marks
RATE_SECONDS, MARK_SECONDS = 10.0, 1.0

Values = tuple["float | None", ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """The values of ``NAMES`` at ``time_ms``."""

    time_ms: int
    values: Values


@dataclass(frozen=True, slots=True)
class Mark:
    """The counts of a snapshot from which rates are computed. ``now``: monotonic seconds; ``now_ms``: wall clock."""

    now: float
    now_ms: int
    taken: int
    completed: int

    @classmethod
    def of(cls, snapshot: Snapshot) -> Mark:
        totals = snapshot.totals
        return cls(snapshot.now, snapshot.now_ms, totals.records_taken, totals.records_completed)

    def rates_until(self, after: Mark) -> Rates:
        """Return the rates between this mark and a later one."""
        seconds = after.now - self.now
        if seconds <= 0:
            return Rates()
        taken, completed = max(0, after.taken - self.taken), max(0, after.completed - self.completed)
        return Rates(round(taken / seconds, 1), round(completed / seconds, 1))


def measured(before: Mark, after: Snapshot, batches: Sequence[m.BatchEntry]) -> Sample:
    """Return the sample of the interval from ``before`` to a snapshot. ``batches``: those that completed in it; each statistic is
    their mean."""
    rates = before.rates_until(Mark.of(after))
    partitions = after.tracked_partitions
    return Sample(
        after.now_ms,
        (
            rates.taken,
            rates.completed,
            _number(lag_records(partitions)),
            lag_seconds(partitions),
            float(after.totals.waiting_records),
            float(after.totals.waiting_blocks),
            _mean(batch.scheduling_delay_ms for batch in batches),
            _mean(batch.processing_ms for batch in batches),
            _mean(batch.total_delay_ms for batch in batches),
            _mean(batch.end_to_end_ms for batch in batches),
            float(sum(receiver.state == "active" for receiver in after.receivers)),
        ),
    )


class Series:
    """The samples kept. One thread adds; any thread may read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fine: deque[Sample] = deque(maxlen=FINE[1])
        self._coarse: deque[Sample] = deque(maxlen=COARSE[1])
        self._minute: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Add a sample of ``FINE``'s interval; those of a minute also become one of ``COARSE``."""
        with self._lock:
            self._fine.append(sample)
            if self._minute and sample.time_ms // COARSE[0] != self._minute[0].time_ms // COARSE[0]:
                self._coarse.append(_joined(self._minute))
                self._minute = []
            self._minute.append(sample)

    def answer(self, since_ms: int, points_max: int) -> m.SeriesAnswer:
        """Return the samples from ``since_ms`` on: fine ones if they reach back far enough, else coarse ones. More than
        ``points_max`` are joined to fewer, each the mean of several."""
        with self._lock:
            fine, coarse = list(self._fine), list(self._coarse)
        is_fine = not coarse or (bool(fine) and fine[0].time_ms <= max(since_ms, coarse[0].time_ms))
        step_ms, samples = (FINE[0], fine) if is_fine else (COARSE[0], coarse)
        samples = [sample for sample in samples if sample.time_ms >= since_ms]
        together = max(1, -(-len(samples) // min(max(1, points_max), POINTS_MAX)))
        joined = [_joined(samples[at : at + together]) for at in range(0, len(samples), together)]
        return m.SeriesAnswer(
            step_ms=step_ms * together,
            times_ms=tuple(sample.time_ms for sample in joined),
            values={name: tuple(sample.values[at] for sample in joined) for at, name in enumerate(NAMES)},
        )


def _joined(samples: Sequence[Sample]) -> Sample:
    if len(samples) == 1:
        return samples[0]
    columns = zip(*(sample.values for sample in samples), strict=True)
    return Sample(samples[-1].time_ms, tuple(_mean(column) for column in columns))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 1) if known else None


def _number(value: int | None) -> float | None:
    return None if value is None else float(value)


class RecentRates:
    """The rates of about the last ``RATE_SECONDS``. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._marks: deque[Mark] = deque()

    def until(self, present: Mark) -> Rates:
        """Return the rates until ``present``, from the newest mark that is old enough, or from the first one."""
        with self._lock:
            marks = self._marks
            if not marks or present.now - marks[-1].now >= MARK_SECONDS:
                marks.append(present)
            while len(marks) > 1 and present.now - marks[1].now >= RATE_SECONDS:
                marks.popleft()
            return marks[0].rates_until(present)


class Sampler:
    """A thread that adds a sample each ``FINE`` interval, until it is stopped.

    ``snapshot`` returns the present one, or raises UnreachableError: then there is no sample. ``completed_since`` returns the
    batches that completed at or after a time (ms). ``failed`` gets the error that ended the thread. ``sampled`` gets the
    snapshot of each sample.
    """

    def __init__(
        self,
        series: Series,
        *,
        snapshot: Callable[[], Snapshot],
        completed_since: Callable[[int], Sequence[m.BatchEntry]],
        failed: Callable[[BaseException], None],
        interval_seconds: float = FINE[0] / 1000,
        sampled: Callable[[Snapshot], None] = lambda _: None,
    ) -> None:
        self._series = series
        self._snapshot = snapshot
        self._completed_since = completed_since
        self._failed = failed
        self._interval_seconds = interval_seconds
        self._sampled = sampled
        self._recent = RecentRates()
        self._last: Mark | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for its end."""
        self._stopping.set()
        self._thread.join()

    def rates(self, present: Snapshot) -> Rates:
        """Return the rates until ``present``."""
        return self._recent.until(Mark.of(present))

    def sample(self) -> None:
        """Take one sample, if the snapshot is a new one."""
        try:
            present = self._snapshot()
        except UnreachableError:
            return  # a gap in the series shows it
        mark, last = Mark.of(present), self._last
        if last is not None and mark.now <= last.now:
            return
        self._recent.until(mark)
        if last is not None:
            self._series.add(measured(last, present, self._completed_since(last.now_ms)))
        self._last = mark
        self._sampled(present)

    def _run(self) -> None:
        try:
            self.sample()
            while not self._stopping.wait(self._interval_seconds):
                self.sample()
        except BaseException as error:
            self._failed(error)
