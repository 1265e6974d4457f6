"""A failing job leaves its batch intact and its driver running; the error is logged once, and kept."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driver.batches.job.batch import Batch
from driver.batches.job_failures import PROCESS_ENDED, FailingJobs
from driver.journal.events import JobFailed
from driver.journal.log import reading as journal
from forebay import messages as m
from forebay.kafka.embedded.broker import MockBroker
from forebay.model.errors import EngineLostError, UnreadableBlockError
from forebay.process.clock import ManualClock
from forebay.process.restarts import RestartPolicy
from forebay.settings.schema import Settings
from tests.support.processes import running_driver
from tests.support.processes.running_driver import Carriers, Running, failed, local_settings, running
from wal.storage import open_storage


@pytest.fixture
def settings(tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str]) -> Settings:
    return local_settings(tmp_path, mock_broker, topic_name(), max_queued_batches=4)


def test_driver_stays_up_as_failed_with_the_error_and_its_place_until_the_batch_succeeds(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-3: the batch is intact, and it is the same one that is tried again when an operator says so."""
    job = Carriers()
    with running(settings, job) as driver:
        driver.take_in(5)
        answer = driver.until(failed)
        (batch,) = answer.batches
        assert (answer.state, batch.attempts) == ("failed", 3)
        assert "KeyError: 'carrier'" in answer.detail
        assert "KeyError: 'carrier' at " + running_driver.__file__ in batch.detail
        assert "in look_up: return row[column]" in batch.detail
        assert driver.driver.service_status().text.startswith("failed: batch ")
        for _ in range(2):
            seen = driver.status().batches[0].attempts
            driver.client.post("/v1/operator/retry", m.RetryRequest(), m.OperatorAnswer)
            driver.until(lambda now, seen=seen: failed(now) and now.batches[0].attempts > seen)  # type: ignore[misc]
        job.is_fixed = True
        retried = driver.client.post("/v1/operator/retry", m.RetryRequest(), m.OperatorAnswer)
        assert str(batch.batch_id) in retried.message
        answer = driver.until(lambda now: now.batches_completed == 1)
        assert driver.until(lambda now: now.state == "running").detail == ""
        assert {batch_id for batch_id, _ in job.runs} == {batch.batch_id}
        assert len(job.runs) == 6
        assert "nothing" in driver.client.post("/v1/operator/retry", m.RetryRequest(), m.OperatorAnswer).message
    assert driver.error is None
    errors = [r for r in caplog.records if r.levelno >= logging.WARNING and "KeyError" in r.getMessage()]
    assert len(errors) == 1
    assert "Traceback" in errors[0].getMessage()
    assert sum("It is intact; no other batch begins" in r.getMessage() for r in caplog.records) == 1


def test_failed_batch_is_tried_again_by_itself(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = RestartPolicy(first_delay_seconds=0.01, max_delay_seconds=0.05)
    monkeypatch.setattr(FailingJobs.__init__, "__kwdefaults__", {"retries": quick})
    runs: list[int] = []

    def job(batch: Batch) -> None:
        runs.append(batch.id)
        if len(runs) < 6:
            raise KeyError("carrier")

    with running(settings, job) as driver:
        driver.take_in(5)
        driver.until(lambda now: now.batches_completed == 1)
    assert len(runs) == 6 and len(set(runs)) == 1
    state = journal.read(open_storage(settings.driver.journal), "s").state
    assert state is not None and not state.failures, "the next driver would show a completed batch as failed"


def test_next_driver_shows_the_last_error_before_its_own_first_attempt(settings: Settings) -> None:
    with running(settings, Carriers()) as driver:
        driver.take_in(5)
        before = driver.until(failed)
    held, go_on = threading.Event(), threading.Event()

    def slow(batch: Batch) -> None:
        held.set()
        go_on.wait(30)

    with running(settings, slow) as driver:
        assert held.wait(30)
        answer = driver.until(lambda now: now.state == "failed")
        assert (answer.batches[0].state, answer.batches[0].attempts) == ("running", 4)
        assert "KeyError: 'carrier'" in answer.batches[0].detail
        assert before.batches[0].batch_id == answer.batches[0].batch_id
        go_on.set()
        driver.until(lambda now: now.state == "running" and now.batches_completed == 1)


def test_job_that_calls_exit_fails_its_batch_and_not_the_driver(settings: Settings) -> None:
    def leaves(batch: Batch) -> None:
        raise SystemExit(7)

    with running(settings, leaves) as driver:
        driver.take_in(5)
        assert "SystemExit: 7" in driver.until(failed).batches[0].detail


def test_failure_of_a_second_output_leaves_the_first_one_done(settings: Settings) -> None:
    done: list[int] = []
    job = Carriers()
    with running(settings, lambda batch: done.append(batch.id), job) as driver:
        driver.take_in(5)
        answer = driver.until(failed)
        assert answer.batches[0].outputs == ("job-0",)
        job.is_fixed = True
        driver.client.post("/v1/operator/retry", m.RetryRequest(), m.OperatorAnswer)
        driver.until(lambda now: now.batches_completed == 1)
    assert len(done) == 1


def test_drain_tries_a_failed_batch_once_more_and_ends_without_it(settings: Settings) -> None:
    """It does not wait ``driver.stop_timeout`` for a batch that fails again."""
    job = Carriers()
    with running(settings, job) as driver:
        driver.take_in(5)
        driver.until(failed)
        driver.driver.stop(drain=True, timeout_seconds=3600.0)
        driver.thread.join(60)
        assert not driver.thread.is_alive()
    assert driver.error is None
    assert len(job.runs) == 4
    assert driver.driver.summary().left.batches == 1


def test_engine_that_is_lost_ends_the_driver(settings: Settings) -> None:
    """Another attempt in this process could not succeed: a supervisor starts the next driver."""

    def lost(batch: Batch) -> None:
        raise EngineLostError("Spark's JVM has ended")

    driver = Running(settings, lost)
    try:
        driver.take_in(5)
        driver.thread.join(30)
        assert isinstance(driver.error, EngineLostError)
    finally:
        driver.end()


def test_delays_between_attempts_at_a_failed_batch_grow_to_their_bound() -> None:
    clock = ManualClock()
    failing = FailingJobs(
        clock, max_failures=1, known={}, retries=RestartPolicy(first_delay_seconds=2.0, max_delay_seconds=10.0)
    )
    work: Any = type("Work", (), {"batch_id": 7, "number": 7, "output": "job", "replay": 0, "stream": "s"})
    delays = [failing.fail(work, failing.note(work, ValueError("no")))[0] for _ in range(5)]
    assert delays == [2, 4, 8, 10, 10]
    last = failing.of(7)
    assert last is not None
    assert (last.attempts, last.repeats) == (5, 5)
    assert failing.note(work, ValueError("another")).repeats == 1
    failing.forget(7)
    assert (failing.text, failing.of(7)) == ("", None)


def test_failure_known_from_the_journal_counts_on() -> None:
    known = JobFailed(
        batch_id=7, output="job", error="ValueError: no", place="", attempts=4, repeats=4, since_ms=0, time_ms=1
    )
    failing = FailingJobs(ManualClock(), max_failures=4, known={7: known})
    assert "ValueError: no" in failing.text
    work: Any = type("Work", (), {"batch_id": 7, "number": 7, "output": "job", "replay": 0, "stream": "s"})
    failure = failing.note(work, ValueError("no"))
    assert (failure.attempts, failure.since_ms) == (5, 0)


def journalled(settings: Settings) -> dict[int, JobFailed]:
    state = journal.read_beside_a_writer(open_storage(settings.driver.journal), "s").state
    assert state is not None
    return state.failures


def leave_over(settings: Settings) -> int:
    """A driver that ends before it began a batch which it made; returns the batch's id."""
    held, go_on = threading.Event(), threading.Event()

    def slow(batch: Batch) -> None:
        held.set()
        go_on.wait(30)

    with running(settings, slow) as driver:
        driver.take_in(5)
        assert held.wait(30)
        driver.take_in(5)
        answer = driver.until(lambda now: len(now.batches) == 2)
        driver.driver.stop()
        go_on.set()
    return answer.batches[1].batch_id


def test_first_attempt_at_a_left_over_batch_is_journalled_before_it_begins(settings: Settings) -> None:
    """If the attempt ends the process, that is the last that the journal knows of the batch."""
    batch_id = leave_over(settings)
    seen: list[dict[int, JobFailed]] = []
    with running(settings, lambda batch: seen.append(journalled(settings))) as driver:
        answer = driver.until(lambda now: now.batches_completed == 2 and now.state != "waiting")
        assert (answer.state, answer.batches[-1].detail) == ("running", "")
        driver.take_in(5)
        driver.until(lambda now: now.batches_completed == 3)
    left_over, fresh = seen
    assert [(f.batch_id, f.error, f.attempts) for f in left_over.values()] == [(batch_id, PROCESS_ENDED, 1)]
    assert fresh == {}, "an attempt at a batch of this driver's own costs no event"
    assert journalled(settings) == {}


def test_batch_whose_attempts_ended_too_many_drivers_waits_before_the_next_one(settings: Settings) -> None:
    """INV-3: no loop of restarts; the batch is intact, and runs when an operator says so."""
    batch_id = leave_over(settings)

    def lost(batch: Batch) -> None:
        raise EngineLostError("Spark's JVM has ended")

    for _ in range(settings.driver.job_max_failures):
        driver = Running(settings, lost)
        driver.thread.join(30)
        driver.end()
        assert isinstance(driver.error, EngineLostError)
    runs: list[int] = []
    with running(settings, lambda batch: runs.append(batch.id)) as driver:
        answer = driver.until(lambda now: now.state == "failed" and "next attempt at" in now.batches[-1].detail)
        assert f"batch {batch_id}: the driver's process ended during attempt 3" in answer.detail
        assert runs == []
        driver.client.post("/v1/operator/retry", m.RetryRequest(), m.OperatorAnswer)
        driver.until(lambda now: now.batches_completed == 2)
    assert runs == [batch_id]


@pytest.mark.parametrize("fails_before", [False, True])
def test_batch_that_can_not_be_read_does_not_count_as_an_attempt_that_ended_the_process(
    settings: Settings, fails_before: bool
) -> None:
    leave_over(settings)
    if fails_before:
        with running(settings, Carriers()) as driver:
            driver.until(failed)
    before = journalled(settings)
    assert [failure.error for failure in before.values()] == (["KeyError: 'carrier'"] if fails_before else [])

    def unreadable(batch: Batch) -> None:
        raise UnreadableBlockError("block b")

    with running(settings, unreadable) as driver:
        driver.until(lambda now: any(batch.state == "unreadable" for batch in now.batches))
        driver.client.post("/v1/operator/retry", m.RetryRequest(), m.OperatorAnswer)  # answered after the event above
    assert journalled(settings) == before


def process_ended(attempts: int) -> JobFailed:
    return JobFailed(
        batch_id=7,
        output="job",
        error=PROCESS_ENDED,
        place="",
        attempts=attempts,
        repeats=attempts,
        since_ms=0,
        time_ms=1,
    )


@pytest.mark.parametrize(("attempts", "delay"), [(1, None), (2, 10.0), (3, 20.0), (4, 40.0), (50, 600.0)])
def test_delay_grows_with_the_attempts_that_ended_the_process(
    attempts: int, delay: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-6: over every driver, so a supervisor that starts them again and again makes no loop."""
    failing = FailingJobs(ManualClock(), max_failures=2, known={7: process_ended(attempts)})
    failing.log_ended()
    assert f"batch 7, output job: the driver's process ended during attempt {attempts} (" in caplog.text
    failure = failing.delayed(7)
    assert (failure is None) is (delay is None)
    if failure is not None:
        work: Any = type("Work", (), {"batch_id": 7, "number": 7, "output": "job", "replay": 0, "stream": "s"})
        assert failing.fail(work, failure)[0] == delay
        assert failing.begun(work).attempts == attempts + 1
        assert failing.note(work, ValueError("no")).attempts == attempts + 1


def test_job_error_of_an_earlier_driver_delays_no_first_attempt() -> None:
    known = JobFailed(
        batch_id=7, output="job", error="ValueError: no", place="", attempts=9, repeats=9, since_ms=0, time_ms=1
    )
    assert FailingJobs(ManualClock(), max_failures=2, known={7: known}).delayed(7) is None
