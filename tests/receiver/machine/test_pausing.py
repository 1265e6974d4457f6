"""A receiver whose driver, stores, disk or memory take nothing more pauses, and nothing is lost (rule 7)."""

from __future__ import annotations

from forebay.model.units import Duration, Size
from receiver import actions as act
from receiver import inputs as inp
from receiver.machine.limits.pausing import PAUSE_SECONDS
from tests.receiver.stage import P0, P1, Stage


def test_while_the_driver_is_out_of_reach_polling_is_paused_and_blocks_are_kept() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3))
    stage.seal_and_store()
    held = stage.machine.buffered_bytes
    for _ in range(4):
        stage.tell(inp.DriverFailed(stage.one(act.Report).request, "connection refused"))
        while not any(isinstance(action, act.Report) for action in stage.actions):
            stage.wait(0.5)
    assert [action.partitions for action in stage.all(act.Pause)] == [(P0,)]
    assert (stage.machine.state, stage.machine.buffered_bytes) == ("waiting", held)
    assert "connection refused" in stage.machine.detail
    stage.answer()
    assert stage.one(act.Resume).partitions == (P0,)
    assert stage.machine.state == "active"
    stage.none(act.Exit)


def test_full_memory_stops_polls_and_does_not_pause_at_first() -> None:
    """INV-6. A pause would make the client drop what it has fetched."""
    stage = Stage(memory=Size(4000))
    starts = stage.own(P0, P1)
    for first in range(0, 40, 10):
        stage.poll(starts[P0], range(first, first + 10), 100)
    assert stage.machine.buffered_bytes >= 4000
    assert stage.machine.poll_records_max(stage.now) == 0
    stage.wait(PAUSE_SECONDS - 0.1).store(stage.sealed()[0]).answer()
    assert stage.machine.buffered_bytes < 4000
    assert stage.machine.poll_records_max(stage.now) > 0
    stage.poll(starts[P0], range(40, 60), 100)
    assert stage.machine.buffered_bytes >= 4000
    stage.wait(PAUSE_SECONDS - 0.1)  # counted anew
    stage.none(act.Pause)


def test_memory_that_stays_full_pauses_all_partitions_until_half_of_it_is_free() -> None:
    """INV-6. Polling goes on, because the group removes a member that does not poll."""
    stage = Stage(memory=Size(4000))
    starts = stage.own(P0, P1)
    for first in range(0, 40, 10):
        stage.poll(starts[P0], range(first, first + 10), 100)
    stage.wait(PAUSE_SECONDS)
    assert set(stage.one(act.Pause).partitions) == {P0, P1}
    assert stage.machine.poll_records_max(stage.now) == 1
    assert stage.machine.detail == "memory is full, polling is paused"
    pending_blocks = stage.sealed()
    stage.store(pending_blocks[0]).answer()
    stage.none(act.Resume)
    stage.store(*pending_blocks[1:]).answer()  # the second block, whose report left before the others were stored
    stage.none(act.Resume)
    stage.answer()
    assert set(stage.one(act.Resume).partitions) == {P0, P1}


def test_lack_of_space_is_waited_out_and_failed_store_ends_the_process() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3)).wait(1.0)
    (pending,) = stage.sealed()
    stage.tell(inp.OutOfSpace("0 bytes are free"))
    assert (stage.machine.state, stage.one(act.Pause).partitions) == ("waiting", (P0,))
    assert "0 bytes are free" in stage.machine.detail
    stage.none(act.Exit)
    stage.store(pending)
    assert (stage.machine.state, stage.one(act.Resume).partitions) == ("active", (P0,))
    stage.tell(inp.StoreFailed("the WAL failed for 30 s"))
    ended = stage.one(act.Exit)
    assert (ended.code, ended.reason) == (1, "the WAL failed for 30 s")


def test_receiver_pauses_and_shows_the_reason_while_store_is_away() -> None:
    """Rule 7, INV-6."""
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3)).wait(1.0)
    (pending,) = stage.sealed()
    stage.tell(inp.StoreAway("HTTP 503, SlowDown"))
    assert (stage.machine.state, stage.one(act.Pause).partitions) == ("waiting", (P0,))
    assert "HTTP 503, SlowDown" in stage.machine.detail
    stage.tell(inp.StoreAway("no answer within 10 s"))
    assert "no answer within 10 s" in stage.machine.detail
    stage.none(act.Exit)
    stage.store(pending)
    assert (stage.machine.state, stage.machine.detail) == ("active", "")
    assert stage.one(act.Resume).partitions == (P0,)


def test_stores_that_hang_end_the_process_and_stores_without_space_do_not() -> None:
    """INV-6: the wait for a store that reports nothing has a limit."""
    stage = Stage(store_timeout=Duration(3.0))
    start = stage.own(P0)[P0]
    stage.poll(start, range(3)).wait(1.0)
    stage.wait(5.0)
    for _ in range(20):  # a store that lacks space says so again and again
        stage.tell(inp.OutOfSpace("0 bytes are free")).wait(5.0)
    stage.none(act.Exit)
    (pending,) = stage.sealed()
    stage.store(pending)
    stage.poll(start, range(3, 6)).wait(1.0)
    stage.wait(5.9)
    stage.none(act.Exit)
    stage.wait(0.2)
    ended = stage.one(act.Exit)
    assert ended.code == 1
    assert "hangs: no result" in ended.reason


def test_store_that_hangs_after_a_lack_of_space_ends_the_process() -> None:
    """INV-6: space came back, or the mount died, and the next write gives no result."""
    stage = Stage(store_timeout=Duration(3.0))
    start = stage.own(P0)[P0]
    stage.poll(start, range(3)).wait(1.0)
    stage.tell(inp.OutOfSpace("0 bytes are free")).wait(29.9)
    stage.none(act.Exit)
    stage.wait(0.2)
    assert "hangs: no result" in stage.one(act.Exit).reason


def test_omitted_local_copy_is_counted() -> None:
    from tests.receiver.stage import stored

    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3)).wait(1.0)
    (pending,) = stage.sealed()
    stage.tell(inp.BlockStored(pending.sequence, stored(pending, local=False)))
    assert stage.machine.counters["local_copies_given_up"] == 1
    stage.answer()
