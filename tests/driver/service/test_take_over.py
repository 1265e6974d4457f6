"""Take-overs: the driver before is fenced, a standby leads later, and tasks of the driver before end first (INV-4)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from driver import IngestContext
from driver.batches.job.batch import Batch
from driver.batches.job.engine import NamedJob
from driver.batches.local_engine import LocalEngine
from driver.journal.leadership.lease import Lease, lease_path, read_lease
from driver.service import Driver, DriverOptions
from forebay import messages as m
from forebay.client import Client as StreamClient
from forebay.http.client import Client
from forebay.kafka.client.admin import KafkaAdmin
from forebay.model.errors import FencedError, JobError, NotTakenError, UnreachableError, UsageError
from forebay.process.clock import SystemClock
from forebay.settings.schema import Settings
from recovery.audit import audit
from tests.support.processes.played import PlayedReceiver
from tests.support.state.intakes import Collecting, Configure, ready
from wal.segments import layout
from wal.storage import open_storage


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


@pytest.mark.parametrize("host", ["203.0.113.7", "driver.invalid"], ids=["not configured yet", "no name service yet"])
def test_address_that_this_machine_does_not_have_yet_is_tried_again_by_a_supervisor(
    settings: Configure, host: str
) -> None:
    with pytest.raises(UnreachableError, match=f"cannot listen on {host}") as caught:
        IngestContext(None, settings(url=f"http://{host}:7080")).foreach_batch(Collecting(1))
    assert caught.value.exit_code != UsageError.exit_code


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


class ForestalledStandby(Driver):
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


def standby_of(settings: Settings, job: Any = lambda _: None) -> ForestalledStandby:
    engine = LocalEngine(settings, dict)
    admin = KafkaAdmin(settings.kafka.options)
    return ForestalledStandby(
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


def test_driver_that_is_stopped_while_it_opens_runs_nothing(settings: Configure) -> None:
    """The signal came before there was anything to stop."""

    class StoppedWhileOpening(ForestalledStandby):
        def _open(self, stores: Any, url: str) -> Any:
            self.stop()
            return self._really_open(stores, url)

    s = settings()
    admin = KafkaAdmin(s.kafka.options)
    driver = StoppedWhileOpening(
        s,
        upstream=admin,
        engine=LocalEngine(s, dict),
        jobs=[NamedJob("job", Collecting(1))],
        clock=SystemClock(),
        options=DriverOptions(release="0", standby=True),
    )
    assert driver.start()
    thread = threading.Thread(target=driver.run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
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
