"""The events of an intake's driver for listeners, from its start to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from driver.batches.job.batch import Batch
from driver.http.observation.series import Sampler, Series
from driver.listeners import (
    BatchCompleted,
    BatchFailed,
    BatchStarted,
    BatchSubmitted,
    LagMeasured,
    Listener,
    OutputCompleted,
    StreamStarted,
    StreamStopped,
)
from driver.listeners.dispatch import Listeners
from driver.listeners.events import METHODS, Happened
from driver.service.answers.observing import tell_lag
from forebay import messages as m
from forebay.kafka.embedded.broker import MockBroker
from forebay.settings.schema import Settings
from tests.support.processes.running_driver import local_settings, running


@pytest.fixture
def settings(tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str]) -> Settings:
    return local_settings(tmp_path, mock_broker, topic_name())


class RecordingListener(Listener):
    """Keeps all events."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        for method in METHODS.values():
            setattr(self, method, self.events.append)

    def of(self, *kinds: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]


def test_events_from_the_start_of_a_stream_to_its_end(settings: Settings) -> None:
    """Each attempt at each output has a start, and an end as an output that is completed or an attempt that failed."""
    listener = RecordingListener()
    tries: list[int] = []

    def fails_once(batch: Batch) -> None:
        tries.append(batch.id)
        if len(tries) == 1:
            raise ValueError("once")

    with running(settings, lambda batch: None, fails_once, listeners=(listener,)) as driver:
        driver.take_in(4)
        driver.until(lambda now: now.batches_completed == 1)
    first, last = listener.events[0], listener.events[-1]
    assert isinstance(last, StreamStopped) and (last.stream, last.detail) == ("s", "")
    (started,) = listener.of(StreamStarted)
    assert (started.stream, started.epoch, started.batch_interval_ms) == ("s", last.epoch, 20)
    assert first.time_ms <= started.time_ms <= last.time_ms
    steps = listener.of(BatchSubmitted, BatchStarted, OutputCompleted, BatchFailed, BatchCompleted)
    assert [type(event) for event in steps] == [
        BatchSubmitted, BatchStarted, OutputCompleted, BatchStarted, BatchFailed, BatchStarted, OutputCompleted, BatchCompleted,
    ]  # fmt: skip
    submitted, completed = steps[0], steps[-1]
    assert (submitted.records, submitted.batch_time_ms) == (4, completed.batch_time_ms)
    assert submitted.ranges == completed.ranges and submitted.ranges
    starts = listener.of(BatchStarted)
    assert [(event.output, event.attempt, event.first) for event in starts] == [
        ("job-0", 1, True), ("job-1", 1, False), ("job-1", 2, False),
    ]  # fmt: skip
    outputs = listener.of(OutputCompleted)
    assert [(event.output, event.attempt) for event in outputs] == [("job-0", 1), ("job-1", 2)]
    assert sum(event.processing_ms for event in outputs) in range(
        completed.processing_ms - 1, completed.processing_ms + 2
    )
    assert listener.of(LagMeasured)


class Tapped:
    """Gets all events beside listeners."""

    def __init__(self, is_listening: bool) -> None:
        self.is_listening = is_listening
        self.notified: list[Happened] = []

    def note(self, events: Sequence[Any], now_ms: int) -> None: ...

    def tell(self, happened: Sequence[Happened]) -> None:
        self.notified += happened


def partition(number: int, end: int, lag: int | None) -> m.TrackedPartition:
    return m.TrackedPartition(
        topic="t", partition=number, incarnation=1, position=7, completed=5, high_watermark=end, lag=lag, lag_seconds=2.5,
        topic_id="", receiver_id="", token=1, state="active",
    )  # fmt: skip


def test_each_sample_tells_the_lag_of_the_snapshot_if_a_listener_wants_it() -> None:
    """It costs the decision loop nothing: observers have the snapshot anyway."""
    known = SimpleNamespace(tracked_partitions=(partition(0, 9, 2), partition(1, 7, 0)), now_ms=11)
    unknown = SimpleNamespace(tracked_partitions=(partition(0, 9, None),), now_ms=12)
    tap, deaf = Tapped(True), Tapped(False)
    for one in (tap, deaf):
        listeners = Listeners([], lambda: 0)
        listeners.attach(one)
        for snapshot in (known, unknown):
            tell_lag(listeners, snapshot)  # type: ignore[arg-type]
    assert deaf.notified == []
    first, second = tap.notified
    assert isinstance(first, LagMeasured) and isinstance(second, LagMeasured)
    assert (first.time_ms, first.not_taken_in, first.not_processed, first.lag_seconds) == (11, 2, 6, 2.5)
    assert (second.not_taken_in, second.partitions[0].end) == (None, None)


def test_sampler_passes_on_each_snapshot_once() -> None:
    taken: list[object] = []
    totals = SimpleNamespace(records_taken=0, records_completed=0, waiting_records=0, waiting_blocks=0)
    snapshots = [
        SimpleNamespace(now=float(now), now_ms=now, totals=totals, tracked_partitions=(), receivers=())
        for now in (1, 1, 2)
    ]
    left = iter(snapshots)
    sampler = Sampler(
        Series(),
        snapshot=lambda: next(left),  # type: ignore[arg-type, return-value]
        completed_since=lambda _: (),
        failed=taken.append,
        sampled=taken.append,
    )
    for _ in snapshots:
        sampler.sample()
    assert taken == [snapshots[0], snapshots[2]]
