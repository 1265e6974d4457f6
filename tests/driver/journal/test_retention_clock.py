"""The clock by which completed batches age, and what a driver deletes while its wall clock is set."""

from __future__ import annotations

from pathlib import Path

import pytest

from driver.journal.retention_clock import AHEAD_MS_MAX, CATCH_UP, RetentionClock, newest_completion_ms
from forebay.process.clock import ManualClock
from tests.support.processes.long_run import LongRun
from tests.support.state.jumping_clock import JumpingClock
from tests.support.state.tracked import Tracked
from wal.segments.barrier import BARRIER_KEPT_MS

DAY = 86_400.0


def test_without_jumps_it_is_the_wall_clock() -> None:
    clock = ManualClock()
    ageing = RetentionClock(clock, DAY, None)
    for _ in range(100):
        clock.advance(3600.0)
        assert ageing.wall_ms() == clock.wall_ms()


def test_after_a_jump_it_catches_up_slowly_and_ages_no_batch_by_a_step() -> None:
    """Of batches completed each hour, none falls due before it is older than retention / (1 + CATCH_UP) by time that passed."""
    clock = JumpingClock()
    retention = 2 * DAY
    ageing = RetentionClock(clock, retention, None)
    before = ageing.wall_ms()
    clock.jump(4 * DAY)
    assert ageing.wall_ms() == before
    completed: list[tuple[float, int]] = []
    joined = False
    for _ in range(60 * 24):
        now_ms = ageing.wall_ms()
        due = [at for at, stamp in completed if now_ms - stamp > retention * 1000]
        assert all(clock.monotonic() - at >= retention / (1 + CATCH_UP) - AHEAD_MS_MAX / 1000 for at in due)
        completed = [one for one in completed if one[0] not in due]
        completed.append((clock.monotonic(), now_ms))
        joined = joined or now_ms == clock.wall_ms()
        clock.advance(3600.0)
    assert joined, "within 4 days / CATCH_UP and some"
    assert len(completed) <= 2 * 24 + 1


def test_a_small_step_ahead_is_trusted_and_so_is_any_step_back() -> None:
    clock = JumpingClock()
    ageing = RetentionClock(clock, DAY, None)
    for step in (AHEAD_MS_MAX / 1000, -AHEAD_MS_MAX / 1000, -1.0, -30 * DAY):
        clock.jump(step)
        assert ageing.wall_ms() == clock.wall_ms()


def test_a_clock_that_was_ahead_is_correct_as_soon_as_it_is_set_back() -> None:
    clock = JumpingClock()
    ageing = RetentionClock(clock, DAY, None)
    clock.jump(30 * DAY)
    ageing.wall_ms()
    clock.advance(100)
    clock.jump(-30 * DAY)
    assert ageing.wall_ms() == clock.wall_ms()
    clock.jump(30 * DAY)
    assert ageing.wall_ms() == clock.wall_ms() - 30 * DAY * 1000
    clock.advance(10)
    assert ageing.wall_ms() == clock.wall_ms() - 30 * DAY * 1000 + 10 * CATCH_UP * 1000


def test_a_barrier_stays_its_time_also_where_completed_batches_do_not() -> None:
    clock = JumpingClock()
    ageing = RetentionClock(clock, 0.0, None)
    made_ms = ageing.wall_ms()
    clock.jump(30 * DAY)
    for _ in range(int(24 / (1 + CATCH_UP))):
        assert ageing.wall_ms() < made_ms + BARRIER_KEPT_MS
        clock.advance(3600.0)


@pytest.mark.parametrize(
    ("pause_seconds", "believed"), [(0.0, True), (0.1 * DAY, True), (0.11 * DAY, False), (9 * DAY, False)]
)
def test_a_long_pause_before_the_start_is_not_trusted(pause_seconds: float, believed: bool) -> None:
    clock = ManualClock()
    newest_ms = clock.wall_ms()
    clock.advance(pause_seconds)
    ageing = RetentionClock(clock, DAY, newest_ms)
    assert ageing.wall_ms() == (clock.wall_ms() if believed else newest_ms)
    again = RetentionClock(clock, DAY, ageing.wall_ms())
    assert again.wall_ms() == ageing.wall_ms()


@pytest.mark.parametrize("retention", [0.0, 10.0])
def test_a_short_pause_is_trusted_however_short_the_retention_is(retention: float) -> None:
    clock = ManualClock()
    newest_ms = clock.wall_ms()
    clock.advance(AHEAD_MS_MAX / 1000)
    assert RetentionClock(clock, retention, newest_ms).wall_ms() == clock.wall_ms()


def test_a_driver_that_starts_with_a_wrong_clock_keeps_barriers_also_where_completed_batches_are_not_kept() -> None:
    """A barrier that goes early lets a block of a fenced writer land (INV-4, INV-8)."""
    clock = JumpingClock()
    made_ms = clock.wall_ms()
    clock.jump(30 * DAY)
    assert RetentionClock(clock, 0.0, made_ms).wall_ms() < made_ms + BARRIER_KEPT_MS


def test_the_newest_completion_is_of_batches_in_the_journal_or_in_the_history() -> None:
    t = Tracked(1)
    assert newest_completion_ms(t.state) is None
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 10)
    t.complete(t.batch())
    (batch,) = t.state.batches.values()
    assert newest_completion_ms(t.state) == batch.completed_ms
    t.state.released["r1-1-1"] = 10**12
    assert newest_completion_ms(t.state) == batch.completed_ms, "those in the history were completed before"
    del t.state.batches[batch.batch_id]
    assert newest_completion_ms(t.state) == 10**12


def test_the_newest_completion_is_the_last_one_though_the_clock_was_set_back_before_it() -> None:
    """A clock that started at the latest time would make the batch that was completed last an hour old (INV-8)."""
    t = Tracked(1)
    t.state.released |= {"r1-1-1": 3_600_000, "r1-1-2": 1_000, "r1-1-3": 1_000}
    assert newest_completion_ms(t.state) == 1_000


def test_a_completion_in_the_future_does_not_put_the_clock_ahead() -> None:
    clock = ManualClock()
    assert RetentionClock(clock, DAY, clock.wall_ms() + 10**9).wall_ms() == clock.wall_ms()


def segments(run: LongRun) -> int:
    return run.sizes()["WAL files"]


def test_a_jump_ahead_deletes_nothing_early_and_clean_up_continues_with_the_passing_time(tmp_path: Path) -> None:
    """One batch per second; retention keeps those of the last minute; clean-up runs every ten batches."""
    clock = JumpingClock()
    with LongRun(tmp_path, retention_seconds=60.0, clock=clock).opened() as run:
        run.run(150)  # beyond the first deletions
        usual = segments(run)
        clock.jump(30 * DAY)
        for _ in range(4):
            run.run(10)
            assert usual - 3 <= segments(run) <= usual + 2, (
                "a tenth fewer while it catches up, and no more: time passes"
            )
        clock.jump(-60 * DAY)
        run.run(10)
        assert segments(run) >= usual - 3
    clock.jump(60 * DAY)
    for _ in range(3):
        before = len(list(tmp_path.glob("wal/**/blocks/**/*.seg")))
        with LongRun(tmp_path, retention_seconds=60.0, clock=clock).opened() as run:
            run.run(10)
            assert segments(run) >= before - 2, "a driver that is started under the wrong clock"


def test_a_jump_back_deletes_nothing_early_and_delays_no_later_deletion(tmp_path: Path) -> None:
    clock = JumpingClock()
    with LongRun(tmp_path, retention_seconds=60.0, clock=clock).opened() as run:
        run.run(150)  # beyond the first deletions
        usual = segments(run)
        clock.jump(-30 * DAY)
        run.run(30)
        assert segments(run) >= usual
        clock.jump(30 * DAY)
        run.run(10)
        assert segments(run) >= usual
        run.run(100)
        assert usual <= segments(run) <= 2 * usual + 2, "those from before the jump, and as many as usual"
        clock.advance(30 * DAY / CATCH_UP)
        run.run(100)
        assert abs(segments(run) - usual) <= 2
