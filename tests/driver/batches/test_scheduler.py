"""What the scheduler gives an engine to run."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from driver.batches.batch_run import ReadPause
from driver.batches.job.batch import Batch
from driver.batches.job.engine import NamedJob
from driver.batches.job.work import BatchWork, Written
from driver.batches.runner import AttemptRules
from driver.batches.scheduler import BatchOptions, Scheduler
from driver.decisions.replay import RewindTo
from driver.journal.events import PauseChanged
from driver.tracker.requests import BeginReplay, Complete
from forebay import messages as m
from forebay.messages import BatchEntry
from forebay.model.errors import FencedError, UnreadableBlockError
from forebay.model.identifiers import numbered
from forebay.process.clock import SystemClock
from tests.support.state.tracked import TOPIC, Tracked


def test_a_batch_has_headers_if_one_of_its_blocks_has_regardless_of_the_settings() -> None:
    """INV-3: a rerun under changed settings can still be read."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 5)
    block = t.take_in(epoch, token, 9)
    batch = t.state.batches[t.batch()]
    scheduler = scheduler_of()
    assert not scheduler._work(scheduler._read_same(batch.batch_id).read(t.state)).headers
    t.state.blocks[block.id] = msgspec.structs.replace(block, meta=msgspec.structs.replace(block.meta, headers=True))
    assert scheduler._work(scheduler._read_same(batch.batch_id).read(t.state)).headers


def test_a_batch_has_the_topic_ids_of_its_incarnations_and_a_large_one_those_of_all() -> None:
    """What tells the Kafka tier whose records it reads."""
    t = Tracked(partitions=4)
    epoch = t.register()
    token = t.claim(epoch).view.token
    scheduler = scheduler_of()

    def topic_ids() -> dict[str, str]:
        batch = t.state.batches[t.batch()]
        found = dict(scheduler._work(scheduler._read_same(batch.batch_id).read(t.state)).topic_ids)
        t.complete(batch.batch_id)
        return found

    t.take_in(epoch, token, 5)
    assert topic_ids() == {f"{TOPIC}/0/1": "id-1"}
    for until in range(6, 12):
        t.take_in(epoch, token, until)
    assert topic_ids() == {f"{TOPIC}/{partition}/1": "id-1" for partition in range(4)}


def test_a_batch_does_not_count_lost_records() -> None:
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 5)
    t.take_in(epoch, token, 12)
    batch = t.state.batches[t.batch()]
    scheduler = scheduler_of()
    assert scheduler._work(scheduler._read_same(batch.batch_id).read(t.state)).records == 12
    batch.lost = (f"{TOPIC}/0[5, 12)",)
    work = scheduler._work(scheduler._read_same(batch.batch_id).read(t.state))
    assert work.records == sum(r.records for r in work.ranges) == 5


def scheduler_of(
    loop: object = None,
    engine: object = None,
    job: object = None,
    max_failures: int = 4,
    unreadable_retry_seconds: float = 30.0,
    **more: Any,
) -> Scheduler:
    """A scheduler; with an engine, of one job whose retries have no delay."""
    jobs = (NamedJob("job", cast(Any, job)),) if engine is not None else ()
    return Scheduler(
        cast(Any, loop),
        cast(Any, engine),
        jobs,
        clock=SystemClock(),
        options=BatchOptions(batch_interval_seconds=1.0, tasks=lambda: 1, headers=False, **more),
        rules=AttemptRules(
            max_failures=max_failures, retry_delay_seconds=0.0, unreadable_retry_seconds=unreadable_retry_seconds
        ),
    )


def with_a_batch() -> Tracked:
    """Return a tracker with one allocated batch of five records."""
    t = Tracked()
    epoch = t.register()
    t.take_in(epoch, t.claim(epoch).view.token, 5)
    t.batch()
    return t


def newest(scheduler: Scheduler) -> BatchEntry:
    entry = scheduler.batches.newest
    assert entry is not None
    return entry


def begun(scheduler: Scheduler, t: Tracked) -> BatchWork | None:
    taken = scheduler._read_next().read(t.state)
    return scheduler._work(taken) if taken is not None else None


def test_batches_of_a_replay_run_before_new_batches_and_are_marked() -> None:
    """INV-3: the same id, blocks and packing; another key."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 5)
    first = t.batch()
    t.complete(first)
    t.take_in(epoch, token, 9)
    second = t.batch()
    scheduler = scheduler_of()

    def following() -> Any:
        work = begun(scheduler, t)
        scheduler._progress.in_work.clear()
        return work

    before = following()
    assert before is not None
    assert (before.batch_id, before.replay, before.rerun) == (second, 0, False)
    original = Batch(scheduler._work(scheduler._read_same(first).read(t.state)), cast(Any, None))
    t.say(BeginReplay(RewindTo(first), (), 0, "ann"))
    work = following()
    assert work is not None
    assert (work.batch_id, work.replay, work.rerun) == (first, 1, True)
    again = Batch(work, cast(Any, None))
    assert (again.id, again.time, again.ranges) == (original.id, original.time, original.ranges)
    assert (original.key, again.key) == (f"1-0-{first}", f"1-1-{first}")
    t.say(Complete(first, 7, 1, 1))
    assert following() == before


def test_a_batch_that_is_tried_again_is_the_same_though_a_replay_began_behind_it() -> None:
    """INV-3: an attempt never goes over into another batch; the replay comes next."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 5)
    first = t.batch()
    t.complete(first)
    t.take_in(epoch, token, 9)
    second = t.batch()
    runs: list[tuple[int, int]] = []

    class Loop:
        ask = staticmethod(t.say)

    class Engine:
        def await_ready(self, work: BatchWork) -> bool:
            return False

        def run(self, work: BatchWork, job: Any) -> dict[str, int]:
            runs.append((work.replay, work.batch_id))
            if len(runs) == 1:
                t.say(BeginReplay(RewindTo(first), (), 0, "ann"))
                raise RuntimeError("the first attempt fails")
            if len(runs) == 3:
                scheduler.stop()
            return {}

    scheduler = scheduler_of(Loop(), Engine())
    scheduler.run()
    assert runs == [(0, second), (0, second), (1, first)]
    assert not t.state.unfinished()
    assert t.state.replay is None


def test_a_stop_between_two_checks_is_not_missed() -> None:
    """Otherwise a worker would wait for the next batch for ever."""

    class Event(threading.Event):
        def is_set(self) -> bool:
            before = super().is_set()
            if not before:
                scheduler.stop()  # just after it was looked at
            return before

    scheduler = scheduler_of(SimpleNamespace(ask=Tracked().say))
    scheduler._progress.stopping = Event()
    ended = threading.Thread(target=scheduler.run, daemon=True)
    ended.start()
    ended.join(60)
    assert not ended.is_alive()


def test_a_batch_that_no_tier_can_read_is_tried_again_by_itself_and_is_no_failure_of_the_job() -> None:
    """INV-5: in case the bytes come back; intake goes on meanwhile."""
    t = Tracked()
    epoch = t.register()
    t.take_in(epoch, t.claim(epoch).view.token, 5)
    t.batch()
    seen: list[str] = []

    class Loop:
        ask = staticmethod(t.say)

    class Engine:
        def await_ready(self, work: BatchWork) -> bool:
            return False

        def run(self, work: BatchWork, job: Any) -> dict[str, int]:
            seen.append(next((run.state for run in scheduler.running.values()), ""))
            if len(seen) < 3:
                raise UnreadableBlockError("block b")
            scheduler.stop()
            return {}

    scheduler = scheduler_of(Loop(), Engine(), max_failures=1, unreadable_retry_seconds=0.01)
    scheduler.run()
    assert len(seen) == 3
    assert not t.state.unfinished()
    assert newest(scheduler).attempts == 1


def test_batch_that_waited_for_its_engine_does_not_begin_after_a_stop() -> None:
    """INV-4: a newer driver may run it already."""
    t = with_a_batch()
    waits = [False, True]
    runs: list[int] = []

    class Loop:
        ask = staticmethod(t.say)

    class Engine:
        def await_ready(self, work: BatchWork) -> bool:
            scheduler.stop()
            return waits.pop()

        def run(self, work: BatchWork, job: Any) -> dict[str, int]:
            runs.append(work.batch_id)
            return {}

    scheduler = scheduler_of(Loop(), Engine())
    work = begun(scheduler, t)
    assert work is not None
    scheduler._runner.run(work)
    assert not runs
    assert t.state.unfinished()
    scheduler._runner.run(work)
    assert runs == [work.batch_id], "a batch that begins without a wait runs to its end"
    assert not t.state.unfinished()


def test_what_output_helpers_wrote_is_shown_with_its_batch_and_a_fenced_one_ends_the_jobs() -> None:
    """INV-4: an output that has seen a newer driver is not asked again."""
    t = with_a_batch()

    class Loop:
        ask = staticmethod(t.say)

    class Engine:
        def await_ready(self, work: BatchWork) -> bool:
            return False

        def run(self, work: BatchWork, job: Any) -> dict[str, int]:
            job(Batch(work, cast(Any, None)))
            return {}

    def write(batch: Batch) -> None:
        assert (batch.stream, batch.number, batch.epoch, batch.concurrent) == ("flights", 1, 77, False)
        batch.note(Written("table", 5))
        batch.note(Written("topic", 0, "batch 7 is there"))

    scheduler = scheduler_of(Loop(), Engine(), write, epoch=77)
    work = begun(scheduler, t)
    assert work is not None
    scheduler._runner.run(work)
    assert newest(scheduler).written == ("table: 5 rows", "topic: skipped, batch 7 is there")

    def fenced(_: Batch) -> None:
        runs.append(1)
        raise FencedError("newer")

    runs: list[int] = []
    scheduler._runner._jobs = (NamedJob("job", fenced),)
    with pytest.raises(FencedError):
        scheduler._runner.run(work)
    assert runs == [1]


def test_a_replay_after_a_rebuild_has_another_key_though_replays_are_counted_from_one_again() -> None:
    """The batch keeps its id, and its key as long as it is no replay."""
    old, nothing = numbered(1, 7), cast(Any, None)

    def key(replay: int, epoch: int) -> str:
        return Batch(BatchWork(old, 7, 0, True, (), replay=replay, epoch=epoch), nothing).key

    assert key(0, numbered(1, 3)) == key(0, numbered(2, 1)) == f"1-0-{old}"
    assert (key(1, numbered(1, 3)), key(1, numbered(2, 1))) == (f"1-1-{old}", f"2-1-{old}")


def test_while_a_batch_fails_or_can_not_be_read_no_other_begins() -> None:
    """Batches stop there: what comes later would only pile up beyond the completed prefix."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 5)
    t.batch()
    t.take_in(epoch, token, 9)
    second = t.batch()
    scheduler = scheduler_of()
    first = begun(scheduler, t)
    assert first is not None
    scheduler._progress.held_up.add((0, first.batch_id))
    assert scheduler._read_next().read(t.state) is None
    scheduler._progress.held_up.clear()
    following = begun(scheduler, t)
    assert following is not None
    assert following.batch_id == second


def test_resume_during_the_start_ends_the_pause() -> None:
    """The decision loop handles requests in groups; one group may read the pause and then end it."""
    t = Tracked()
    t.say(m.PauseRequest(paused=True, cause="anna@h1"))

    def ask(request: Any) -> Any:
        answer = t.say(request)
        if isinstance(request, ReadPause):
            assert scheduler.paused
            t.say(m.PauseRequest(paused=False, cause="anna@h1"))
            scheduler.note([PauseChanged(False, 1, "anna@h1")])
        return answer

    scheduler = scheduler_of(SimpleNamespace(ask=ask))
    try:
        scheduler.start()
        assert t.state.pause is None
        assert not scheduler.paused
    finally:
        scheduler.stop()
        scheduler.join()
