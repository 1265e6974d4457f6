"""An operator skips a batch that the job can't complete: the next batch begins, and the audit keeps the loss and its reason."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from driver.batches.job.batch import Batch
from driver.batches.progress import Progress, Skip
from driver.journal.log import reading as journal
from driver.listeners import BatchSkipped, Listener
from forebay import messages as m
from forebay.kafka.embedded.broker import MockBroker
from forebay.model.errors import RefusedError, UnreadableBlockError, UsageError
from forebay.settings.schema import Settings
from recovery.audit import AuditReport, audit
from tests.support.processes.running_driver import Carriers, failed, local_settings, running
from wal.storage import open_storage

CAUSE = "anna@h1: corrupt order"


@pytest.fixture
def settings(tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str]) -> Settings:
    return local_settings(tmp_path, mock_broker, topic_name(), window_batches=1)


def skip(batch_id: int, cause: str = CAUSE) -> m.SkipBatchRequest:
    return m.SkipBatchRequest(batch_id=batch_id, cause=cause)


def audited(settings: Settings) -> AuditReport:
    report = audit(open_storage(settings.driver.journal), "s")
    assert report.clean
    return report


class RecordingListener(Listener):
    def __init__(self) -> None:
        self.skipped: list[BatchSkipped] = []

    def batch_skipped(self, event: BatchSkipped) -> None:
        self.skipped.append(event)


def test_skipped_batch_lets_the_next_one_begin_and_stays_in_the_audit(settings: Settings) -> None:
    """INV-3, INV-5. Its window shows the next batch none of its records: they may be what the job can't process."""
    windows: list[tuple[int, int]] = []
    listener = RecordingListener()

    def job(batch: Batch) -> None:
        if batch.number == 2:
            raise ValueError("corrupt order")
        windows.append((batch.number, batch.window(2).records))

    with running(settings, job, listeners=(listener,)) as driver:
        driver.take_in(3)
        driver.until(lambda now: now.batches_completed == 1)
        driver.take_in(5)
        batch = next(b for b in driver.until(failed).batches if b.state == "failed")
        driver.take_in(7)
        said = driver.post("skip", skip(batch.batch_id))
        assert (
            said == f"batch {batch.batch_id} is skipped: the audit lists its 5 records as a loss; the next batch begins"
        )
        answer = driver.until(lambda now: now.batches_completed == 3)
        shown = next(b for b in answer.batches if b.batch_id == batch.batch_id)
        assert (shown.state, shown.detail) == ("completed", f"skipped by {CAUSE}")
        assert not [problem for problem in answer.problems if problem.kind == "job"]
    assert [(event.batch_id, event.attempts, event.cause) for event in listener.skipped] == [(batch.batch_id, 3, CAUSE)]
    assert windows == [(1, 3), (3, 7)]
    topic = settings.kafka.topics[0]
    for _ in range(2):  # in the state, and after the next driver moved it to the history
        (loss,) = audited(settings).losses
        assert (loss.label, loss.batch_id) == (f"{topic}/0[3, 8)", batch.batch_id)
        assert loss.cause == f"the batch was skipped by {CAUSE}"
        with running(settings, lambda batch: None) as driver:
            driver.take_in(1)
            driver.until(lambda now: now.batches_completed >= 4)


def test_batch_that_is_not_failed_can_not_be_skipped(settings: Settings) -> None:
    held, go_on = threading.Event(), threading.Event()
    go_on.set()

    def job(batch: Batch) -> None:
        held.set()
        assert go_on.wait(30)
        if batch.number == 2:
            raise ValueError("corrupt order")

    with running(settings, job) as driver:
        driver.take_in(5)
        done = driver.until(lambda now: now.batches_completed == 1 and now.batches).batches[0].batch_id
        for batch_id in (done, done + 1):
            with pytest.raises(RefusedError, match="is not a failed or unreadable batch"):
                driver.post("skip", skip(batch_id))
        driver.take_in(5)
        driver.until(failed)
        with pytest.raises(UsageError, match="only with a reason"):
            driver.post("skip", skip(done + 1, " "))
        held.clear()
        go_on.clear()
        driver.post("retry", m.RetryRequest())
        assert held.wait(30)
        with pytest.raises(RefusedError, match=r"attempt 4 at batch \d+ runs now"):
            driver.post("skip", skip(done + 1))
        go_on.set()
        driver.until(failed)
    state = journal.read(open_storage(settings.driver.journal), "s").state
    assert state is not None and not any(batch.skipped for batch in state.batches.values())


def test_batch_that_waits_for_the_ordinary_delay_can_be_skipped_only_in_a_pause() -> None:
    progress, run = Progress(), (0, 7)
    waits = threading.Event()
    skips: list[Skip | None] = []
    waiting = threading.Thread(
        target=lambda: skips.append(progress.await_attempt(run, 30.0, announce=waits.set)), daemon=True
    )
    waiting.start()
    assert waits.wait(60)
    assert not progress.skip(7, Skip(CAUSE))
    progress.pause(True)
    request = Skip(CAUSE)
    assert progress.skip(7, request)
    waiting.join(60)
    assert skips == [request]


def test_unreadable_batch_and_one_that_fails_in_a_pause_can_be_skipped(settings: Settings) -> None:
    def job(batch: Batch) -> None:
        if batch.number == 1:
            raise UnreadableBlockError("block b")
        raise ValueError("corrupt order")

    with running(settings, job) as driver:
        driver.take_in(5)
        answer = driver.until(lambda now: any(batch.state == "unreadable" for batch in now.batches))
        driver.post("skip", skip(answer.batches[0].batch_id))
        driver.take_in(5)
        batch = next(b for b in driver.until(failed).batches if b.state == "failed")
        driver.post("pause", m.PauseRequest(paused=True))
        driver.post("skip", skip(batch.batch_id))
        driver.until(lambda now: now.batches_completed == 2)
    assert len(audited(settings).losses) == 2


def test_replay_runs_a_skipped_batch_with_its_records_and_may_skip_it_again(settings: Settings) -> None:
    """The bytes are in the WAL: a repaired job gets what it could not process before."""
    job = Carriers()
    with running(settings, job) as driver:
        driver.take_in(5)
        batch = driver.until(failed).batches[0]
        driver.post("skip", skip(batch.batch_id))
        driver.until(lambda now: now.batches_completed == 1)
        driver.post("replay", m.ReplayRequest(batch=batch.batch_id))
        driver.until(lambda now: now.replay is not None and failed(now))
        driver.post("skip", skip(batch.batch_id, "anna@h1: again"))
        driver.until(lambda now: now.replay is None)
        job.is_fixed = True
        driver.post("replay", m.ReplayRequest(batch=batch.batch_id))
        driver.until(lambda now: now.replay is None and now.state == "running")
    assert job.runs[-1] == (batch.batch_id, 5)
    first, second = audited(settings).replays
    assert [loss.cause for loss in first.losses] == ["anna@h1: again"]
    assert (second.losses, second.completed) == ((), 1)
