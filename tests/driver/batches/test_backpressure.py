"""Backpressure: from completed batches to the rates that receivers get, and what a restart keeps."""

from __future__ import annotations

from typing import Any, cast

import pytest

from driver.batches.backpressure import Backpressure
from driver.batches.job.engine import NamedJob
from driver.batches.job.work import BatchWork
from driver.batches.runner import AttemptRules, BatchHooks
from driver.batches.scheduler import BatchOptions, Scheduler
from driver.decision_loop.loop import DriverLoop
from driver.decisions.rate import Gains
from driver.decisions.rate_sharing import RateLimits, RateSharing
from driver.journal import events as ev
from driver.journal.log.opening import lead
from driver.journal.state_parts import LearnedRate
from driver.journal.statistics import BatchStatistics
from driver.journal.transitions import apply
from driver.tracker import Tracker
from driver.tracker.requests import Allocate, LearnRate
from forebay import messages as m
from forebay.model.identifiers import numbered
from forebay.process.clock import ManualClock
from tests.support.state.shown import shown
from tests.support.state.tracked import STREAM, TOPIC, Tracked, tracker_options
from wal.storage import MemoryStorage


def tracked(rate: float = 0.0) -> Tracked:
    return Tracked(sharing=RateSharing(RateLimits(), rate))


def beat(t: Tracked, receiver: str, epoch: int, seen: int = 0, **lag_of: int) -> tuple[m.Command, ...]:
    """A heartbeat of a receiver whose positions are ``lag_of`` (``p0=…``) records before the end of each partition."""
    partitions = tuple(
        m.PartitionStatus(
            topic=TOPIC, partition=int(name[1:]), token=1, state="active", position=100, high_watermark=100 + lag
        )
        for name, lag in lag_of.items()
    )
    request = m.HeartbeatRequest(
        receiver_id=receiver,
        epoch=epoch,
        state="active",
        detail="",
        acknowledged=seen,
        buffered_bytes=0,
        records=0,
        partitions=partitions,
    )
    t.now_ms += 2_000
    return t.say(request).commands  # type: ignore[no-any-return]


def given(commands: tuple[m.Command, ...]) -> m.Rates:
    (rates,) = [command.rates for command in commands if command.kind == "rate"]
    assert rates is not None
    return rates


def learn(t: Tracked, rate: float) -> int:
    """→ how many events that made."""
    return len(t.decide(LearnRate(rate, t.now_ms)).events)


# ---- rates of receivers ----------------------------------------------------------------------------------------------


def test_receivers_get_their_share_by_lag_with_their_next_heartbeat() -> None:
    t = tracked()
    one, two = t.register("r1"), t.register("r2", "i2")
    t.claim(one, 0)
    t.claim(two, 1, receiver="r2")
    assert beat(t, "r1", one, p0=300) == ()
    assert beat(t, "r2", two, p1=100) == ()
    learn(t, 1000.0)
    assert given(beat(t, "r1", one, p0=300)).records_per_second == pytest.approx(725)
    rates = given(beat(t, "r2", two, p1=100))
    assert rates.records_per_second == pytest.approx(275)
    assert [(p.partition, p.records_per_second) for p in rates.partitions] == [(1, pytest.approx(275))]


def test_rates_are_repeated_until_acknowledged_and_replaced_rather_than_queued() -> None:
    t = tracked()
    epoch = t.register()
    t.claim(epoch)
    for rate in (1000.0, 500.0, 200.0):
        learn(t, rate)
        commands = beat(t, "r1", epoch, p0=10)
        assert len(commands) == 1
        assert given(commands).records_per_second == pytest.approx(rate)
    assert beat(t, "r1", epoch, p0=10) == commands
    assert beat(t, "r1", epoch, seen=commands[0].version, p0=10) == ()


def test_other_orders_stay_when_rates_are_replaced() -> None:
    t = tracked()
    epoch = t.register()
    t.claim(epoch)
    learn(t, 1000.0)
    beat(t, "r1", epoch, p0=10)
    t.tracker.commands.order("r1", "drain")
    learn(t, 500.0)
    commands = beat(t, "r1", epoch, p0=10)
    assert [command.kind for command in commands] == ["drain", "rate"]
    assert commands[0].version < commands[1].version


def test_a_new_process_of_a_receiver_gets_its_rates_again() -> None:
    t = tracked(1000.0)
    epoch = t.register()
    (first,) = beat(t, "r1", epoch)
    assert beat(t, "r1", epoch, seen=first.version) == ()
    again = t.register(instance="i2")
    assert given(beat(t, "r1", again)) == first.rates


def test_the_first_receiver_of_a_new_driver_gets_no_more_than_its_share() -> None:
    t = tracked(1000.0)
    one, two = t.register("r1"), t.register("r2", "i2")
    t.claim(one, 0)
    t.claim(two, 1, receiver="r2")
    assert given(beat(t, "r1", one, p0=50)).records_per_second == pytest.approx(500)
    assert given(beat(t, "r2", two, p1=50)).records_per_second == pytest.approx(500)


def test_a_partition_with_a_fault_leaves_its_share_to_others() -> None:
    t = tracked(1000.0)
    epoch = t.register()
    t.claim(epoch, 0)
    t.claim(epoch, 1)
    stuck = m.PartitionStatus(topic=TOPIC, partition=0, token=1, state="trouble", position=5, high_watermark=900)
    fine = m.PartitionStatus(topic=TOPIC, partition=1, token=2, state="paused", position=5, high_watermark=6)
    request = m.HeartbeatRequest(
        receiver_id="r1", epoch=epoch, state="active", detail="", acknowledged=0, buffered_bytes=0, records=0,
        partitions=(stuck, fine),
    )  # fmt: skip
    rates = given(t.say(request).commands)
    assert [(p.partition, p.records_per_second) for p in rates.partitions] == [(1, pytest.approx(1000))]


def test_without_backpressure_receivers_get_no_rates_even_if_one_was_learned() -> None:
    t = Tracked()
    apply(t.state, ev.RateLearned(1000.0, 5))
    epoch = t.register()
    t.claim(epoch)
    assert beat(t, "r1", epoch, p0=10) == ()


# ---- what is journalled ----------------------------------------------------------------------------------------------


def test_only_changes_beyond_five_percent_are_journalled_and_small_ones_that_add_up_reach_receivers() -> None:
    t = tracked()
    assert [learn(t, rate) for rate in (1000.0, 1040.0, 1049.0, 1060.0)] == [1, 0, 0, 1]
    assert t.state.learned == LearnedRate(1060.0, t.now_ms)
    assert t.tracker.sharing is not None
    assert learn(t, 1070.0) == 0
    assert t.tracker.sharing.rate == 1070


def test_a_learned_rate_survives_a_restart() -> None:
    """INV-7."""
    storage = MemoryStorage("memory://learned-rate")
    opened, state = lead(storage, STREAM, "one", 1_000, lambda: 1.0, lambda: 1)
    learned = ev.RateLearned(1234.5, 77)
    apply(state, learned)
    opened.append([learned])
    opened.sync()
    _, after = lead(storage, STREAM, "two", 2_000, lambda: 1.0, lambda: 2)
    assert after.learned == LearnedRate(1234.5, 77)
    _, again = lead(storage, STREAM, "three", 2_000, lambda: 1.0, lambda: 3)  # from the second one's snapshot
    assert again.learned == LearnedRate(1234.5, 77)


# ---- what is learned -------------------------------------------------------------------------------------------------


class RecordingLoop:
    """In place of the loop: keeps what it is asked."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def ask(self, request: LearnRate) -> None:
        self.rates.append(request.rate)


def work(**changes: Any) -> BatchWork:
    values: dict[str, Any] = {"batch_id": 1, "number": 1, "time_ms": 0, "rerun": False, "tasks": ()}
    return BatchWork(**{**values, **changes})


def took(processing_ms: int, records: int) -> BatchStatistics:
    return BatchStatistics(records=records, scheduling_delay_ms=0, processing_ms=processing_ms, total_delay_ms=0)


def backpressure(
    loop: RecordingLoop, learned: LearnedRate | None = None, begun_ms: int = 0, interval_seconds: float = 1.0
) -> Backpressure:
    return Backpressure(
        cast(DriverLoop, loop),
        gains=Gains(),
        batch_interval_seconds=interval_seconds,
        learned=learned,
        begun_ms=begun_ms,
    )


def test_without_an_interval_a_short_batch_raises_the_rate_and_a_long_one_lowers_it() -> None:
    """A batch may take a second: 10 records in 0.2 s are 50/s, and count as 100; 800 in 2 s are 400/s, and made others wait for
    1 s: 400 - 0.2 x 1000 x 400 / 1000 = 320. Else a rate of 50/s would hold the next batch to 10 records, for ever."""
    loop = RecordingLoop()
    pressure = backpressure(loop, LearnedRate(50.0, 0), interval_seconds=0.0)
    pressure.completed(work(time_ms=800), took(200, records=10), 1_000)
    pressure.completed(work(time_ms=1_000), took(2_000, records=800), 3_000)
    assert loop.rates == [100, 320]


def test_without_an_interval_the_rate_finds_what_a_slow_job_can_process_in_about_a_second() -> None:
    """A job with a fixed cost of 200 ms, at 1,000 records/s after that, offered more than it can process, from a trickle on."""
    loop = RecordingLoop()
    pressure = backpressure(loop, LearnedRate(10.0, 0), interval_seconds=0.0)
    now_ms, processing_ms = 0, 200
    for _ in range(60):
        records = max(1, round((loop.rates[-1] if loop.rates else 10.0) * processing_ms / 1000))
        processing_ms = 200 + records
        now_ms += processing_ms
        pressure.completed(work(time_ms=now_ms - processing_ms), took(processing_ms, records=records), now_ms)
    assert 600 <= processing_ms <= 1_400 and 500 <= loop.rates[-1] <= 1_100


def test_a_batch_that_ran_late_counts_what_it_waited_for() -> None:
    """Set to 1000 records/s; then 1000 in 1 s after 500 ms: 1000 - 0.2 x 500 x 1000 / 1000 = 900."""
    loop = RecordingLoop()
    pressure = backpressure(loop)
    pressure.completed(work(time_ms=1_000), took(1_000, records=1000), 2_000)
    pressure.completed(work(time_ms=2_000), took(1_000, records=1000), 3_500)
    assert loop.rates == [900]


def test_a_replay_does_not_change_the_rate() -> None:
    loop = RecordingLoop()
    pressure = backpressure(loop, LearnedRate(1000.0, 0))
    pressure.completed(work(replay=3, time_ms=1_000), took(9_000, records=5), 99_000)
    assert loop.rates == []


def test_time_without_a_driver_does_not_count_as_waiting() -> None:
    """A batch that was due long before this driver began waited for the driver. 500 in 1 s after 100 ms of this one:
    1000 - 500 - 0.2 x 100 x 500 / 1000 = 490."""
    loop = RecordingLoop()
    pressure = backpressure(loop, LearnedRate(1000.0, 500), begun_ms=600_000)
    pressure.completed(work(rerun=True, time_ms=1_000), took(1_000, records=500), 601_100)
    assert loop.rates == [490]


def test_a_rate_learned_under_a_clock_ahead_is_used() -> None:
    loop = RecordingLoop()
    pressure = backpressure(loop, LearnedRate(1000.0, 10**12), begun_ms=1_000)
    pressure.completed(work(time_ms=2_000), took(1_000, records=700), 3_000)
    assert loop.rates == [700]


def test_the_scheduler_reports_how_long_the_outputs_of_a_completed_batch_took() -> None:
    """A failed attempt is waiting, not processing; two outputs are processing together."""
    t = Tracked()
    epoch = t.register()
    t.take_in(epoch, t.claim(epoch).view.token, 40)
    clock = ManualClock()
    due_ms = clock.wall_ms()
    t.say(Allocate(due_ms, 1))
    completions: list[tuple[int, ...]] = []
    runs: list[str] = []

    class Loop:
        ask = staticmethod(t.say)

    class Engine:
        def await_ready(self, work: BatchWork) -> bool:
            return False

        def run(self, work: BatchWork, job: Any) -> dict[str, int]:
            runs.append(job())
            clock.advance(2.0)
            if len(runs) == 2:
                raise RuntimeError("the second output fails once")
            return {}

    def completed(work: BatchWork, statistics: BatchStatistics, ended_ms: int) -> None:
        completions.append((work.due_ms - due_ms, statistics.processing_ms, ended_ms - due_ms, statistics.records))
        scheduler.stop()

    jobs = [NamedJob(name, cast(Any, lambda name=name: name)) for name in ("a", "b")]
    scheduler = Scheduler(
        cast(Any, Loop()),
        cast(Any, Engine()),
        jobs,
        clock=clock,
        options=BatchOptions(batch_interval_seconds=1.0, tasks=lambda: 1, headers=False),
        rules=AttemptRules(max_failures=4, retry_delay_seconds=0.0, unreadable_retry_seconds=30.0),
        hooks=BatchHooks(completed=completed),
    )
    clock.advance(1.0)
    scheduler.run()
    assert runs == ["a", "b", "b"]
    assert completions == [(0, 4_000, 7_000, 40)]


def test_status_shows_the_learned_rate_and_each_receivers_limit() -> None:
    t = tracked(1000.0)
    epoch = t.register()
    t.claim(epoch)
    request = m.HeartbeatRequest(
        receiver_id="r1", epoch=epoch, state="active", detail="", acknowledged=0, buffered_bytes=0, records=0, rate=900.0,
        partitions=(
            m.PartitionStatus(
                topic=TOPIC, partition=0, token=1, state="active", position=0, high_watermark=9, rate=800.0
            ),
        ),
    )  # fmt: skip
    t.say(request)
    answer = shown(t.tracker, t.now_ms / 1000)
    assert (answer.backpressure, answer.rate) == (True, 1000)
    assert [r.rate for r in answer.receivers] == [900]
    assert [p.rate for p in answer.partitions] == [800, 0]


def test_a_driver_that_opens_a_journal_begins_with_the_rate_it_holds() -> None:
    t = tracked()
    learn(t, 1000.0)
    assert t.state.learned is not None
    after = Tracker(t.state, numbered(1, 2), tracker_options(), sharing=RateSharing(RateLimits(), t.state.learned.rate))
    epoch = t.register()
    t.tracker = after
    t.claim(epoch)
    (command,) = beat(t, "r1", epoch, p0=5)
    assert command.driver_epoch == numbered(1, 2)
    assert given((command,)).records_per_second == pytest.approx(1000)
