"""When a batch is made: at the end of each interval, or without an interval when a worker is free."""

from __future__ import annotations

import threading
from typing import Any, cast

from driver.batches.job.engine import NamedJob
from driver.batches.job.work import BatchWork
from driver.batches.progress import Progress
from driver.batches.runner import AttemptRules
from driver.batches.scheduler import BatchOptions, Scheduler
from driver.batches.timer import BatchTimer
from driver.batches.trigger import Trigger
from driver.decisions.replay import RewindTo
from driver.journal.events import BatchAllocated
from driver.tracker.requests import AllocateNext, BeginReplay, Complete, NextAllocated
from forebay import messages as m
from forebay.process.clock import SystemClock
from tests.support.state.tracked import Tracked


def test_a_timer_that_wakes_a_moment_early_cuts_an_interval_once() -> None:
    walls = iter((990, 999, 2_001))
    cut: list[int] = []

    class Clock:
        @staticmethod
        def wall_ms() -> int:
            return next(walls)

    class Stopping:
        @staticmethod
        def is_set() -> bool:
            return len(cut) == 3

        @staticmethod
        def wait(_: float) -> bool:
            return False

    progress = Progress()
    progress.stopping = cast(Any, Stopping())
    timer = BatchTimer(
        cast(Any, None),
        cast(Any, Clock()),
        progress,
        end_interval=cut.append,
        interval_seconds=1.0,
        tasks=lambda: 1,
        empty_batches=False,
        ahead=False,
        allocation=None,
        failed=lambda _: None,
    )
    timer._run()
    assert cut == [1_000, 2_000, 3_000]


class WithoutInterval:
    """A scheduler with ``batch_interval = "0s"`` over a tracker; each run of its job is noted, and may be held up."""

    def __init__(self, t: Tracked, jobs: int = 1) -> None:
        self.t = t
        self.runs: list[tuple[int, int]] = []  # batch number, blocks
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.scheduler = Scheduler(
            cast(Any, self),
            cast(Any, self),
            (NamedJob("job", cast(Any, None)),),
            clock=SystemClock(),
            options=BatchOptions(batch_interval_seconds=0.0, tasks=lambda: 1, headers=False, concurrent_jobs=jobs),
            rules=AttemptRules(max_failures=1, retry_delay_seconds=0.0, unreadable_retry_seconds=30.0),
        )
        self.thread = threading.Thread(target=self.scheduler.run, daemon=True)

    def ask(self, request: Any) -> Any:
        """As the decision loop: one after the other, and then the events are noted as durable."""
        with self.lock:
            decision = self.t.decide(request)
        self.scheduler.note(decision.events)
        return decision.answer

    def take_in(self, epoch: int, token: int, until: int) -> None:
        with self.lock:
            known = len(self.t.events)
            self.t.take_in(epoch, token, until)
            events = self.t.events[known:]
        self.scheduler.note(events)

    def await_ready(self, work: BatchWork) -> bool:
        return False

    def run(self, work: BatchWork, job: Any) -> dict[str, int]:
        self.runs.append((work.number, sum(map(len, work.tasks))))
        self.begun.release()
        assert self.may_end.acquire(timeout=30)
        return {}

    def end(self) -> None:
        self.scheduler.stop()
        self.may_end.release(100)
        self.thread.join(30)
        assert not self.thread.is_alive()


def test_without_an_interval_a_batch_begins_with_its_first_block_and_the_next_has_all_that_came_meanwhile() -> None:
    """INV-3. No batch waits behind another one, and none is made before a worker is free."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    s = WithoutInterval(t)
    s.scheduler.start()
    s.thread.start()
    try:
        s.take_in(epoch, token, 5)
        assert s.begun.acquire(timeout=30)
        for until in (6, 7, 8):
            s.take_in(epoch, token, until)
        assert len(t.state.waiting) == 3
        s.may_end.release()
        assert s.begun.acquire(timeout=30)
        s.ask(m.PauseRequest(paused=True, cause="ann"))
        s.take_in(epoch, token, 9)
        s.may_end.release()
        assert not s.begun.acquire(timeout=0.1) and len(t.state.waiting) == 1
        s.ask(m.PauseRequest(paused=False, cause="ann"))
        assert s.begun.acquire(timeout=30)
    finally:
        s.end()
    assert s.runs == [(1, 1), (2, 3), (3, 1)]
    times = [event.time_ms for event in t.events if isinstance(event, BatchAllocated)]
    assert times == sorted(set(times)), "each has a time of its own, though the clock stood still"


def test_without_an_interval_limits_cut_batches_that_follow_each_other() -> None:
    t = Tracked(max_batch_records=25, max_queued_batches=4)
    epoch = t.register()
    token = t.claim(epoch).view.token
    for until in range(10, 60, 10):
        t.take_in(epoch, token, until)
    s = WithoutInterval(t)
    s.may_end.release(3)
    s.scheduler.start()
    s.thread.start()
    try:
        for _ in range(3):
            assert s.begun.acquire(timeout=30)
    finally:
        s.end()
    assert s.runs == [(1, 2), (2, 2), (3, 1)]


def test_intervals_that_end_while_all_workers_are_busy_make_one_batch_of_the_newest_ones_time() -> None:
    """A replay from a time runs the records of that time, so a batch is never named after an interval long before its records.
    Its scheduling delay counts from the oldest one. An interval that ends while the batch is made makes the next one due."""
    trigger = Trigger(1.0)
    assert trigger.due() is None
    trigger.end_interval(1_000)
    trigger.end_interval(2_000)
    due = trigger.due()
    assert due is not None and (due.time_ms, due.since_ms) == (2_000, 1_000)
    trigger.end_interval(3_000)
    trigger.finish_due(due, left=False)
    due = trigger.due()
    assert due is not None and (due.time_ms, due.since_ms) == (3_000, 3_000)
    trigger.finish_due(due, left=False)
    assert trigger.due() is None


def test_blocks_that_are_left_are_due_from_the_newest_interval_on() -> None:
    """Limits cut a backlog into batches with ascending times, and a pause is no delay."""
    trigger = Trigger(1.0)
    trigger.end_interval(1_000)
    due = trigger.due()
    assert due is not None
    trigger.end_interval(2_000)
    trigger.end_interval(3_000)
    trigger.finish_due(due, left=True)
    due = trigger.due()
    assert due is not None and (due.time_ms, due.since_ms) == (3_000, 3_000)


def test_a_batch_that_could_not_begin_is_not_made() -> None:
    """Blocks wait instead of batches: under a pause, during a replay, and beyond ``max_queued_batches``."""
    t = Tracked(max_queued_batches=2)
    epoch = t.register()
    token = t.claim(epoch).view.token
    assert t.say(AllocateNext(5_000, 1)) == NextAllocated(None, left=False)
    t.take_in(epoch, token, 5)
    made = t.say(AllocateNext(5_000, 1))
    assert made == NextAllocated(made.batch_id, left=False) and t.state.batches[made.batch_id].time_ms == 5_000
    t.complete(made.batch_id)
    t.take_in(epoch, token, 6)
    t.say(m.PauseRequest(paused=True, cause="ann"))
    assert t.say(AllocateNext(6_000, 1)) == NextAllocated(None, left=True)
    t.say(m.PauseRequest(paused=False, cause="ann"))
    t.say(BeginReplay(RewindTo(made.batch_id), (), 0, "ann"))
    assert t.say(AllocateNext(6_000, 1)) == NextAllocated(None, left=True)
    t.say(Complete(made.batch_id, 7, 1, 1))
    for until in (7, 8):
        assert t.say(AllocateNext(None, 1)).batch_id is not None
        t.take_in(epoch, token, until)
    assert t.say(AllocateNext(None, 1)) == NextAllocated(None, left=True)
    times = [batch.time_ms for batch in t.state.unfinished()]
    assert times == [5_001, 5_002], "later than the batch before, though the clock is behind it"
