"""Concurrent jobs, several outputs, windows and empty batches, from configuration to job, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from driver import IngestContext
from driver.batches.job.batch import Batch
from forebay import messages as m
from forebay.http.client import Client
from forebay.model.errors import JobError, UsageError
from forebay.settings.schema import Settings
from recovery.audit import audit
from tests.support.processes.played import PlayedReceiver
from tests.support.state.columns import column_values
from tests.support.state.intakes import Collecting, Configure, ready
from wal.storage import open_storage


def status(intake: IngestContext) -> m.StatusAnswer:
    return Client(intake.url).get("/v1/status", m.StatusAnswer)


def until(condition: Callable[[], object]) -> None:
    for _ in range(1500):
        if condition():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it never came")


def is_clean(s: Settings) -> bool:
    return audit(open_storage(s.driver.journal), "s").clean


def test_jobs_run_side_by_side_and_the_completed_position_waits_for_the_first(settings: Configure) -> None:
    """INV-3: they begin in order; the second ends first, and is shown as completed; the position is not."""
    s = settings(concurrent_jobs=2)
    begun: list[int] = []
    both, go_on = threading.Event(), threading.Event()

    def job(batch: Batch) -> None:
        assert batch.concurrent
        begun.append(batch.id)
        if len(begun) == 1:
            assert go_on.wait(30)
        else:
            both.set()

    with IngestContext(None, s) as intake:
        intake.foreach_batch(job)
        tp = ready(intake, s)
        receiver = PlayedReceiver(s, intake.url)
        receiver.take_in(tp, 10)
        until(lambda: begun)
        receiver.take_in(tp, 10)
        assert both.wait(30)
        until(lambda: status(intake).batches_completed == 1)
        (partition,) = (p for p in status(intake).partitions if p.partition == tp.partition)
        assert (partition.position, partition.completed) == (20, 0)
        go_on.set()
        until(lambda: status(intake).batches_completed == 2)
        (partition,) = (p for p in status(intake).partitions if p.partition == tp.partition)
        assert partition.completed == 20
    assert begun == sorted(begun)
    assert is_clean(s)


def test_while_a_batch_fails_no_other_begins_and_the_jobs_end(settings: Configure) -> None:
    """The next driver runs uncompleted batches again, in order, marked as reruns."""
    s = settings(concurrent_jobs=2, job_max_failures=1)
    calls: list[int] = []

    def failing(batch: Batch) -> None:
        calls.append(batch.id)
        raise ValueError("no")

    context = IngestContext(None, s).foreach_batch(failing)
    tp = ready(context, s)
    receiver = PlayedReceiver(s, context.url)
    receiver.take_in(tp, 5)
    with pytest.raises(JobError):
        context.await_termination(30)
    context.stop()
    job = Collecting(5)
    with IngestContext(None, s) as intake:
        intake.foreach_batch(job)
        assert job.enough.wait(30)
    assert job.reruns == calls
    assert len(calls) == 1


def test_stop_may_be_called_in_a_job_of_any_thread(settings: Configure) -> None:
    s = settings(concurrent_jobs=3)
    entered = threading.Barrier(2)
    context = IngestContext(None, s)

    def job(batch: Batch) -> None:
        entered.wait(30)  # two are in work, one of them beside the first thread
        context.stop()

    context.foreach_batch(job)
    tp = ready(context, s)
    receiver = PlayedReceiver(s, context.url)
    receiver.take_in(tp, 5)
    until(lambda: entered.n_waiting)
    receiver.take_in(tp, 5)
    assert context.await_termination(30)
    assert is_clean(s)
    assert audit(open_storage(s.driver.journal), "s").records_completed == 10


def test_outputs_are_made_in_order_and_a_rerun_leaves_out_what_is_done(settings: Configure) -> None:
    """Also where the second one is given another name between two starts: that one has not been made."""
    s = settings(job_max_failures=2)
    made: list[tuple[str, bool]] = []

    def good(batch: Batch) -> None:
        made.append(("good", batch.rerun))

    def bad(batch: Batch) -> None:
        made.append(("bad", batch.rerun))
        raise ValueError("no")

    context = IngestContext(None, s).foreach_batch(good, "first").foreach_batch(bad, "second")
    assert context.url == "", "the second call has yet to come"
    context.start()
    tp = ready(context, s)
    PlayedReceiver(s, context.url).take_in(tp, 5)
    with pytest.raises(JobError):
        context.await_termination(30)
    context.stop()
    assert made == [("good", False), ("bad", False), ("bad", True)]
    made.clear()
    with IngestContext(None, s) as intake:
        intake.foreach_batch(good, "first").foreach_batch(good, "another").start()
        until(lambda: status(intake).batches_completed == 1)
    assert made == [("good", True)]
    assert is_clean(s)


def test_a_changed_job_and_interval_go_on_from_what_the_journal_holds(settings: Configure) -> None:
    """A batch whose remaining output is none of the job's any more is completed, and nothing of it is made again."""
    made: list[tuple[str, int]] = []

    def bad(batch: Batch) -> None:
        raise ValueError("no")

    s = settings(job_max_failures=1)
    context = IngestContext(None, s).foreach_batch(lambda batch: made.append(("old", batch.id)), "first")
    context.foreach_batch(bad, "second").start()
    tp = ready(context, s)
    PlayedReceiver(s, context.url).take_in(tp, 5)
    with pytest.raises(JobError):
        context.await_termination(30)
    context.stop()
    with IngestContext(None, settings(batch_interval="50ms", concurrent_jobs=2)) as intake:
        intake.foreach_batch(lambda batch: made.append(("new", batch.id)), "first").start()
        until(lambda: status(intake).batches_completed == 1)
        PlayedReceiver(s, intake.url).take_in(ready(intake, s), 5)
        until(lambda: status(intake).batches_completed == 2)
    assert [name for name, _ in made] == ["old", "new"]
    assert made[1][1] == made[0][1] + 1
    assert is_clean(s)


def test_an_output_named_twice_is_refused(settings: Configure) -> None:
    context = IngestContext(None, settings()).foreach_batch(Collecting(1), "a")
    with pytest.raises(UsageError, match="'a' was added twice"):
        context.foreach_batch(Collecting(1), "a")


def test_a_window_gives_the_rows_of_past_batches_also_after_a_restart(settings: Configure) -> None:
    """INV-8: their blocks stay as long as a window reaches back to them."""
    s = settings(window_batches=2)
    seen: list[tuple[int, list[int], tuple[int, ...]]] = []

    def job(batch: Batch) -> None:
        over = batch.window(3)
        offsets = [offset for rows in over.read() for offset in column_values(rows, "offset")]
        assert (over.id, over.key, over.time) == (batch.id, batch.key, batch.time)
        assert over.records == len(offsets)
        seen.append((batch.id, offsets, over.covered))
        with pytest.raises(UsageError, match=r"set driver\.window_batches = 3"):
            batch.window(4)

    position = 0
    for batches in (2, 2):
        with IngestContext(None, s) as intake:
            intake.foreach_batch(job)
            tp = ready(intake, s)
            receiver = PlayedReceiver(s, intake.url, f"r{position}")
            for _ in range(batches):
                count = len(seen)
                receiver.take_in(tp, 10)
                position += 10
                until(lambda count=count: len(seen) > count)  # type: ignore[misc]
    ids = [batch_id for batch_id, _, _ in seen]
    for index, (_, offsets, covered) in enumerate(seen):
        assert covered == tuple(ids[max(0, index - 2) : index + 1])
        assert offsets == list(range(max(0, index - 2) * 10, (index + 1) * 10))
    assert is_clean(s)


def test_an_interval_without_records_gives_an_empty_batch_if_that_is_wanted(settings: Configure) -> None:
    s = settings(empty_batches="deliver")
    empty: list[Batch] = []

    def job(batch: Batch) -> None:
        assert list(batch.read()) == []
        empty.append(batch)

    with IngestContext(None, s) as intake:
        intake.foreach_batch(job)
        until(lambda: len(empty) >= 3)
    assert [batch.records for batch in empty[:3]] == [0, 0, 0]
    assert len({batch.time for batch in empty}) == len(empty), "at most one for an interval"
    assert is_clean(s)


def test_without_an_interval_batches_follow_each_other_over_a_failure_too(settings: Configure) -> None:
    """INV-2, INV-3, from configuration to audit."""
    s = settings(batch_interval="0s", max_batch_records=25)
    seen: list[tuple[int, int]] = []
    times: list[float] = []
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def job(batch: Batch) -> None:
        seen.append((batch.number, batch.records))
        times.append(batch.time.timestamp())
        begun.release()
        assert go_on.acquire(timeout=30)
        if len(seen) == 1:
            raise ValueError("the first attempt fails")

    with IngestContext(None, s) as intake:
        intake.foreach_batch(job)
        tp = ready(intake, s)
        receiver = PlayedReceiver(s, intake.url)
        receiver.take_in(tp, 10)
        assert begun.acquire(timeout=30)
        for _ in range(4):  # they wait for the job; the limit divides them
            receiver.take_in(tp, 10)
        assert status(intake).waiting_blocks == 4 and len(status(intake).batches) == 1
        go_on.release(2)
        assert begun.acquire(timeout=30) and begun.acquire(timeout=30)
        receiver.take_in(tp, 10)
        go_on.release(100)
        until(lambda: status(intake).batches_completed == 4)
    assert seen == [(1, 10), (1, 10), (2, 20), (3, 20), (4, 10)]
    assert times == sorted(times) and len(set(times)) == 4
    assert is_clean(s)
