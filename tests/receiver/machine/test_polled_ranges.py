"""Which polled records a receiver takes, the gaps between them, and the blocks that it cuts of them (rule 3)."""

from __future__ import annotations

from forebay.model.columns import EndOfPartition
from forebay.model.values import Gap
from receiver import actions as act
from receiver import inputs as inp
from tests.receiver.stage import P0, Stage, bounds, offsets_of, view


def test_records_polled_under_older_generation_are_dropped() -> None:
    stage = Stage()
    old = stage.own(P0)[P0]
    stage.tell(inp.Revoked((P0,)))
    stage.tell(inp.Assigned((P0,)))
    (new,) = stage.claim({P0: view(P0)})
    assert new.generation > old.generation
    stage.poll(old, range(5)).poll(new, range(2)).wait(1.0)
    (pending,) = stage.sealed()
    assert offsets_of(pending, P0) == [0, 1]
    assert stage.machine.counters["stale_polls_dropped"] == 1


def test_columns_that_begin_below_the_position_are_trimmed_and_repeated_ones_dropped() -> None:
    """INV-2: a source may begin earlier, within a batch of the broker."""
    stage = Stage()
    start = stage.own(P0, position=10)[P0]
    stage.poll(start, range(7, 13)).poll(start, range(8, 12)).poll(start, range(11, 15)).wait(1.0)
    (pending,) = stage.sealed()
    assert offsets_of(pending, P0) == [10, 11, 12, 13, 14]
    assert bounds(pending, P0) == (10, 15)


def test_gap_inside_a_range_is_part_of_it() -> None:
    """Offsets of compacted records and markers are inside ranges."""
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, [0, 1, 5, 9]).poll(start, [20, 21]).wait(1.0)
    (pending,) = stage.sealed()
    assert bounds(pending, P0) == (0, 22)
    stage.none(act.Inspect)


def test_gap_at_start_is_confirmed_by_second_read_from_same_position() -> None:
    """Rule 3: a record fetched for an older assignment would look like compaction."""
    stage = Stage()
    start = stage.own(P0, position=5)[P0]
    stage.poll(start, [8, 9])
    inspect = stage.one(act.Inspect)
    stage.poll(start, [10]).wait(1.0)
    assert stage.sealed() == []
    stage.tell(inp.Inspected(inspect.request, 0, 10, ""))
    (again,) = stage.one(act.StartPartitions).starts
    assert (again.offset, again.generation > start.generation) == (5, True)
    stage.poll(again, [8, 9]).wait(1.0)
    (pending,) = stage.sealed()
    assert bounds(pending, P0) == (5, 10)


def test_gap_that_second_read_does_not_show_is_ignored() -> None:
    stage = Stage()
    start = stage.own(P0, position=5)[P0]
    stage.poll(start, [8, 9])
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 0, 10, ""))
    (again,) = stage.one(act.StartPartitions).starts
    stage.poll(again, [5, 6, 8, 9]).wait(1.0)
    (pending,) = stage.sealed()
    assert offsets_of(pending, P0) == [5, 6, 8, 9]


def test_gap_at_start_where_log_begins_later_is_a_loss() -> None:
    """INV-5: records deleted by retention are never taken for compacted ones."""
    stage = Stage()
    start = stage.own(P0, position=5)[P0]
    stage.poll(start, [8, 9])
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 8, 10, ""))
    fault = stage.one(act.SendFault).message
    assert (fault.kind, fault.position, fault.low, fault.high) == ("out-of-range", 5, 8, 10)
    stage.none(act.StartPartitions)


def test_the_end_of_a_partition_moves_the_position_past_markers() -> None:
    """The range may hold no record. Without it the lag would never reach 0."""
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, [0, 1]).wait(1.0)
    stage.store(*stage.sealed())
    stage.answer()
    stage.tell(inp.Polled([EndOfPartition(P0, start.generation, 3)])).wait(1.0)
    (pending,) = stage.sealed()
    assert bounds(pending, P0) == (2, 3)
    assert pending.ranges[0].pieces == ()
    stage.tell(inp.Polled([EndOfPartition(P0, start.generation - 1, 9)])).wait(1.0)
    assert stage.sealed() == []


def test_empty_intervals_make_no_block() -> None:
    stage = Stage()
    stage.own(P0)
    for _ in range(5):
        stage.wait(1.0)
    assert stage.sealed() == []


def test_a_block_is_cut_at_its_size_and_a_larger_record_is_a_block_of_its_own() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(5), 100).poll(start, range(5, 9), 100).poll(start, range(9, 12), 100)
    stage.poll(start, [12], 5000).poll(start, [13], 100).wait(1.0)
    pending_blocks = stage.sealed()
    assert [bounds(pending, P0) for pending in pending_blocks] == [(0, 9), (9, 12), (12, 13), (13, 14)]
    assert [pending.sequence for pending in pending_blocks] == [1, 2, 3, 4]


def test_the_gap_before_a_position_is_named_by_the_first_range_after_it_only() -> None:
    stage = Stage()
    gap = Gap(3, 10, "aged out")
    start = stage.own(P0, position=10, preceding_gap=gap)[P0]
    stage.poll(start, [10, 11]).wait(1.0)
    stage.poll(start, [12]).wait(1.0)
    first, second = stage.sealed()
    assert first.ranges[0].preceding_gap == gap
    assert second.ranges[0].preceding_gap is None
