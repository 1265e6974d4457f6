"""Records reach the job once; a job that fails, a batch that no tier can read, and stops during a job."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from driver import IngestContext
from driver.batches.job.batch import Batch
from driver.listeners.events import BatchCompleted, Listener
from forebay import messages as m
from forebay.http.client import Client
from forebay.model.errors import JobError, UsageError
from recovery.audit import audit
from tests.support.processes.played import PlayedReceiver
from tests.support.state.columns import column_values
from tests.support.state.intakes import Collecting, Configure, ready
from wal.storage import open_storage


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


def test_a_job_while_another_runs_is_refused(settings: Configure) -> None:
    with IngestContext(None, settings()) as intake:
        intake.foreach_batch(Collecting(1))
        with pytest.raises(UsageError):
            intake.foreach_batch(Collecting(1))
