"""What a driver shows and does by its settings: listeners, statistics, pages of Spark, offsets of the group."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from driver import IngestContext
from driver.batches.job.batch import Batch
from driver.batches.job.engine import NamedJob
from driver.batches.local_engine import LocalEngine
from driver.decisions.allocation import BatchLimits
from driver.decisions.rate import Gains
from driver.decisions.rate_sharing import RateLimits
from driver.decisions.receiver_lifecycle import ManagedRules
from driver.journal import history
from driver.listeners.events import BatchCompleted, BlockAdded, Listener, ReceiverFailed, ReceiverStarted
from driver.service import Driver, DriverOptions
from forebay import messages as m
from forebay.client import Client as ObserverClient
from forebay.http.client import Client
from forebay.kafka.client.admin import Committed, KafkaAdmin
from forebay.model.errors import RefusedError
from forebay.model.units import Duration
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock
from tests.support.processes.played import PlayedReceiver
from tests.support.state.intakes import Collecting, Configure, ready, until
from wal.storage import open_storage


def test_offset_that_another_program_set_in_the_group_is_shown_with_the_command_to_continue_there(
    settings: Configure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule 5."""
    committed: dict[TopicPartition, Committed] = {}
    monkeypatch.setattr(KafkaAdmin, "committed", lambda *_: committed)
    s = settings()
    s = msgspec.structs.replace(s, kafka=msgspec.structs.replace(s.kafka, discovery_interval=0.05))
    with IngestContext(None, s) as intake:
        intake.foreach_batch(Collecting(1))
        tp = ready(intake, s)

        def shown() -> str:
            answer = Client(intake.url).get("/v1/status", m.StatusAnswer)
            return next(p.foreign for p in answer.partitions if p.partition == tp.partition)

        assert shown() == ""
        committed[tp] = Committed(30, -1, "")
        for _ in range(1000):
            if shown():
                break
            threading.Event().wait(0.02)
        assert f"forebay offsets reset {tp} --to 30" in shown()
        assert caplog.text.count("another program set group") == 1
        committed[tp] = Committed(0, -1, "forebay:1:1")
        for _ in range(1000):
            if not shown():
                break
            threading.Event().wait(0.02)
        assert shown() == ""


class Watching(Listener):
    """Made by the driver; the test finds the last one made."""

    last: Watching

    def __init__(self) -> None:
        Watching.last = self
        self.failed = threading.Event()
        self.events: list[Any] = []

    def receiver_started(self, event: ReceiverStarted) -> None:
        self.events.append(event)

    def receiver_failed(self, event: ReceiverFailed) -> None:
        self.events.append(event)
        self.failed.set()

    def block_added(self, event: BlockAdded) -> None:
        self.events.append(event)
        raise ValueError("a listener of little worth")


def test_listeners_of_the_settings_get_events_of_receivers_and_blocks_and_disturb_no_job(settings: Configure) -> None:
    s = settings(listeners=[f"{__name__}:Watching"], receiver_timeout="100ms", placing_interval="20ms")
    job = Collecting(5)
    with IngestContext(None, s) as intake:
        intake.foreach_batch(job)
        tp = ready(intake, s)
        receiver = PlayedReceiver(s, intake.url)
        receiver.take_in(tp, 5)
        assert job.enough.wait(30)
        beat = m.HeartbeatRequest(
            receiver_id="r1",
            epoch=receiver.epoch,
            state="active",
            detail="",
            acknowledged=0,
            buffered_bytes=0,
            records=5,
        )
        receiver.client.post("/v1/receivers/heartbeat", beat, m.HeartbeatAnswer)
        watching = Watching.last
        assert watching.failed.wait(30)  # it is silent from now on
        (listener,) = Client(intake.url).get("/v1/status", m.StatusAnswer).listeners
    assert [type(event) for event in watching.events] == [ReceiverStarted, BlockAdded, ReceiverFailed]
    assert (listener.failures, listener.dropped) == (1, 0)
    assert listener.last_error == "block_added: ValueError: a listener of little worth"


class WithPages(LocalEngine):
    """As one whose Spark has pages."""

    @property
    def ui_url(self) -> str:
        return "http://127.0.0.1:4040"


def test_overview_names_the_pages_of_spark(settings: Configure) -> None:
    s = settings()
    driver = Driver(
        s,
        upstream=KafkaAdmin(s.kafka.options),
        engine=WithPages(s, dict),
        jobs=[NamedJob("job", lambda batch: None)],
        clock=SystemClock(),
        options=DriverOptions(release="test"),
    )
    context = IngestContext(None, s)
    context._driver = driver
    driver.start()
    runs = threading.Thread(target=driver.run)
    runs.start()
    try:
        ready(context, s)
        assert Client(driver.url).get("/v1/overview", m.OverviewAnswer).spark_ui == "http://127.0.0.1:4040"
    finally:
        driver.stop()
        runs.join(30)
        driver.close()


def test_each_part_is_held_to_what_the_settings_say(settings: Configure) -> None:
    """One argument that is left out or swapped would silently leave a stream to a default."""
    s = settings(
        batch_interval="7s", job_max_failures=3, job_retry_delay="11s", max_queued_batches=5, concurrent_jobs=13,
        window_batches=17, empty_batches="deliver", unreadable_retry="19s", tasks_min=23, max_batch_records=29,
        max_batch_bytes="31B", receiver_timeout="37s", placing_interval="41s", backpressure=True,
        backpressure_proportional=0.43, backpressure_integral=0.47, backpressure_derivative=0.53,
        backpressure_min_rate=59,
    )  # fmt: skip
    receiver = msgspec.structs.replace(
        s.receiver, mode="managed", count=2, preferred_hosts=("h7",), hosts_wait=Duration(61), moves_max=67,
        start_timeout=Duration(71), host_failures_max=73, avoid_host=Duration(79), max_rate=89,
        max_rate_per_partition=97, min_rate_per_partition=83,
    )  # fmt: skip
    s = msgspec.structs.replace(s, receiver=receiver)
    driver = Driver(
        s,
        upstream=KafkaAdmin(s.kafka.options),
        engine=LocalEngine(s, dict),
        jobs=[],
        clock=SystemClock(),
        options=DriverOptions(release="test"),
    )
    try:
        driver.start()
        assert driver._parts is not None
        tracker = driver._parts.tracker
        scheduler, batches = driver._parts.scheduler, vars(tracker.batches)
        options, rules = scheduler._options, scheduler._runner._rules
        managed, sharing = vars(tracker.managed), vars(tracker.sharing)
        learning = scheduler._runner._hooks.completed.__self__  # type: ignore[union-attr]
        assert (options.batch_interval_seconds, rules.max_failures, rules.retry_delay_seconds) == (7, 3, 11)
        assert (options.concurrent_jobs, options.window_batches, options.empty_batches) == (13, 17, True)
        assert (rules.unreadable_retry_seconds, options.tasks()) == (19, 23)
        timer = vars(scheduler._timer)
        assert (timer["_interval"], timer["_empty_batches"]) == (7, True)
        assert (batches["_pace"].interval_ms, batches["_pace"].jobs) == (7_000, 13)
        assert (batches["_max_queued"], batches["_limits"]) == (5 + 13 - 1, BatchLimits(max_records=29, max_bytes=31))
        assert managed["_count"] == 2
        assert managed["_rules"] == ManagedRules(
            preferred=("h7",), hosts_wait_seconds=61, moves_max=67, timeout_seconds=37, round_seconds=41,
            start_timeout_seconds=71, host_failures_max=73, avoid_seconds=79,
        )  # fmt: skip
        assert sharing["_limits"] == RateLimits(max_rate=89, max_rate_per_partition=97, min_rate_per_partition=83)
        assert learning._estimator._gains == Gains(0.43, 0.47, 0.53, 59)
        assert learning._estimator._interval_ms == 7_000
    finally:
        driver.close()


def test_the_newest_batches_are_listed_with_their_statistics_also_by_the_next_driver(settings: Configure) -> None:
    """INV-7: the next driver reads them from the history."""
    s = settings(batch_history=3)
    s = msgspec.structs.replace(s, wal=msgspec.structs.replace(s.wal, cleanup_interval=Duration(0.05)))
    completed = threading.Semaphore(0)

    class Counting(Listener):
        def batch_completed(self, event: BatchCompleted) -> None:
            completed.release()

    runs: list[int] = []

    def fails_once(batch: Batch) -> None:
        runs.append(sum(rows.num_rows for rows in batch.read()))
        if len(runs) == 3:
            raise ValueError("once")

    with IngestContext(None, s) as intake:
        intake.add_listener(Counting()).foreach_batch(fails_once)
        tp = ready(intake, s)
        receiver = PlayedReceiver(s, intake.url)
        for count in (5, 6, 7, 8):
            receiver.take_in(tp, count)
            assert completed.acquire(timeout=30)
        with ObserverClient(intake.url) as client:
            answer = client.batches()
            assert intake.batches == answer.batches
            assert [(b.number, b.records, b.state, b.attempts) for b in answer.batches] == [
                (4, 8, "completed", 1), (3, 7, "completed", 2), (2, 6, "completed", 1),
            ]  # fmt: skip
            assert all(sum(b.tiers.values()) == 1 and b.total_delay_ms is not None for b in answer.batches)
            failed = client.batches(failed=True).batches
            assert [(b.number, b.detail[:17]) for b in failed] == [(3, "ValueError: once ")]
            detail = client.batch(3)
            assert [(r.partition, r.from_offset, r.until_offset, r.records) for r in detail.ranges] == [(0, 11, 18, 7)]
            with pytest.raises(RefusedError, match="batch_history"):
                client.batch(1)
        journal_storage = open_storage(s.driver.journal)
        assert IngestContext(None, s).batches == ()
        until(lambda: len(list(history.read(journal_storage, "s"))) == 4)
    assert intake.batches == answer.batches, "after the end too"
    with IngestContext(None, s) as intake:
        intake.foreach_batch(Collecting(1))
        ready(intake, s)
        with ObserverClient(intake.url) as client:
            until(lambda: client.batches().total == 3)
            assert client.batches().batches == answer.batches
            assert client.batch(3).ranges == detail.ranges
            assert client.batch(3).block_ids == detail.block_ids
