"""How a direct stream ends: superseded by another one, stopped, or by an error of a callback."""

from __future__ import annotations

import threading

import pytest

from direct.stream.strategies import Subscribe
from direct.stream.stream import DirectStream
from driver.batches.job.batch import Batch
from driver.journal.leadership.lease import LeaseHeld
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.errors import FencedError, StoreError
from forebay.model.values import TopicPartition
from tests.direct.stream.test_stream import offsets_at
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.processes.direct_process import InProcess
from tests.support.processes.direct_runs import Runs
from tests.support.state.again import produce

pytestmark = pytest.mark.kafka


def test_second_stream_waits_for_the_lease_and_ends_the_first_when_it_leads(
    runs: Runs, tps: list[TopicPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-4."""
    first = runs.start(Subscribe([tps[0].topic]))
    with pytest.raises(LeaseHeld):
        runs.start(Subscribe([tps[0].topic]))
    monkeypatch.setattr("direct.stream.stream.wait_until_stale", lambda *_: None)
    runs.start(Subscribe([tps[0].topic]))
    with pytest.raises(FencedError, match="another driver leads stream 's'"):
        first.await_termination(PATIENCE_SECONDS)


def test_fenced_stream_cancels_the_spark_tasks_of_its_job(
    runs: Runs, tps: list[TopicPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-4: otherwise they would write beside those of the newer stream."""
    cancelled = threading.Event()
    at_work = threading.Event()
    monkeypatch.setattr(InProcess, "cancel", lambda _: cancelled.set())

    def job(work: Batch) -> None:
        at_work.set()
        assert cancelled.wait(PATIENCE_SECONDS)
        raise ValueError("its tasks were cancelled")

    first = runs.start(Subscribe([tps[0].topic]), job)
    assert at_work.wait(PATIENCE_SECONDS)
    monkeypatch.setattr("direct.stream.stream.wait_until_stale", lambda *_: None)
    runs.start(Subscribe([tps[0].topic]))
    with pytest.raises(FencedError):
        first.await_termination(PATIENCE_SECONDS)
    assert cancelled.is_set()


def test_stop_during_the_start_ends_the_stream(
    runs: Runs, tps: list[TopicPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DirectStream._open

    def stopped_first(stream: DirectStream) -> None:
        stream.stop()
        real(stream)

    monkeypatch.setattr(DirectStream, "_open", stopped_first)
    assert runs.start(Subscribe([tps[0].topic])).await_termination(PATIENCE_SECONDS)


def test_stop_returns_after_the_end_and_immediately_in_the_job(runs: Runs, tps: list[TopicPartition]) -> None:
    """Like ``IngestContext.stop``: the caller may open the checkpoint next."""
    seen: list[bool] = []

    def job(batch: Batch) -> None:
        runs.streams[-1].stop()
        seen.append(runs.streams[-1].await_termination(0))

    stream = runs.start(Subscribe([tps[0].topic]), job)
    assert stream.await_termination(PATIENCE_SECONDS)
    assert seen == [False]
    in_job, go_on = threading.Event(), threading.Event()

    def slow(batch: Batch) -> None:
        in_job.set()
        assert go_on.wait(PATIENCE_SECONDS)

    produce(runs.options, tps[0], 5)
    second = runs.start(Subscribe([tps[0].topic]), slow)
    assert in_job.wait(PATIENCE_SECONDS)
    stopping = threading.Thread(target=second.stop)
    stopping.start()
    stopping.join(0.5)
    assert stopping.is_alive()
    go_on.set()
    stopping.join(PATIENCE_SECONDS)
    assert second.await_termination(0)


@pytest.mark.parametrize("interval_seconds", [0.1, 3600.0], ids=["with a batch", "at the end"])
def test_commit_callback_may_stop_the_stream(interval_seconds: float, runs: Runs, tps: list[TopicPartition]) -> None:
    """Callbacks run in the stream's threads, which must not wait for themselves."""
    stopped = threading.Event()

    def callback(*_: object) -> None:
        stream.stop()
        stopped.set()

    stream = runs.start(
        Subscribe([tps[0].topic]), params={"group.id": f"s-{tps[0].topic}"}, interval_seconds=interval_seconds
    )
    runs.commits.add([OffsetRange(*offsets_at(tps[0], 0, 5))], callback)
    if interval_seconds > 1:
        threading.Thread(target=stream.stop, daemon=True).start()
    assert stopped.wait(PATIENCE_SECONDS)
    assert stream.await_termination(PATIENCE_SECONDS)


def test_commit_callback_may_stop_a_stream_without_batches(
    runs: Runs, tps: list[TopicPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that ends the stream sends the last commits."""
    go_on, stopped = threading.Event(), threading.Event()

    def fail(*_: object) -> None:
        assert go_on.wait(PATIENCE_SECONDS)
        raise StoreError("the lease can't be read")

    def callback(*_: object) -> None:
        stream.stop()
        stopped.set()

    monkeypatch.setattr("direct.stream.stream.await_tasks_of", fail)
    stream = runs.start(Subscribe([tps[0].topic]), params={"group.id": f"n-{tps[0].topic}"}, interval_seconds=3600.0)
    runs.commits.add([OffsetRange(*offsets_at(tps[0], 0, 5))], callback)
    go_on.set()
    assert stopped.wait(PATIENCE_SECONDS)
    with pytest.raises(StoreError):
        stream.await_termination(PATIENCE_SECONDS)


def test_callback_that_ends_its_thread_ends_the_stream(runs: Runs, tps: list[TopicPartition]) -> None:
    def callback(*_: object) -> None:
        raise SystemExit

    stream = runs.start(Subscribe([tps[0].topic]), params={"group.id": f"x-{tps[0].topic}"}, interval_seconds=3600.0)
    runs.commits.add([OffsetRange(*offsets_at(tps[0], 0, 1))], callback)
    stream.stop()
    with pytest.raises(SystemExit):
        stream.await_termination(PATIENCE_SECONDS)
