"""Paused batches do not begin; intake continues; the journal keeps the pause."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from driver.batches.job.batch import Batch
from driver.listeners import Listener, PauseChanged
from forebay import messages as m
from forebay.kafka.embedded.broker import MockBroker
from forebay.model.errors import RefusedError
from forebay.settings.schema import Settings
from recovery.audit import audit
from tests.support.processes.running_driver import Carriers, failed, local_settings, running
from wal.storage import open_storage

PAUSE = m.PauseRequest(paused=True, cause="anna@h1: maintenance")
RESUME = m.PauseRequest(paused=False, cause="anna@h1")


@pytest.fixture
def settings(tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str]) -> Settings:
    return local_settings(tmp_path, mock_broker, topic_name())


class RecordingListener(Listener):
    def __init__(self) -> None:
        self.pauses: list[bool] = []

    def pause_changed(self, event: PauseChanged) -> None:
        assert event.cause.startswith("anna@h1")
        self.pauses.append(event.paused)


def test_paused_batches_do_not_begin_until_they_are_resumed_even_under_the_next_driver(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-3: what was taken in meanwhile is in batches afterwards, each record once."""
    caplog.set_level(logging.INFO)
    runs: list[int] = []
    listener = RecordingListener()

    def job(batch: Batch) -> None:
        runs.append(batch.records)

    with running(settings, job, listeners=(listener,)) as driver:
        driver.until(lambda now: now.state == "running")  # else its start finds the pause, and logs it once more
        assert driver.post("pause", RESUME) == "the batches are not paused"
        assert "`forebay resume` ends the pause" in driver.post("pause", PAUSE)
        assert "already, by anna@h1: maintenance" in driver.post("pause", PAUSE)
        for _ in range(4):
            driver.take_in(5)
        answer = driver.status()
        assert (answer.waiting_blocks, answer.batches) == (4, ()), "blocks wait, not batches"
        assert (answer.state, answer.pause_cause) == ("running", PAUSE.cause)
        (note,) = (problem for problem in answer.pending if problem.kind == "paused")
        driver.until(lambda _: driver.client.get("/v1/overview", m.OverviewAnswer).pause_cause == PAUSE.cause)
        assert note.command == "forebay resume" and "by anna@h1: maintenance; 4 blocks wait" in note.cause
    assert listener.pauses == [True]
    with running(settings, job, listeners=(listener,)) as driver:
        answer = driver.until(lambda now: now.state == "running")
        assert answer.paused_ms and runs == []
        driver.take_in(5)
        assert "begin again" in driver.post("pause", RESUME)
        answer = driver.until(lambda now: now.records_completed == 25)
        assert not answer.paused_ms and not [p for p in answer.pending if p.kind == "paused"]
    assert listener.pauses == [True, False]
    assert sum(runs) == 25
    logged = [r.getMessage() for r in caplog.records if r.getMessage().startswith("batches ")]
    assert logged == [
        "batches paused by anna@h1: maintenance",
        "batches stay paused, by anna@h1: maintenance",
        "batches resumed by anna@h1",
    ]
    assert audit(open_storage(settings.driver.journal), "s").clean


def test_job_that_runs_when_batches_are_paused_continues_to_its_end(settings: Settings) -> None:
    held, go_on = threading.Event(), threading.Event()
    runs: list[int] = []

    def job(batch: Batch) -> None:
        runs.append(batch.number)
        held.set()
        assert go_on.wait(30)

    with running(settings, job) as driver:
        driver.take_in(5)
        assert held.wait(30)
        driver.post("pause", PAUSE)
        driver.take_in(5)
        go_on.set()
        driver.until(lambda now: [batch.state for batch in now.batches] == ["completed"] and now.waiting_blocks == 1)
        assert runs == [1]
        driver.post("pause", RESUME)
        driver.until(lambda now: now.batches_completed == 2)


def test_failed_batch_is_not_tried_again_during_a_pause(settings: Settings) -> None:
    job = Carriers()
    with running(settings, job) as driver:
        driver.take_in(5)
        driver.until(failed)
        driver.post("pause", PAUSE)
        attempts = len(job.runs)
        with pytest.raises(RefusedError, match="`forebay resume` begins the next attempt too"):
            driver.post("retry", m.RetryRequest())
        job.is_fixed = True
        driver.driver.stop(drain=True, timeout_seconds=3600.0)  # wakes the failed batch, were it not for the pause
        driver.thread.join(60)
        assert not driver.thread.is_alive()
        assert len(job.runs) == attempts


def test_drain_is_refused_during_a_pause_and_a_signal_drains_what_it_can(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """A drain completes all batches. SIGTERM can't be refused, and does not wait for what can't happen."""
    with running(settings, lambda batch: None) as driver:
        driver.post("pause", PAUSE)
        driver.take_in(5)
        with pytest.raises(RefusedError, match=r"run `forebay resume` first, or stop without a drain"):
            driver.post("stop", m.StopRequest(drain=True))
        assert driver.status().state == "running"
        driver.driver.stop(drain=True, timeout_seconds=3600.0)
        driver.thread.join(60)
        assert not driver.thread.is_alive()
        assert driver.driver.summary().left.blocks == 1
    assert driver.error is None
    assert "the drain ends incomplete: the batches are paused; not completed: 1 blocks without a batch" in caplog.text


def test_pause_is_refused_during_a_drain(settings: Settings) -> None:
    held, go_on = threading.Event(), threading.Event()

    def job(batch: Batch) -> None:
        held.set()
        assert go_on.wait(30)

    with running(settings, job) as driver:
        driver.take_in(5)
        assert held.wait(30)
        driver.post("stop", m.StopRequest(drain=True))
        with pytest.raises(RefusedError, match="the driver is stopping"):
            driver.post("pause", PAUSE)
        go_on.set()
        driver.thread.join(60)
    assert driver.error is None
    assert driver.driver.summary().left.is_nothing
