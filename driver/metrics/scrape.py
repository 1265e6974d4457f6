"""What a scrape reads: the values of all metrics that the driver does not count itself.

They come from the snapshot that all observers share (``driver.http.observation.snapshot``), so a scrape costs the decision loop
nothing if the page or another scraper has just asked. While the decision loop does not answer, the last snapshot is used, and its
age is a metric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from driver.batches.entries import QUEUED
from driver.batches.scheduler import Scheduler
from driver.decision_loop.loop import DriverLoop
from driver.http.observation.overview import problems
from driver.http.observation.snapshot import SharedSnapshot, Snapshot
from driver.metrics import definitions as d
from driver.tracker import LastAgentHeartbeat, LastHeartbeat, Tracker
from forebay import messages as m
from forebay.metrics.definition import Metric
from forebay.metrics.samples import Samples
from forebay.model.errors import StoreError, UnreachableError
from forebay.model.identifiers import is_reserved
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock

_ENDED = "ended"


class Observed(Protocol):
    """What observers share of a driver that leads."""

    @property
    def shared(self) -> SharedSnapshot:
        """The newest snapshot."""

    def journal(self) -> m.JournalAnswer:
        """Return the state of the journal's files, as it was a moment ago. Raises StoreError, UnreachableError."""

    def held_for_cursors(self) -> int:
        """Return the bytes of WAL segments that are kept only for cursors. Raises UnreachableError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """The parts of a driver that leads. ``store_requests``: requests to remote stores by store and kind. ``longest_wait``: as
    ``driver.metrics.counting.Longest``."""

    observed: Observed
    tracker: Tracker
    loop: DriverLoop
    scheduler: Scheduler
    store_requests: Callable[[], Mapping[str, int]]
    longest_wait: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What every driver has, also a standby. ``state``: as the status shows it. ``led``: None until the driver leads."""

    state: Callable[[], str]
    http_requests: Callable[[], int]
    listeners: Callable[[], tuple[m.TrackedListener, ...]]
    led: Callable[[], Led | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeOptions:
    """``receiver_timeout``, ``batch_interval``: as in ``[driver]``, in seconds. ``partitions_max``: as
    ``driver.metrics_partitions``. ``has_wal``: whether the stream has a WAL."""

    receiver_timeout: float
    batch_interval: float
    partitions_max: int
    has_wal: bool


def set_listeners(samples: Samples, listeners: Iterable[m.TrackedListener]) -> None:
    """Set what the user's listeners and the web hook have got."""
    for listener in listeners:
        samples.set(d.LISTENER_EVENTS, listener.delivered, listener.name, "delivered")
        samples.set(d.LISTENER_EVENTS, listener.dropped, listener.name, "dropped")
        samples.set(d.LISTENER_QUEUE, listener.waiting, listener.name)


class Scrape:
    """Sets the values at a scrape. One thread at a time calls :meth:`read`."""

    def __init__(self, process: Process, clock: Clock, options: ScrapeOptions) -> None:
        self._process = process
        self._clock = clock
        self._options = options

    def read(self, samples: Samples) -> None:
        """Set all values. May wait for the decision loop, as every observer does."""
        process = self._process
        samples.states(d.STATE, process.state())
        samples.set(d.BATCH_INTERVAL, self._options.batch_interval)
        samples.set(d.HTTP_REQUESTS, process.http_requests())
        set_listeners(samples, process.listeners())
        led = process.led()
        samples.set(d.LEADS, led is not None)
        if led is None:
            return
        samples.set(d.QUEUED_REQUESTS, led.loop.queued)
        samples.set(d.LONGEST_WAIT, led.longest_wait())
        for request, count in led.store_requests().items():
            samples.set(d.STORE_REQUESTS, count, request)
        try:
            snapshot = led.observed.shared.get()
        except UnreachableError:
            return  # the decision loop has never answered: the stream's series are absent, and forebay_driver_leads is 1
        samples.set(d.SNAPSHOT_AGE, self._clock.monotonic() - snapshot.now)
        self._totals(samples, snapshot)
        self._processes(samples, snapshot)
        self._partitions(samples, snapshot)
        self._batches(samples, led, snapshot)
        self._problems(samples, snapshot)
        if not led.observed.shared.is_late:
            self._stores(samples, led)

    def _totals(self, samples: Samples, snapshot: Snapshot) -> None:
        totals = snapshot.totals
        samples.set(d.WAITING_BLOCKS, totals.waiting_blocks)
        samples.set(d.WAITING_RECORDS, totals.waiting_records)
        samples.set(d.QUEUED_RECORDS, totals.unfinished_records)
        samples.set(d.COMPLETED_BATCHES, totals.batches_completed)
        samples.set(d.COMPLETED_RECORDS, totals.records_completed)
        replay = snapshot.replay
        samples.set(d.REPLAY_BATCHES, replay.batches - replay.completed if replay is not None else 0)
        samples.set(d.LEARNED_RATE, snapshot.rate or None)
        oldest = [block.meta.created_ms for block in snapshot.oldest_blocks[:1]]
        samples.set(d.OLDEST, max(0, snapshot.now_ms - oldest[0]) / 1000 if oldest else 0.0)
        if self._options.has_wal:
            samples.set(d.WAL_BYTES, totals.wal_bytes)
            samples.set(d.WAL_SEGMENTS, totals.wal_segments)
            samples.set(d.WAL_BLOCKS, totals.wal_blocks)
        expired = sum(ended.expired for ended in snapshot.ended_cursors)
        samples.counts(d.CURSORS, {"open": len(snapshot.cursors), "expired": expired})

    def _stores(self, samples: Samples, led: Led) -> None:
        """Set what a store or the decision loop is asked for. If one does not answer, ``forebay_problems`` says so."""
        with suppress(StoreError, UnreachableError):
            journal = led.observed.journal()
            samples.set(d.JOURNAL_EVENTS, journal.events)
            samples.set(d.JOURNAL_UNSNAPPED, journal.events - journal.snapshot_events)
            samples.set(d.JOURNAL_BYTES, journal.bytes)
            samples.set(d.JOURNAL_SEGMENTS, journal.segments)
            samples.set(d.JOURNAL_FREE, journal.free_bytes)
            if self._options.has_wal:
                samples.set(d.WAL_HELD_BYTES, led.observed.held_for_cursors())

    def _processes(self, samples: Samples, snapshot: Snapshot) -> None:
        beats = snapshot.receiver_heartbeats
        receivers = Counter(
            self._state_of(beats.get(receiver.receiver_id), snapshot.now)
            for receiver in snapshot.raw_receivers
            if receiver.instance_id and not is_reserved(receiver.receiver_id)
        )
        agents = Counter(self._state_of(latest, snapshot.now) for latest in snapshot.agent_heartbeats.values())
        for metric, found in ((d.RECEIVERS, receivers), (d.AGENTS, agents)):
            del found[_ENDED]
            samples.counts(metric, found)

    def _state_of(self, latest: LastHeartbeat | LastAgentHeartbeat | None, now: float) -> str:
        """Return the state of a process. One that drained before it became silent has ended as it should."""
        if latest is None:
            return "registered"
        state = latest.heartbeat.state
        if now - latest.at <= self._options.receiver_timeout:
            return state
        return _ENDED if state == "draining" else "lost"

    def _batches(self, samples: Samples, led: Led, snapshot: Snapshot) -> None:
        running = snapshot.around.running
        states = Counter(running.get(batch.batch_id, QUEUED).state for batch in snapshot.unfinished)
        samples.counts(d.BATCHES, states)
        samples.set(d.PAUSED, snapshot.pause is not None)
        for name, count in dict(led.scheduler.tiers).items():
            tier, _, failure = name.partition(": ")
            samples.set(d.TIER_READS, count, tier, failure or "read")

    def _problems(self, samples: Samples, snapshot: Snapshot) -> None:
        samples.counts(d.PROBLEM, Counter(problem.kind for problem in problems(snapshot)))
        samples.counts(d.PENDING, Counter(problem.kind for problem in snapshot.around.verdict.pending))

    def _partitions(self, samples: Samples, snapshot: Snapshot) -> None:
        tracked = snapshot.tracked_partitions
        samples.counts(d.PARTITIONS, Counter("fault" if p.state == m.FAULT_STATE else p.state for p in tracked))
        names = label_sets([TopicPartition(p.topic, p.partition) for p in tracked], self._options.partitions_max)
        for metric, values, join in (
            (d.POSITION, [p.position for p in tracked], sum),
            (d.COMPLETED, [p.completed for p in tracked], sum),
            (d.END, [p.high_watermark if p.high_watermark >= 0 else None for p in tracked], sum),
            (d.LAG_RECORDS, [p.lag for p in tracked], sum),
            (d.LAG_SECONDS, [p.lag_seconds for p in tracked], max),
        ):
            set_joined(samples, metric, names, values, join)


def label_sets(partitions: Iterable[TopicPartition], series_max: int) -> list[tuple[str, str]]:
    """Return the labels topic and partition of each of ``partitions``, with at most ``series_max`` different ones.

    If there are more partitions, the label partition is empty, and each series is of a topic. If there are more topics too, both
    labels are empty, and the only series is of the stream.
    """
    found = list(partitions)
    if len(found) <= series_max:
        return [(tp.topic, str(tp.partition)) for tp in found]
    if len({tp.topic for tp in found}) <= series_max:
        return [(tp.topic, "") for tp in found]
    return [("", "")] * len(found)


def set_joined(
    samples: Samples,
    metric: Metric,
    names: Sequence[tuple[str, str]],
    values: Iterable[float | None],
    join: Callable[[list[float]], float],
) -> None:
    """Set ``metric`` for each of ``names``, joined over the partitions with these labels. Unknown values are left out."""
    each = zip(names, values, strict=True)
    samples.series(metric, each if len(set(names)) == len(names) else joined(each, join))


def joined(
    values: Iterable[tuple[tuple[str, str], float | None]], join: Callable[[list[float]], float]
) -> Iterator[tuple[tuple[str, str], float]]:
    """Join the known values with the same labels."""
    found: dict[tuple[str, str], list[float]] = {}
    for labels, value in values:
        if value is not None:
            found.setdefault(labels, []).append(value)
    return ((labels, join(known)) for labels, known in found.items())
