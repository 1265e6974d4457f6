"""The graceful stop: what it waits for, for how long, and what it leaves; and the end when all is caught up."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from driver import IngestContext
from driver.background.catch_up import CatchUp
from driver.batches.job.batch import Batch
from driver.batches.job.engine import NamedJob
from driver.batches.local_engine import LocalEngine
from driver.decision_loop.stopping import Drain, Remaining, Summary, remaining
from driver.journal.events import IncarnationBegun, IncarnationStart
from driver.journal.state import State
from driver.journal.state_parts import Batch as JournalledBatch
from driver.journal.transitions import apply
from driver.service import Driver, DriverOptions
from driver.tracker.requests import BeginDrain
from forebay import messages as m
from forebay.http.client import Client
from forebay.kafka.client.admin import KafkaAdmin
from forebay.model.errors import FencedError, ForebayError, UnreachableError, UsageError
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock
from forebay.settings.schema import Settings
from recovery.audit import audit
from tests.support.processes.played import PlayedReceiver
from tests.support.state.intakes import Collecting, Configure, ready
from tests.support.state.tracked import Tracked, tp
from wal.storage import open_storage


def test_drain_waits_for_receivers_that_hold_claims_or_have_not_acknowledged_it() -> None:
    t = Tracked(partitions=1)
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.beat(epoch)
    t.take_in(epoch, token, 5)
    now = t.now_ms / 1000
    assert t.say(BeginDrain()) == ("r1",)
    assert remaining(t.tracker, now, now, 30.0) == Remaining(("r1",), 1, 0)
    (command,) = t.beat(epoch)
    assert command.kind == "drain"
    release = m.Release(topic="t", partition=0, token=token)
    t.say(m.ReleaseRequest(receiver_id="r1", epoch=epoch, releases=(release,)))
    assert remaining(t.tracker, now, now, 30.0) == Remaining(("r1",), 1, 0), "it has not said that it obeyed"
    t.beat(epoch, seen=command.version)
    assert remaining(t.tracker, now, now, 30.0) == Remaining((), 1, 0)
    batch = t.batch()
    assert remaining(t.tracker, now, now, 30.0) == Remaining((), 0, 1)
    t.complete(batch)
    assert remaining(t.tracker, now, now, 30.0) == Remaining()


def test_a_drain_does_not_wait_for_a_receiver_that_is_lost() -> None:
    t = Tracked(partitions=1)
    epoch = t.register()
    t.claim(epoch)
    now = t.now_ms / 1000
    assert remaining(t.tracker, now + 29, now, 30.0).receivers == ("r1",), "it may not have found the driver yet"
    assert remaining(t.tracker, now + 31, now, 30.0).receivers == ()
    t.beat(epoch)
    assert remaining(t.tracker, now + 29, now - 100, 30.0).receivers == ("r1",)
    assert remaining(t.tracker, now + 31, now, 30.0).receivers == ()


def test_a_receiver_that_holds_nothing_and_has_not_answered_this_driver_is_not_waited_for_nor_called_drained() -> None:
    """It drained under the driver before, and waits before it connects again: no process receives its order."""
    t = Tracked(partitions=1)
    t.register()
    assert t.say(BeginDrain()) == ("r1",)
    now = t.now_ms / 1000
    left = remaining(t.tracker, now, now, 30.0)
    assert left == Remaining(silent=("r1",))
    assert left.is_nothing
    drain = Drain(
        ask=cast(Any, lambda _: left),
        look=cast(Any, lambda _: left),
        allocate=lambda: None,
        stopped=threading.Event(),
        clock=SystemClock(),
        timeout_seconds=30.0,
    )
    drain.receivers, drain.left = ("r1", "r2"), left
    assert drain.drained == ("r2",)


def test_caught_up_is_what_kafka_held_at_the_start_whatever_came_since() -> None:
    t = Tracked(partitions=2)
    epoch = t.register()
    token = t.claim(epoch).view.token
    target = CatchUp.of({tp(0): 5, tp(1): 0}, {tp(0): 1, tp(1): 1})
    assert target.missing(t.state) == [tp(0)]
    t.take_in(epoch, token, 9)
    assert target.missing(t.state) == [tp(0)], "taken in is not completed"
    t.complete(t.batch())
    assert target.missing(t.state) == []
    assert CatchUp.of({TopicPartition("u", 0): 1}, {TopicPartition("u", 0): 1}).missing(t.state)
    later = CatchUp.of({tp(0): 50}, {tp(0): 1})
    assert later.missing(t.state) == [tp(0)]
    apply(t.state, IncarnationBegun(IncarnationStart("t", 0, 9, "id"), 1, "reset"))
    assert later.missing(t.state) == [], "Kafka no longer has what that incarnation did not give"


def test_what_a_summary_says() -> None:
    left = Remaining(("r2",), 3, 1)
    assert str(Summary(2, 30, ("r1",), left)) == (
        "2 batches with 30 records completed; receivers drained: r1; what waits still: receivers r2, 3 blocks without a "
        "batch, 1 batches"
    )
    assert str(Summary(2, 30, ("r1",), Remaining(silent=("r2",)))) == (
        "2 batches with 30 records completed; receivers drained: r1; receivers that did not answer: r2; what waits still: "
        "nothing"
    )
    assert str(Summary(0, 0)) == "0 batches with 0 records completed; what waits still: nothing"


class Obeying(PlayedReceiver):
    """Sends heartbeats until it is ordered to drain; then it reports its blocks, releases its claim and acknowledges."""

    def obey(self, holding: int) -> None:
        partition = next(iter(self.tokens))
        beat = m.HeartbeatRequest(
            receiver_id=self.receiver_id, epoch=self.epoch, state="active", detail="", acknowledged=0,
            buffered_bytes=0, records=0,
        )  # fmt: skip
        for _ in range(1500):
            commands = self.client.post("/v1/receivers/heartbeat", beat, m.HeartbeatAnswer).commands
            if any(command.kind == "drain" for command in commands):
                break
            threading.Event().wait(0.02)
        else:
            raise AssertionError("it was not ordered to drain")
        self.take_in(partition, holding)
        release = m.Release(topic=partition.topic, partition=partition.partition, token=self.tokens[partition])
        request = m.ReleaseRequest(receiver_id=self.receiver_id, epoch=self.epoch, releases=(release,))
        self.client.post("/v1/partitions/release", request, m.Done)
        done = max(command.version for command in commands)
        self.client.post(
            "/v1/receivers/heartbeat",
            m.HeartbeatRequest(
                receiver_id=self.receiver_id, epoch=self.epoch, state="draining", detail="", acknowledged=done,
                buffered_bytes=0, records=0,
            ),
            m.HeartbeatAnswer,
        )  # fmt: skip


@pytest.mark.parametrize("interval", ["1h", "0s"])
def test_a_drain_completes_what_receivers_still_held_refuses_new_ones_and_shows_it(
    settings: Configure,
    interval: str,
) -> None:
    """Also with an interval of an hour the last blocks get their batch immediately."""
    s = settings(batch_interval=interval)
    job = Collecting(30)
    context = IngestContext(None, s).foreach_batch(job)
    partition = ready(context, s)
    receiver = Obeying(s, context.url)
    receiver.take_in(partition, 10)
    url = context.url
    answer = Client(url).post("/v1/operator/stop", m.StopRequest(drain=True), m.OperatorAnswer)
    assert "draining" in answer.message
    with pytest.raises(UnreachableError, match="stopping"):
        PlayedReceiver(s, url, "late")
    receiver.obey(20)
    assert context.await_termination(30)
    assert job.offsets == list(range(30))
    report = audit(open_storage(s.driver.journal), "s")
    assert report.clean
    assert report.batches_unfinished == 0
    with KafkaAdmin(s.kafka.options) as admin:
        assert admin.committed(s.completed_group, [partition])[partition].offset == 30
    assert context.summary == Summary(report.batches_completed, 30, ("r1",))


def test_what_is_not_done_within_the_time_waits_for_the_next_driver(settings: Configure) -> None:
    """INV-6; INV-3: the batch runs again, marked as a rerun."""
    s = settings()
    entered, cancelled = threading.Event(), threading.Event()

    class Engine(LocalEngine):
        def cancel(self) -> None:
            cancelled.set()

    def stuck(batch: Batch) -> None:
        entered.set()
        assert cancelled.wait(30)
        raise ValueError("its tasks were cancelled")

    driver = Driver(
        s,
        upstream=KafkaAdmin(s.kafka.options),
        engine=Engine(s, dict),
        jobs=(NamedJob("job", stuck),),
        clock=SystemClock(),
        options=DriverOptions(release="test"),
    )
    runs = threading.Thread(target=driver.run)
    try:
        driver.start()
        runs.start()
        context = IngestContext(None, s)
        context._driver = driver
        partition = ready(context, s)
        receiver = PlayedReceiver(s, driver.url)
        receiver.take_in(partition, 10)
        assert entered.wait(30)
        driver.stop(drain=True, timeout_seconds=0.2)
        runs.join(30)
        assert not runs.is_alive()
        assert driver.summary() == Summary(0, 0, (), Remaining(("r1",), 0, 1))
    finally:
        driver.close()
    job = Collecting(10)
    with IngestContext(None, s) as intake:
        intake.foreach_batch(job)
        assert job.enough.wait(30)
    assert job.reruns == list(job.seen)


def test_a_driver_that_learns_that_it_is_fenced_cancels_what_it_has_in_spark(
    settings: Configure,
) -> None:
    """INV-4: a newer driver runs the same batch; the old one's tasks would write beside it."""
    s = settings()
    entered, cancelled = threading.Event(), threading.Event()

    class Engine(LocalEngine):
        def cancel(self) -> None:
            cancelled.set()

    def stuck(batch: Batch) -> None:
        entered.set()
        cancelled.wait(60)
        raise ValueError("its tasks were cancelled")

    old = Driver(
        s,
        upstream=KafkaAdmin(s.kafka.options),
        engine=Engine(s, dict),
        jobs=(NamedJob("job", stuck),),
        clock=SystemClock(),
        options=DriverOptions(release="test"),
    )
    ends: list[BaseException] = []

    def run() -> None:
        try:
            old.run()
        except FencedError as error:
            ends.append(error)

    runs = threading.Thread(target=run)
    try:
        old.start()
        runs.start()
        context = IngestContext(None, s)
        context._driver = old
        partition = ready(context, s)
        receiver = PlayedReceiver(s, old.url)
        receiver.take_in(partition, 10)
        assert entered.wait(30)
        job = Collecting(10)
        with IngestContext(None, s, take_over=True) as intake:
            intake.foreach_batch(job)
            with pytest.raises(ForebayError):
                receiver.take_in(partition, 10)  # the write by which it learns it
            assert cancelled.wait(30)
            runs.join(30)
            assert not runs.is_alive()
            assert job.enough.wait(30)
    finally:
        old.close()
    assert len(ends) == 1
    assert job.reruns == list(job.seen)


def test_a_stop_without_drain_ends_one_that_is_under_way(settings: Configure) -> None:
    s = settings()
    context = IngestContext(None, s).foreach_batch(Collecting(1))
    partition = ready(context, s)
    PlayedReceiver(s, context.url).claim(partition)
    waits = threading.Thread(target=context.stop, args=(True,))
    waits.start()
    while "draining" not in Client(context.url).get("/v1/status", m.StatusAnswer).detail:
        threading.Event().wait(0.02)
    context.stop()
    waits.join(30)
    assert context.await_termination(0)


def test_a_stop_that_waits_for_a_job_registers_no_more_receivers(settings: Configure) -> None:
    s = settings()
    entered, go_on = threading.Event(), threading.Event()

    def job(batch: Batch) -> None:
        entered.set()
        assert go_on.wait(30)

    context = IngestContext(None, s).foreach_batch(job)
    partition = ready(context, s)
    try:
        PlayedReceiver(s, context.url).take_in(partition, 10)
        assert entered.wait(30)
        Client(context.url).post("/v1/operator/stop", m.StopRequest(), m.OperatorAnswer)
        with pytest.raises(UnreachableError, match="stopping"):
            PlayedReceiver(s, context.url, "late")
    finally:
        go_on.set()
    assert context.await_termination(30)


def test_summary_is_read_in_the_decision_loop_and_also_after_its_end(
    settings: Configure,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-7: no other thread reads the state while it changes."""
    readers: list[str] = []
    unfinished = State.unfinished

    def recorded(state: State) -> list[JournalledBatch]:
        readers.append(threading.current_thread().name)
        return unfinished(state)

    s = settings()
    with IngestContext(None, s).foreach_batch(job := Collecting(3)) as intake:
        PlayedReceiver(s, intake.url).take_in(ready(intake, s), 3)
        assert job.enough.wait(30)
        monkeypatch.setattr(State, "unfinished", recorded)
        assert intake.summary.drained == ()
        assert set(readers) == {"decide"}
    assert intake.summary == Summary(1, 3)
    assert "MainThread" in readers


def test_a_stop_may_not_take_for_ever(settings: Configure) -> None:
    s = settings()
    with IngestContext(None, s).foreach_batch(Collecting(1)) as intake:
        ready(intake, s)
        for seconds, refusal in ((-1.0, "timeout_seconds: Expected `float` >= 0.0"), (1e9, "may take")):
            request = m.StopRequest(drain=True, timeout_seconds=seconds)
            with pytest.raises(UsageError, match=refusal):
                Client(intake.url).post("/v1/operator/stop", request, m.OperatorAnswer)


def test_a_driver_that_is_to_catch_up_ends_when_it_has(settings: Configure) -> None:
    s: Settings = settings()
    topic = s.kafka.topics[0]
    producer = Producer(s.kafka.options)
    for number in range(20):
        producer.produce(topic, b"%d" % number, partition=0)
    producer.flush(30)
    job = Collecting(20)
    driver = Driver(
        s,
        upstream=KafkaAdmin(s.kafka.options),
        engine=LocalEngine(s, dict),
        jobs=(NamedJob("job", job),),
        clock=SystemClock(),
        options=DriverOptions(release="test", until_caught_up=True),
    )
    runs = threading.Thread(target=driver.run)
    try:
        driver.start()
        runs.start()
        context = IngestContext(None, s)
        context._driver = driver
        partition = ready(context, s)
        receiver = Obeying(s, driver.url)
        receiver.take_in(partition, 19)
        assert not runs.join(1.2), "one record is missing"
        assert runs.is_alive()
        receiver.take_in(partition, 1)
        receiver.obey(5)  # what came since is completed as well
        runs.join(30)
        assert not runs.is_alive()
    finally:
        driver.close()
    assert job.offsets == list(range(25))
