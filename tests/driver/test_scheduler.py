"""What the scheduler gives an engine to run."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from driver.batch import Batch, BatchWork
from driver.replay import RewindTo
from driver.scheduler import Scheduler
from driver.tracker import BeginReplay, Complete
from forebay.clock import SystemClock
from tests.support.tracked import Tracked


def test_a_batch_has_headers_if_one_of_its_blocks_has_whatever_the_settings_say_by_now() -> None:
    """INV-3: a rerun under changed settings can still be read."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 5)
    block = t.take_in(epoch, token, 9)
    batch = t.state.batches[t.batch()]
    nothing = cast(Any, None)
    scheduler = Scheduler(nothing, nothing, nothing, SystemClock(), 1.0, lambda: 1, 1, 1.0, headers=False)
    assert not scheduler._work(t.state, batch).headers
    t.state.blocks[block.id] = msgspec.structs.replace(block, meta=msgspec.structs.replace(block.meta, headers=True))
    assert scheduler._work(t.state, batch).headers


def scheduler_of(t: Tracked) -> Scheduler:
    nothing = cast(Any, None)
    return Scheduler(nothing, nothing, nothing, SystemClock(), 1.0, lambda: 1, 1, 1.0, headers=False)


def test_what_a_replay_has_yet_to_run_comes_before_batches_that_never_ran_and_is_marked() -> None:
    """INV-3: the same id, blocks and packing; another key."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 5)
    first = t.batch()
    t.complete(first)
    t.take_in(epoch, token, 9)
    second = t.batch()
    scheduler = scheduler_of(t)
    before = scheduler._first_unfinished(t.state)
    assert before is not None
    assert (before.batch_id, before.replay, before.rerun) == (second, 0, False)
    original = Batch(scheduler._work(t.state, t.state.batches[first]), cast(Any, None))
    t.say(BeginReplay(RewindTo(first), (), 0, "ann"))
    work = scheduler._first_unfinished(t.state)
    assert work is not None
    assert (work.batch_id, work.replay, work.rerun) == (first, 1, True)
    again = Batch(work, cast(Any, None))
    assert (again.id, again.time, again.ranges) == (original.id, original.time, original.ranges)
    assert (original.key, again.key) == (f"1-0-{first}", f"1-1-{first}")
    t.say(Complete(first, 7, 1, 1))
    assert scheduler._first_unfinished(t.state) == before


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
        def run(self, work: BatchWork, job: Any) -> dict[str, int]:
            runs.append((work.replay, work.batch_id))
            if len(runs) == 1:
                t.say(BeginReplay(RewindTo(first), (), 0, "ann"))
                raise RuntimeError("the first attempt fails")
            if len(runs) == 3:
                scheduler.stop()
            return {}

    scheduler = Scheduler(
        cast(Any, Loop()), cast(Any, Engine()), cast(Any, None), SystemClock(), 1.0, lambda: 1, 4, 0.0, headers=False
    )
    scheduler.run()
    assert runs == [(0, second), (0, second), (1, first)]
    assert not t.state.unfinished()
    assert t.state.replay is None
