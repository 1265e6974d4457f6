"""The whole driver in one process: a mock broker, real HTTP, a real journal and WAL, a job without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from driver import IngestContext
from driver.background.cleaner import Cleaner
from driver.background.discovery import LostJournal
from driver.background.snapshot_copies import SnapshotCopies
from driver.batches.job.batch import Batch
from driver.batches.job.engine import NamedJob
from driver.batches.local_engine import LocalEngine
from driver.decisions.allocation import BatchLimits
from driver.decisions.rate import Gains
from driver.decisions.rate_sharing import RateLimits
from driver.decisions.receiver_lifecycle import ManagedRules
from driver.journal import history
from driver.journal.leadership.lease import Lease, LeaseHeld, lease_path, read_lease
from driver.journal.leadership.timeline import TimelineFound
from driver.journal.log import opening as journal
from driver.journal.log.encoding import EncodedState
from driver.listeners.events import BatchCompleted, BlockAdded, Listener, ReceiverFailed, ReceiverStarted
from driver.service import Driver, DriverOptions
from forebay import messages as m
from forebay.client import Client as ObserverClient
from forebay.client import Client as StreamClient
from forebay.http.client import Client
from forebay.kafka.client.admin import Committed, KafkaAdmin
from forebay.kafka.embedded.broker import MockBroker
from forebay.model.errors import (
    CorruptionError,
    FencedError,
    ForebayError,
    JobError,
    NotTakenError,
    RefusedError,
    StoreError,
    UnknownTopicError,
    UnreachableError,
    UsageError,
)
from forebay.model.units import Duration
from forebay.model.values import TopicPartition
from forebay.process.clock import ManualClock, SystemClock
from forebay.settings.reading.load import from_values
from forebay.settings.schema import NO_WAL, Settings
from recovery.audit import audit
from tests.support.columns import column_values
from tests.support.jumping_clock import jumping_system_clock
from tests.support.played import PlayedReceiver
from wal.segments import layout
from wal.storage import open_storage
from wal.storage.local import LocalStorage

Configure = Callable[..., Settings]


@pytest.fixture
def settings(tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str]) -> Configure:
    topic = topic_name()
    mock_broker.create_topic(topic)

    def configure(**driver: Any) -> Settings:
        values = {
            "journal": f"file://{tmp_path}/journal",
            "url": "http://127.0.0.1:0",
            "engine": "local",
            "batch_interval": "20ms",
            "job_retry_delay": "1ms",
            "lease_duration": "300ms",
            "snapshot_copy_interval": "0s",
            **driver,
        }
        return from_values(
            {
                "stream": "s",
                "kafka": {"topics": [topic], "group": topic, **mock_broker.options},
                "wal": {"url": f"file://{tmp_path}/wal", "retention": "0s"},
                "driver": values,
                "agent": {"blocks": f"{tmp_path}/blocks"},
            }
        )

    return configure


class Collecting:
    """A job that keeps what it saw, by batch id, and tells when ``wanted`` records have come."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.seen: dict[int, list[int]] = {}
        self.reruns: list[int] = []
        self.enough = threading.Event()

    def __call__(self, batch: Batch) -> None:
        rows = [offset for rows in batch.read() for offset in column_values(rows, "offset")]
        if batch.rerun:
            self.reruns.append(batch.id)
        self.seen[batch.id] = rows
        if sum(len(rows) for rows in self.seen.values()) >= self.wanted:
            self.enough.set()

    @property
    def offsets(self) -> list[int]:
        return sorted(offset for rows in self.seen.values() for offset in rows)


def ready(intake: IngestContext, settings: Settings) -> TopicPartition:
    """The first partition, once the driver has begun its life."""
    tp = TopicPartition(settings.kafka.topics[0], 0)
    client = Client(intake.url)
    for _ in range(1000):
        if client.get("/v1/status", m.StatusAnswer).state == "running":
            return tp
        threading.Event().wait(0.02)
    raise AssertionError("the driver did not get ready")


def test_records_reported_reach_the_job_once_and_the_audit_is_clean(settings: Configure) -> None:
    """INV-2, INV-3, from HTTP to job; completed positions are shown in the second group."""
    s = settings()
    job = Collecting(30)
    with IngestContext(None, s) as intake:
        intake.foreach_batch(job)
        tp = ready(intake, s)
        receiver = PlayedReceiver(s, intake.url)
        for _ in range(3):
            receiver.take_in(tp, 10)
        assert job.enough.wait(30)
    assert job.offsets == list(range(30))
    report = audit(open_storage(s.driver.journal), "s")
    assert report.clean
    assert report.records_completed == 30


def test_start_and_stop_may_be_repeated_and_stop_may_be_called_in_the_job(settings: Configure) -> None:
    s = settings()
    calls: list[int] = []
    context = IngestContext(None, s)

    def job(batch: Batch) -> None:
        calls.append(batch.id)
        context.stop()

    context.foreach_batch(job)
    tp = ready(context, s)
    PlayedReceiver(s, context.url).take_in(tp, 5)
    assert context.await_termination(30)
    context.stop()
    assert len(calls) == 1
    context.start()
    ready(context, s)
    context.start()
    PlayedReceiver(s, context.url).take_in(tp, 5)
    assert context.await_termination(30)
    assert len(set(calls)) == 2
    report = audit(open_storage(s.driver.journal), "s")
    assert (report.batches_completed, report.batches_unfinished) == (2, 0)


def test_stop_called_by_a_listener_returns_before_the_intake_has_ended(settings: Configure) -> None:
    """The driver waits for its listeners before it ends, so a listener that waited for the end would wait for itself."""
    s = settings()
    context = IngestContext(None, s)
    ended: list[bool] = []

    class Stopping(Listener):
        def batch_completed(self, event: BatchCompleted) -> None:
            context.stop()
            ended.append(context.await_termination(0))

    context.add_listener(Stopping()).foreach_batch(Collecting(5))
    tp = ready(context, s)
    PlayedReceiver(s, context.url).take_in(tp, 5)
    assert context.await_termination(30)
    assert ended == [False]


def test_a_job_that_keeps_failing_stops_the_driver_with_the_batch_intact_and_it_reruns(settings: Configure) -> None:
    """INV-3: the rerun has the same id and rows, and says that it is one."""
    s = settings(job_max_failures=3)
    attempts: list[tuple[int, list[int]]] = []

    def failing(batch: Batch) -> None:
        attempts.append((batch.id, [o for rows in batch.read() for o in column_values(rows, "offset")]))
        raise ValueError("no such carrier")

    context = IngestContext(None, s).foreach_batch(failing)
    tp = ready(context, s)
    PlayedReceiver(s, context.url).take_in(tp, 5)
    with pytest.raises(JobError, match=r"failed 3 times .* no such carrier"):
        context.await_termination(30)
    assert len(attempts) == 3
    job = Collecting(5)
    with IngestContext(None, s) as intake:
        intake.foreach_batch(job)
        assert job.enough.wait(30)
    assert job.seen == {attempts[0][0]: attempts[0][1]}
    assert job.reruns == [attempts[0][0]]


def test_a_batch_that_no_tier_can_read_stops_batches_loudly_until_a_person_accepts_the_loss(
    settings: Configure, tmp_path: Path
) -> None:
    """INV-5: never an empty partition, never skipped."""
    s = settings()
    job = Collecting(5)
    with IngestContext(None, s) as intake:
        intake.foreach_batch(job)
        tp = ready(intake, s)
        receiver = PlayedReceiver(s, intake.url)
        block = receiver.store(tp, 10)
        (tmp_path / "wal" / block.handle.path).unlink()
        receiver.report(block)
        client = Client(intake.url)
        for _ in range(1000):
            batches = client.get("/v1/status", m.StatusAnswer).batches
            if batches and batches[0].state == "unreadable":
                break
            threading.Event().wait(0.02)
        (batch,) = batches
        assert "--accept-loss" in batch.detail
        assert block.meta.ranges[0].label in batch.detail
        receiver.take_in(tp, 5)
        assert not job.seen
        request = m.AcceptLossRequest(batch_id=batch.batch_id, ranges=(block.meta.ranges[0].label,))
        client.post("/v1/operator/accept-loss", request, m.OperatorAnswer)
        assert job.enough.wait(30)
    assert job.offsets == [10, 11, 12, 13, 14]
    incarnation = audit(open_storage(s.driver.journal), "s").incarnations[0]
    assert incarnation.accepted_losses == (block.meta.ranges[0].label,)


def test_a_second_driver_refuses_while_the_first_ones_lease_is_fresh(settings: Configure) -> None:
    s = settings(lease_duration="3s")  # it may be renewed late
    with IngestContext(None, s) as intake:
        intake.foreach_batch(Collecting(1))
        ready(intake, s)
        with pytest.raises(LeaseHeld, match="--take-over"):
            IngestContext(None, s).foreach_batch(Collecting(1))


def test_a_driver_on_loopback_beside_drivers_of_other_hosts_logs_it(
    settings: Configure, caplog: pytest.LogCaptureFixture
) -> None:
    with IngestContext(None, settings(urls=["http://a.invalid:7080"])) as intake:
        intake.foreach_batch(Collecting(1))
    assert caplog.text.count('set driver.url = "http://0.0.0.0:0"') == 1


def test_a_driver_taken_over_changes_nothing_more_and_ends_fenced(settings: Configure) -> None:
    """INV-4: its next answer finds out, long before it looks at the lease again."""
    s = settings(lease_duration="60s")
    old = IngestContext(None, s).foreach_batch(Collecting(1))
    tp = ready(old, s)
    stale = PlayedReceiver(s, old.url)
    job = Collecting(7)
    with IngestContext(None, s, take_over=True) as intake:
        intake.foreach_batch(job)
        ready(intake, s)
        with pytest.raises(Exception, match="stopping"):
            stale.take_in(tp, 3)
        with pytest.raises(FencedError):
            old.await_termination(30)
        PlayedReceiver(s, intake.url).take_in(tp, 7)
        assert job.enough.wait(30)
    assert audit(open_storage(s.driver.journal), "s").records_completed == 7


def test_an_empty_journal_beside_a_wal_that_is_not_refuses_to_start(settings: Configure, tmp_path: Path) -> None:
    with IngestContext(None, settings()) as intake:
        intake.foreach_batch(Collecting(1))
    with pytest.raises(TimelineFound, match="journal was lost"):
        IngestContext(None, settings(journal=f"file://{tmp_path}/elsewhere")).foreach_batch(Collecting(1))
    assert not (tmp_path / "elsewhere").exists() or not list((tmp_path / "elsewhere").rglob("*.seg"))


def test_the_checkpoint_of_a_direct_stream_is_no_journal_of_an_intake(settings: Configure) -> None:
    """INV-5: its batches have no blocks, and would be completed unread."""
    s = settings()
    opened, state = journal.lead(open_storage(s.driver.journal), "s", "direct", 0, lambda: 0.0, lambda: 1)
    state.next_offsets["t/0"] = 5
    opened.snapshot()
    opened.close()
    with pytest.raises(UsageError, match="checkpoint of direct stream 's'"):
        IngestContext(None, s).foreach_batch(Collecting(1)).start()


def test_a_damaged_journal_refuses_to_start_with_the_place_and_the_way_out(settings: Configure, tmp_path: Path) -> None:
    """As a power loss leaves it where a file grows before its data are written: whether that group was answered is
    unknown (INV-5)."""
    s = settings()
    with IngestContext(None, s) as intake:
        intake.foreach_batch(Collecting(1))
        ready(intake, s)
    (segment,) = (tmp_path / "journal" / "s").glob("epoch-*/*.seg")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-100] + bytes(100))
    with pytest.raises(CorruptionError, match=r"00000001\.seg is damaged at byte [0-9]+: .*`forebay journal rebuild`"):
        IngestContext(None, s).foreach_batch(Collecting(1)).start()


def test_a_second_journal_over_the_same_wal_refuses_to_lead(settings: Configure, tmp_path: Path) -> None:
    """Two that were both empty when they looked: the WAL belongs to the one that marked it."""
    with IngestContext(None, settings()) as intake:
        intake.foreach_batch(Collecting(1))
    (marker,) = (tmp_path / "wal" / "s").glob("lineage-*")
    marker.write_bytes(b"{}")
    with pytest.raises(TimelineFound, match="belongs to another journal"):
        IngestContext(None, settings()).foreach_batch(Collecting(1))


def test_a_commit_of_ours_beyond_the_position_proves_that_the_journal_lost_events(settings: Configure) -> None:
    """Rule 5. Another program's commit is shown and ignored."""
    s = settings()
    tp = TopicPartition(s.kafka.topics[0], 0)
    admin = KafkaAdmin(s.kafka.options)
    with IngestContext(None, s) as intake:
        intake.foreach_batch(Collecting(1))
        ready(intake, s)
    admin.publish(s.group, {tp: Committed(99, -1, "somebody")})
    with IngestContext(None, s) as intake:
        intake.foreach_batch(Collecting(1))
        ready(intake, s)
    admin.publish(s.group, {tp: Committed(99, -1, "forebay:1:1")})
    context = IngestContext(None, s).foreach_batch(Collecting(1))
    with pytest.raises(LostJournal, match="99"):
        context.await_termination(30)


def test_no_copy_counts_as_stray_before_kafkas_commits_were_compared(
    settings: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-8: to the empty journal that stands in for a lost one every copy would be stray, and without a WAL is all there is."""
    s = settings()
    s = msgspec.structs.replace(s, wal=msgspec.structs.replace(s.wal, url=NO_WAL))
    asked, answer = threading.Event(), threading.Event()

    def committed(self: KafkaAdmin, group: str, partitions: Any) -> dict[TopicPartition, Committed]:
        asked.set()
        assert answer.wait(30)
        return {}

    monkeypatch.setattr(KafkaAdmin, "committed", committed)
    beat = m.AgentHeartbeatRequest(
        host="h", url="http://h:1", instance_id="i", acknowledged=0, blocks=1, used_bytes=1, free_bytes=1,
        old_blocks=("r1-10000000009-1",),
    )  # fmt: skip
    with IngestContext(None, s) as intake:
        intake.foreach_batch(Collecting(1))
        assert asked.wait(30)
        client = Client(intake.url)
        registered = m.RegisterRequest(stream="s", receiver_id="r1", host="h", instance_id="i", release="test")
        client.post("/v1/receivers/register", registered, m.RegisterAnswer)
        assert not client.post("/v1/agents/heartbeat", beat, m.AgentHeartbeatAnswer).commands
        answer.set()
        ready(intake, s)
        (command,) = client.post("/v1/agents/heartbeat", beat, m.AgentHeartbeatAnswer).commands
        assert command.blocks == ("s/r1-10000000009-1",)


def test_no_claim_is_given_before_kafkas_commits_were_compared(
    settings: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 5: a receiver that claims commits the position first, which would overwrite the proof that the journal lost events."""
    s = settings()
    asked, answer = threading.Event(), threading.Event()

    def committed(self: KafkaAdmin, group: str, partitions: Any) -> dict[TopicPartition, Committed]:
        asked.set()
        assert answer.wait(30)
        return {}

    monkeypatch.setattr(KafkaAdmin, "committed", committed)
    with IngestContext(None, s) as intake:
        intake.foreach_batch(Collecting(1))
        assert asked.wait(30)
        receiver = PlayedReceiver(s, intake.url)
        with pytest.raises(UnreachableError, match="compared with the journal"):
            receiver.look(TopicPartition(s.kafka.topics[0], 0))
        answer.set()
        assert receiver.look(ready(intake, s)).known


def test_missing_topic_or_refused_group_is_reported_and_does_not_end_the_driver(
    settings: Configure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    s = settings()
    found, really = threading.Event(), KafkaAdmin.starting_offsets

    def too_new(self: KafkaAdmin, *args: Any) -> Any:
        if not found.is_set():
            found.set()
            raise UnknownTopicError("offsets: unknown topic")
        return really(self, *args)

    def refused(self: KafkaAdmin, *args: Any) -> Any:
        raise ForebayError("the group has members")

    monkeypatch.setattr(KafkaAdmin, "starting_offsets", too_new)
    monkeypatch.setattr(KafkaAdmin, "publish", refused)
    job = Collecting(5)
    with IngestContext(None, s) as intake:
        intake.foreach_batch(job)
        PlayedReceiver(s, intake.url).take_in(ready(intake, s), 5)
        assert job.enough.wait(30)
        for _ in range(1000):
            if "has members" in caplog.text:
                break
            threading.Event().wait(0.02)
    assert caplog.text.count("could not be published") == 1


def test_take_over_that_can_not_listen_leaves_the_running_driver_alone(settings: Configure) -> None:
    """If it were fenced first, no driver would run."""
    job = Collecting(5)
    with IngestContext(None, settings()) as intake:
        intake.foreach_batch(job)
        taken = settings(url=intake.url)
        tp = ready(intake, taken)
        with pytest.raises(UsageError, match="cannot listen"):
            IngestContext(None, taken, take_over=True).foreach_batch(Collecting(1))
        PlayedReceiver(taken, intake.url).take_in(tp, 5)
        assert job.enough.wait(30)


def test_a_deletion_that_the_store_refuses_is_tried_again(
    settings: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-8: an intent is repeated until it is done, and clean-up does not end for it."""
    monkeypatch.setattr("driver.service.housekeeping.ROUND_SECONDS", 0.05)
    refusals: list[str] = []
    really = LocalStorage.delete

    def delete(self: LocalStorage, path: str) -> None:
        if path.endswith(".seg") and "/blocks/" in path and len(refusals) < 2:
            refusals.append(path)
            raise StoreError("the store is away")
        really(self, path)

    monkeypatch.setattr(LocalStorage, "delete", delete)
    s = settings()
    job = Collecting(20)
    with IngestContext(None, s) as intake:
        intake.foreach_batch(job)
        tp = ready(intake, s)
        receiver = PlayedReceiver(s, intake.url)
        first = receiver.take_in(tp, 10)
        receiver.take_in(tp, 10)
        for _ in range(1000):
            if not (tmp_path / "wal" / first.handle.path).exists():
                break
            threading.Event().wait(0.02)
    assert refusals == [first.handle.path] * 2
    assert not (tmp_path / "wal" / first.handle.path).exists()


def test_agent_without_a_recent_heartbeat_is_not_asked_for_blocks(settings: Configure) -> None:
    """It would cost a time-out for each of its blocks."""
    s = settings(receiver_timeout="1s")
    clock = ManualClock()
    driver = Driver(
        s,
        upstream=KafkaAdmin(s.kafka.options),
        engine=LocalEngine(s, dict),
        jobs=(NamedJob("job", Collecting(1)),),
        clock=clock,
        options=DriverOptions(release="test"),
    )
    try:
        driver.start()
        beat = m.AgentHeartbeatRequest(
            host="h1", url="http://h1:1", instance_id="i", acknowledged=0, blocks=0, used_bytes=0, free_bytes=0
        )
        Client(driver.url).post("/v1/agents/heartbeat", beat, m.AgentHeartbeatAnswer)
        assert driver.agent_urls() == {"h1": "http://h1:1"}
        clock.advance(1.5)
        assert driver.agent_urls() == {}
    finally:
        driver.close()


def test_an_agent_that_is_about_to_end_is_asked_for_nothing_until_it_is_back(settings: Configure) -> None:
    """Neither for its own blocks nor for copies that it was given."""
    s = settings()
    driver = Driver(
        s,
        upstream=KafkaAdmin(s.kafka.options),
        engine=LocalEngine(s, dict),
        jobs=(NamedJob("job", Collecting(1)),),
        clock=ManualClock(),
        options=DriverOptions(release="test"),
    )
    try:
        driver.start()
        client = Client(driver.url)
        for state, urls, copies in (
            ("active", {"h1": "http://h1:1"}, {"b": ("h1",)}),
            ("draining", {}, {}),
            ("active", {"h1": "http://h1:1"}, {"b": ("h1",)}),
        ):
            beat = m.AgentHeartbeatRequest(
                host="h1", url="http://h1:1", instance_id="i", acknowledged=0, blocks=0, used_bytes=0, free_bytes=0,
                state=state, copies=("b",),
            )  # fmt: skip
            client.post("/v1/agents/heartbeat", beat, m.AgentHeartbeatAnswer)
            assert driver._parts is not None
            assert (driver.agent_urls(), driver._parts.agents.copies()) == (urls, copies)
        client.close()
    finally:
        driver.close()


def test_segments_that_nothing_needs_any_more_are_deleted(settings: Configure, tmp_path: Path) -> None:
    """INV-8, with a rewind horizon of nothing."""
    s = settings()
    job = Collecting(20)
    with IngestContext(None, s) as intake:
        intake.foreach_batch(job)
        tp = ready(intake, s)
        receiver = PlayedReceiver(s, intake.url)
        first = receiver.take_in(tp, 10)
        second = receiver.take_in(tp, 10)
        assert job.enough.wait(30)
        for _ in range(1000):
            if not (tmp_path / "wal" / first.handle.path).exists():
                break
            threading.Event().wait(0.02)
        assert not (tmp_path / "wal" / first.handle.path).exists()
        assert (tmp_path / "wal" / second.handle.path).exists(), "its writer may still append"


def test_a_wall_clock_that_jumps_ahead_deletes_nothing_that_retention_promises(
    settings: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that runs, and one that is started under the wrong clock, with and without batches of its own, more than once."""
    clock, rounds = jumping_system_clock(), threading.Semaphore(0)
    look = Cleaner.look

    def counted(cleaner: Cleaner) -> None:
        look(cleaner)
        rounds.release()

    monkeypatch.setattr("driver.context.SystemClock", lambda: clock)
    monkeypatch.setattr(Cleaner, "look", counted)
    s = settings()
    s = msgspec.structs.replace(
        s, wal=msgspec.structs.replace(s.wal, retention=Duration(3600), cleanup_interval=Duration(0.01))
    )
    kept: list[str] = []
    for jump_days in (0, 30, 0, 0):
        job = Collecting(20)
        with IngestContext(None, s) as intake:
            intake.foreach_batch(job)
            tp = ready(intake, s)
            receiver = PlayedReceiver(s, intake.url)
            kept.append(receiver.take_in(tp, 10).handle.path)
            receiver.take_in(tp, 10)
            assert job.enough.wait(30)
            clock.jump(jump_days * 86_400)
            for _ in range(10 + 5 * bool(jump_days)):
                assert rounds.acquire(timeout=30)
        assert [path for path in kept if not (tmp_path / "wal" / path).exists()] == []


def test_a_job_while_another_runs_is_refused(settings: Configure) -> None:
    with IngestContext(None, settings()) as intake:
        intake.foreach_batch(Collecting(1))
        with pytest.raises(UsageError):
            intake.foreach_batch(Collecting(1))


def test_a_driver_whose_wal_belongs_to_a_rebuilt_journal_is_fenced_though_its_own_journal_does_not_show_it(
    settings: Configure, tmp_path: Path
) -> None:
    """INV-4, INV-8: rebuilt where this driver does not look; it must not clean up what the other one needs."""
    s = settings()
    context = IngestContext(None, s).foreach_batch(Collecting(1))
    ready(context, s)
    open_storage(s.wal.url).put_new(layout.timeline_marker("s", 2), b"{}")
    with pytest.raises(FencedError, match="rebuilt"):
        context.await_termination(30)


def test_no_claim_is_given_before_a_snapshot_copy_is_beside_the_wal(
    settings: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was accepted before there is one could not be found again if the journal were lost."""
    copying, go_on = threading.Event(), threading.Event()
    write = SnapshotCopies.write

    def slow(copies: SnapshotCopies, state: EncodedState) -> str:
        copying.set()
        assert go_on.wait(30)
        return write(copies, state)

    monkeypatch.setattr(SnapshotCopies, "write", slow)
    s = settings()
    with IngestContext(None, s) as intake:
        intake.foreach_batch(Collecting(1))
        assert copying.wait(30)
        client = Client(intake.url)
        with pytest.raises(UnreachableError):
            client.post(
                "/v1/partitions/look", m.LookupRequest(receiver_id="r1", epoch=1, partitions=()), m.LookupAnswer
            )
        go_on.set()
        ready(intake, s)
        assert open_storage(s.wal.url).list("s/snapshots")


class ToldWhenItStandsBy(Driver):
    """A standby whose first opening another driver forestalls."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.forestalled = 0
        self._really_open = self._leadership._open
        self._leadership._open = self._open  # type: ignore[method-assign]

    def _open(self, stores: Any, url: str) -> Any:
        if not self.forestalled:
            self.forestalled += 1
            self._superseded(FencedError("the lease is of a newer epoch"))  # as its keeper may see it first
            raise FencedError("another driver was quicker")
        return self._really_open(stores, url)


def standby_of(settings: Settings, job: Any = lambda _: None) -> ToldWhenItStandsBy:
    engine = LocalEngine(settings, dict)
    admin = KafkaAdmin(settings.kafka.options)
    return ToldWhenItStandsBy(
        settings,
        upstream=admin,
        engine=engine,
        jobs=[NamedJob("job", job)],
        clock=SystemClock(),
        options=DriverOptions(release="0", standby=True),
    )


def test_standby_that_another_one_overtook_stays_standby_and_leads_later(settings: Configure) -> None:
    """INV-4: two standbys see the lease end at the same moment; one is fenced while it opens."""
    standby = standby_of(settings())
    try:
        assert standby.start()
        assert standby.forestalled == 1
        assert "failed" not in (standby._view.not_ready() or "")
        # a drain soon after waits for receivers without a heartbeat yet, however long the standby waited
        assert standby._leadership.since > standby._started_at
    finally:
        standby.close()


def test_standby_decides_nothing_names_the_leader_and_ends_on_a_stop(settings: Configure) -> None:
    s = settings(lease_duration="60s")  # it may be renewed late
    with IngestContext(None, s) as intake:
        intake.foreach_batch(Collecting(1))
        ready(intake, s)
        standby = standby_of(s)
        led: list[bool] = []
        thread = threading.Thread(target=lambda: led.append(standby.start()))
        thread.start()
        for _ in range(1000):
            if "leads" in (standby._view.not_ready() or ""):
                break
            threading.Event().wait(0.02)
        client = Client(standby.url)
        for path in ("/v1/status", "/v1/health", "/v1/partitions", "/v1/batches", "/v1/wal"):
            with pytest.raises(UnreachableError, match=f"standby.*{intake.url}"):
                client.request("GET", path)
        assert client.get("/v1/settings", m.SettingsAnswer).settings
        with StreamClient([standby.url]) as alone, StreamClient([standby.url, intake.url]) as both:
            shown = alone.overview()
            assert (shown.state, shown.leader, shown.stream, shown.steps) == ("standby", intake.url, "s", ())
            assert (both.overview().leader, both.url) == ("", intake.url)
        with pytest.raises(NotTakenError) as refused:
            client.post("/v1/operator/stop", m.StopRequest(), m.OperatorAnswer)
        assert refused.value.leader == intake.url
        with StreamClient(standby.url) as listening:
            events = listening.events()
            assert next(events).data.leader == intake.url
            standby.stop()
            thread.join()
            standby.close()  # does not wait for a client that would listen for ever
            assert [event.kind for event in events][-1] == "end"
        assert led == [False]
        assert Client(intake.url).get("/v1/status", m.StatusAnswer).state == "running"


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


def test_driver_that_is_stopped_while_it_opens_runs_nothing(settings: Configure) -> None:
    """The signal came before there was anything to stop."""

    class Told(ToldWhenItStandsBy):
        def _open(self, stores: Any, url: str) -> Any:
            self.stop()
            return self._really_open(stores, url)

    s = settings()
    admin = KafkaAdmin(s.kafka.options)
    told = Told(
        s,
        upstream=admin,
        engine=LocalEngine(s, dict),
        jobs=[NamedJob("job", Collecting(1))],
        clock=SystemClock(),
        options=DriverOptions(release="0", standby=True),
    )
    assert told.start()
    thread = threading.Thread(target=told.run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    told.close()


class Watching(Listener):
    """Made by the driver; the test finds the last one made."""

    last: Watching

    def __init__(self) -> None:
        Watching.last = self
        self.failed = threading.Event()
        self.heard: list[Any] = []

    def receiver_started(self, event: ReceiverStarted) -> None:
        self.heard.append(event)

    def receiver_failed(self, event: ReceiverFailed) -> None:
        self.heard.append(event)
        self.failed.set()

    def block_added(self, event: BlockAdded) -> None:
        self.heard.append(event)
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
    assert [type(event) for event in watching.heard] == [ReceiverStarted, BlockAdded, ReceiverFailed]
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


class Elsewhere(LocalEngine):
    """As one whose work is done in an application of Spark."""

    @property
    def application(self) -> tuple[str, str]:
        return ("app-1", "spark://m:7077")


def test_who_takes_over_waits_for_the_tasks_of_the_driver_before_or_names_them(
    settings: Configure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease names the application; no batch begins before its driver has ended, as far as that can be seen."""
    s = settings(job_max_failures=1)
    storage = open_storage(s.driver.journal)

    def failing(batch: Batch) -> None:
        raise ValueError("no")

    first = Driver(
        s,
        upstream=KafkaAdmin(s.kafka.options),
        engine=Elsewhere(s, dict),
        jobs=[NamedJob("job", failing)],
        clock=SystemClock(),
        options=DriverOptions(release="test"),
    )
    context = IngestContext(None, s)
    context._driver = first
    first.start()

    def run() -> None:
        with pytest.raises(JobError):
            first.run()

    runs = threading.Thread(target=run)
    runs.start()
    try:
        tp = ready(context, s)
        for _ in range(1000):
            lease = read_lease(storage, "s")
            assert lease is not None
            if lease.spark_application:
                break
            threading.Event().wait(0.02)
        PlayedReceiver(s, first.url).take_in(tp, 5)
        runs.join(30)
        assert not runs.is_alive()
    finally:
        first.close()
    assert lease is not None
    assert (lease.spark_application, lease.spark_master) == ("app-1", "spark://m:7077")
    of_another = msgspec.structs.replace(lease, host="h2", duration_seconds=0.01)
    storage.replace(lease_path("s"), msgspec.json.encode(of_another))
    waited: list[tuple[Lease, int]] = []
    job = Collecting(5)

    def unseen(lease: Lease, stopping: threading.Event, fresh: bool) -> bool:
        assert not fresh
        waited.append((lease, len(job.seen)))
        return False

    monkeypatch.setattr("driver.journal.leadership.lease.await_end_of", unseen)
    with IngestContext(None, s) as intake:
        intake.foreach_batch(job)
        assert job.enough.wait(30)
    assert waited == [(of_another, 0)]
    assert job.reruns == list(job.seen)
    assert "in Spark's application app-1 at spark://m:7077" in caplog.text


@pytest.mark.parametrize("take_over", [True, False])
def test_only_a_take_over_waits_as_long_as_the_lease_lasts(
    settings: Configure, monkeypatch: pytest.MonkeyPatch, take_over: bool
) -> None:
    """A driver that watched the lease has waited before it led."""
    found: list[bool] = []
    asked = threading.Event()

    def awaited(lease: Lease | None, stopping: threading.Event, fresh: bool) -> None:
        found.append(fresh)
        asked.set()

    monkeypatch.setattr("driver.service.leadership.await_tasks_of", awaited)
    with IngestContext(None, settings(), take_over=take_over) as intake:
        intake.foreach_batch(Collecting(1))
        assert asked.wait(30)
    assert found == [take_over]


def test_each_part_is_held_to_what_the_settings_say(settings: Configure) -> None:
    """One argument that is left out or swapped would leave a stream to a default without a word."""
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
        assert (batches["_max_queued"], batches["_limits"]) == (5 + 13 - 1, BatchLimits(29, 31))
        assert managed["_count"] == 2
        assert managed["_rules"] == ManagedRules(
            preferred=("h7",), hosts_wait_seconds=61, moves_max=67, timeout_seconds=37, round_seconds=41,
            start_timeout_seconds=71, host_failures_max=73, avoid_seconds=79,
        )  # fmt: skip
        assert sharing["_limits"] == RateLimits(89, 97, 83)
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


def until(condition: Callable[[], bool]) -> None:
    for _ in range(1_500):
        if condition():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it did not come to be")
