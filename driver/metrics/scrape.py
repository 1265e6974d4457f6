"""What a scrape reads: the values of all metrics that the driver does not count itself.

The decision loop only copies references (``driver.metrics.snapshot``). All other work is done in the thread of the scrape. While
the decision loop does not answer, as when the journal's store has no space, the last snapshot is used, and its age is a metric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as AnswerLate
from contextlib import suppress
from dataclasses import dataclass

from driver.background.reach import END_AGE_SECONDS_MAX, Ends
from driver.batches.entries import QUEUED
from driver.batches.scheduler import Scheduler
from driver.decision_loop.loop import DriverLoop
from driver.http.health import Verdict
from driver.journal.state import Partition
from driver.metrics import definitions as d
from driver.metrics.snapshot import ReadSnapshot, Snapshot
from driver.tracker import Tracker
from driver.tracker.heartbeats import LastAgentHeartbeat, LastHeartbeat
from forebay import messages as m
from forebay.metrics.definition import Metric
from forebay.metrics.exposition import Samples
from forebay.model.errors import UnreachableError
from forebay.model.values import TopicPartition, is_reserved
from forebay.process.clock import Clock

_ENDED = "ended"
#: maximum time that a scrape waits for the decision loop
PATIENCE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """The parts of a driver that leads. ``ends``: None for a custom source. ``verdict``: the problems found last.
    ``store_requests``: requests to remote stores by store and kind. ``longest_wait``: as ``driver.metrics.counting.Longest``.
    """

    tracker: Tracker
    loop: DriverLoop
    scheduler: Scheduler
    ends: Ends | None
    verdict: Callable[[], Verdict]
    store_requests: Callable[[], Mapping[str, int]]
    longest_wait: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What every driver has, also a standby. ``state``: as the status shows it. ``led``: None until the driver leads."""

    state: Callable[[], str]
    http_requests: Callable[[], int]
    listeners: Callable[[], tuple[m.TrackedListener, ...]]
    led: Callable[[], Led | None]


class Scrape:
    """Sets the values at a scrape. One thread at a time calls :meth:`read`.

    ``receiver_timeout``, ``batch_interval``: as in ``[driver]``, in seconds. ``partitions_max``: as
    ``driver.metrics_partitions``. ``has_wal``: whether the stream has a WAL.
    """

    def __init__(
        self,
        process: Process,
        clock: Clock,
        *,
        receiver_timeout: float,
        batch_interval: float,
        partitions_max: int,
        has_wal: bool,
    ) -> None:
        self._process = process
        self._clock = clock
        self._receiver_timeout = receiver_timeout
        self._batch_interval = batch_interval
        self._partitions_max = partitions_max
        self._has_wal = has_wal
        self._last: tuple[Snapshot, float] | None = None
        self._asked: tuple[Future[Snapshot], float] | None = None  # without an answer yet, and when it was asked

    def read(self, samples: Samples) -> None:
        """Set all values. Waits for the decision loop, at most ``PATIENCE_SECONDS``."""
        process = self._process
        samples.states(d.STATE, process.state())
        samples.set(d.BATCH_INTERVAL, self._batch_interval)
        samples.set(d.HTTP_REQUESTS, process.http_requests())
        for listener in process.listeners():
            samples.set(d.LISTENER_EVENTS, listener.delivered, listener.name, "delivered")
            samples.set(d.LISTENER_EVENTS, listener.dropped, listener.name, "dropped")
            samples.set(d.LISTENER_QUEUE, listener.waiting, listener.name)
        led = process.led()
        samples.set(d.LEADS, led is not None)
        if led is None:
            return
        self._loop(samples, led)
        taken = self._snapshot(led)
        if taken is None:
            return
        snapshot, read_at = taken
        samples.set(d.SNAPSHOT_AGE, self._clock.monotonic() - read_at)
        self._totals(samples, snapshot)
        self._processes(samples, snapshot)
        self._partitions(samples, led, snapshot)
        self._batches(samples, led, snapshot)
        self._problems(samples, led, snapshot)

    def _snapshot(self, led: Led) -> tuple[Snapshot, float] | None:
        """Return the newest snapshot and when it was taken; None if there has never been one."""
        now = self._clock.monotonic()
        asked = self._asked or (led.loop.submit(ReadSnapshot(led.tracker, now)), now)
        self._asked = asked  # until it is answered: while the loop hangs, scrapes do not fill its queue
        with suppress(AnswerLate, UnreachableError):  # the snapshot's age shows it
            self._last = asked[0].result(PATIENCE_SECONDS), asked[1]
        if asked[0].done():
            self._asked = None
        return self._last

    def _loop(self, samples: Samples, led: Led) -> None:
        loop = led.loop
        samples.set(d.QUEUED_REQUESTS, loop.queued)
        samples.set(d.LONGEST_WAIT, led.longest_wait())
        samples.set(d.JOURNAL_FREE, loop.free_bytes)
        samples.set(d.JOURNAL_WRITTEN, loop.written_bytes)
        for request, count in led.store_requests().items():
            samples.set(d.STORE_REQUESTS, count, request)

    def _totals(self, samples: Samples, snapshot: Snapshot) -> None:
        samples.set(d.JOURNAL_EVENTS, snapshot.events)
        samples.set(d.WAITING_BLOCKS, snapshot.waiting_blocks)
        samples.set(d.WAITING_RECORDS, snapshot.waiting_records)
        samples.set(d.QUEUED_RECORDS, snapshot.queued_records)
        samples.set(d.COMPLETED_BATCHES, snapshot.completed_batches)
        samples.set(d.COMPLETED_RECORDS, snapshot.completed_records)
        samples.set(d.REPLAY_BATCHES, snapshot.replay_batches)
        samples.set(d.LEARNED_RATE, snapshot.learned_rate or None)
        oldest_ms = snapshot.oldest_blocks[0].meta.created_ms if snapshot.oldest_blocks else None
        samples.set(d.OLDEST, self._age_seconds(oldest_ms) if oldest_ms is not None else 0.0)
        if self._has_wal:
            samples.set(d.WAL_BYTES, snapshot.wal_bytes)
            samples.set(d.WAL_SEGMENTS, snapshot.wal_segments)
            samples.set(d.WAL_BLOCKS, snapshot.wal_blocks)
            held = sum(share.bytes for share in snapshot.segments if share.unread and not share.held)
            samples.set(d.WAL_HELD_BYTES, held)
        expired = sum(ended.expired for ended in snapshot.ended_cursors)
        samples.counts(d.CURSORS, {"open": snapshot.cursors, "expired": expired})

    def _processes(self, samples: Samples, snapshot: Snapshot) -> None:
        now = self._clock.monotonic()
        beats = snapshot.receiver_heartbeats
        receivers = Counter(
            self._state_of(beats.get(receiver.receiver_id), now)
            for receiver in snapshot.receivers
            if receiver.instance_id and not is_reserved(receiver.receiver_id)
        )
        del receivers[_ENDED]
        samples.counts(d.RECEIVERS, receivers)
        agents = Counter(self._state_of(latest, now) for latest in snapshot.agent_heartbeats.values())
        del agents[_ENDED]
        samples.counts(d.AGENTS, agents)

    def _state_of(self, latest: LastHeartbeat | LastAgentHeartbeat | None, now: float) -> str:
        """Return the state of a process. One that drained before it became silent has ended as it should."""
        if latest is None:
            return "registered"
        state = latest.heartbeat.state
        if now - latest.at <= self._receiver_timeout:
            return state
        return _ENDED if state == "draining" else "lost"

    def _batches(self, samples: Samples, led: Led, snapshot: Snapshot) -> None:
        running = dict(led.scheduler.running)
        states = Counter(running.get(batch.batch_id, QUEUED).state for batch in snapshot.unfinished)
        samples.counts(d.BATCHES, states)
        for name, count in dict(led.scheduler.tiers).items():
            tier, _, failure = name.partition(": ")
            samples.set(d.TIER_READS, count, tier, failure or "read")

    def _problems(self, samples: Samples, led: Led, snapshot: Snapshot) -> None:
        verdict = led.verdict()
        found = Counter(problem.kind for problem in verdict.problems)
        found["partition"] += sum(partition.fault is not None for partition in snapshot.partitions)
        found["receiver-without-host"] += sum(bool(receiver.fault) for receiver in snapshot.managed)
        found["cursor"] += sum(ended.expired for ended in snapshot.ended_cursors)
        for batch in tuple(led.scheduler.running.values()):
            found["batch-unreadable"] += batch.state == "unreadable"
            found["job"] += batch.state in ("failing", "failed") or (batch.state == "running" and bool(batch.detail))
        found["driver"] += self._process.state() == "failed" and not found["job"]
        samples.counts(d.PROBLEM, found)
        samples.counts(d.PENDING, Counter(problem.kind for problem in verdict.pending))

    # ---- partitions --------------------------------------------------------------------------------------------------

    def _partitions(self, samples: Samples, led: Led, snapshot: Snapshot) -> None:
        reported: dict[tuple[str, str, int], m.PartitionStatus] = {
            (receiver_id, status.topic, status.partition): status
            for receiver_id, latest in snapshot.receiver_heartbeats.items()
            for status in latest.heartbeat.partitions
        }
        oldest = self._oldest(snapshot)
        states: Counter[str] = Counter()
        progress = []
        for partition in snapshot.partitions:
            status = reported.get((partition.owner, partition.topic, partition.partition))
            states[_state(partition, status)] += 1
            progress.append(self._progress(led.ends, snapshot, partition, status, oldest.get(partition.tp)))
        samples.counts(d.PARTITIONS, states)
        names = label_sets([p.tp for p in snapshot.partitions], self._partitions_max)
        for metric, values, joined in (
            (d.POSITION, [p.position for p in progress], sum),
            (d.COMPLETED, [p.completed for p in progress], sum),
            (d.END, [p.end for p in progress], sum),
            (d.LAG_RECORDS, [p.lag_records for p in progress], sum),
            (d.LAG_SECONDS, [p.lag_seconds for p in progress], max),
        ):
            _set_joined(samples, metric, names, values, joined)

    def _progress(
        self,
        ends: Ends | None,
        snapshot: Snapshot,
        partition: Partition,
        status: m.PartitionStatus | None,
        oldest_ms: int | None,
    ) -> _Progress:
        position, completed = partition.position, partition.completed
        end, age = _end(ends, snapshot, partition, status, self._clock.monotonic())
        is_known = end is not None and age <= END_AGE_SECONDS_MAX
        if completed >= position:
            seconds: float | None = 0.0
        else:
            seconds = self._age_seconds(oldest_ms) if oldest_ms is not None else None
        return _Progress(
            position, completed, end, max(0, end - position) if is_known and end is not None else None, seconds
        )

    def _oldest(self, snapshot: Snapshot) -> Mapping[TopicPartition, int]:
        """Return the time of the newest record in the oldest block of each partition that is in no completed batch."""
        found: dict[TopicPartition, int] = {}
        for block in snapshot.oldest_blocks:
            for held in block.meta.ranges:
                if held.max_timestamp_ms >= 0:
                    found.setdefault(held.tp, held.max_timestamp_ms)
        return found

    def _age_seconds(self, time_ms: int) -> float:
        return max(0, self._clock.wall_ms() - time_ms) / 1000


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far a partition is. None: unknown."""

    position: int
    completed: int
    end: int | None
    lag_records: int | None
    lag_seconds: float | None


def _state(partition: Partition, status: m.PartitionStatus | None) -> str:
    """Return the partition's state, as ``messages.TrackedPartition.state``, but for a fault."""
    if partition.fault is not None or (status is not None and status.state == "trouble"):
        return "fault"
    if status is not None:
        return status.state
    return "claimed" if partition.owner else "unclaimed"


def _end(
    ends: Ends | None, snapshot: Snapshot, partition: Partition, status: m.PartitionStatus | None, now: float
) -> tuple[int | None, float]:
    """Return the end offset of the partition in Kafka and its age in seconds."""
    if ends is not None:
        read = ends.of(partition.tp)
        return (max(read[0], status.high_watermark if status is not None else -1), read[1]) if read else (None, 0.0)
    latest = snapshot.receiver_heartbeats.get(partition.owner)
    if status is None or latest is None or status.high_watermark < 0:
        return None, 0.0
    return status.high_watermark, now - latest.at


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


def _set_joined(
    samples: Samples,
    metric: Metric,
    names: list[tuple[str, str]],
    values: list[int] | list[int | None] | list[float | None],
    join: Callable[[list[float]], float],
) -> None:
    """Set ``metric`` for each of ``names``, joined over the partitions with these labels. Unknown values are left out."""
    joined: dict[tuple[str, str], list[float]] = {}
    for name, value in zip(names, values, strict=True):
        if value is not None:
            joined.setdefault(name, []).append(value)
    for name, known in joined.items():
        samples.set(metric, join(known), *name)
