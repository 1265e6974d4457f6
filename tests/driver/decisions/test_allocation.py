"""Waiting blocks are cut into bounded batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.decisions.allocation import BatchLimits, longest_prefix
from driver.journal.events import BatchAllocated
from driver.journal.state import BrokenInvariant
from driver.journal.transitions import apply
from driver.tracker.requests import Allocate
from tests.support.state.tracked import Tracked


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        (BatchLimits(), 4),
        (BatchLimits(max_records=30), 3),
        (BatchLimits(max_records=29), 2),
        (BatchLimits(max_bytes=200), 2),
        (BatchLimits(max_records=30, max_bytes=250), 2),
        (BatchLimits(max_records=1), 1),
        (BatchLimits(max_bytes=1), 1),
    ],
)
def test_a_batch_takes_the_longest_prefix_within_both_limits_and_at_least_one_block(
    limits: BatchLimits, count: int
) -> None:
    assert longest_prefix([(10, 100)] * 4, limits) == count


def test_no_blocks_make_no_batch() -> None:
    assert longest_prefix([], BatchLimits(max_records=1)) == 0


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 500)), max_size=30),
    st.integers(0, 200),
    st.integers(0, 2000),
)
def test_every_block_gets_into_one_batch_within_the_limits(
    blocks: list[tuple[int, int]], max_records: int, max_bytes: int
) -> None:
    limits = BatchLimits(max_records=max_records, max_bytes=max_bytes)
    left = blocks
    while left:
        count = longest_prefix(left, limits)
        assert count >= 1
        batch, left = left[:count], left[count:]
        for limit, column in ((max_records, 0), (max_bytes, 1)):
            assert not limit or count == 1 or sum(block[column] for block in batch) <= limit
            if left and not max_bytes:  # it was the longest one
                assert max_records and sum(block[0] for block in [*batch, left[0]]) > max_records


def test_blocks_after_an_outage_become_bounded_batches_in_order_up_to_what_may_be_queued() -> None:
    """INV-3: each block in one batch; a rerun of a batch is the same, whatever its time."""
    t = Tracked(max_queued_batches=3, max_batch_records=25)
    epoch = t.register()
    token = t.claim(epoch).view.token
    blocks = [t.take_in(epoch, token, until) for until in range(10, 110, 10)]
    first = t.say(Allocate(5_000, 1))
    batches = t.state.unfinished()
    assert [batch.batch_id for batch in batches] == [first, first + 1, first + 2]
    assert [batch.block_ids for batch in batches] == [[b.id for b in blocks[n : n + 2]] for n in (0, 2, 4)]
    assert list(t.state.waiting) == [b.id for b in blocks[6:]]
    assert t.say(Allocate(6_000, 1)) is None
    t.complete(batches[0].batch_id)
    assert t.say(Allocate(7_000, 1)) == first + 3
    assert len(t.state.unfinished()) == 3


def test_without_limits_all_that_waits_is_one_batch() -> None:
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    for until in range(10, 110, 10):
        t.take_in(epoch, token, until)
    t.batch()
    assert not t.state.waiting
    assert len(t.state.unfinished()) == 1


@pytest.mark.parametrize("tasks", [((0, 1), (1,)), ((0, 9),), ((0,), (0,))], ids=["twice", "unknown", "over tasks"])
def test_a_batch_of_a_block_that_does_not_wait_or_is_named_twice_is_a_broken_journal(
    tasks: tuple[tuple[int, ...], ...],
) -> None:
    """INV-3."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    blocks = {number: t.take_in(epoch, token, 10 * (number + 1)).id for number in range(3)}
    named = tuple(tuple(blocks.get(number, "no such block") for number in task) for task in tasks)
    with pytest.raises(BrokenInvariant, match="was not waiting"):
        apply(t.state, BatchAllocated(t.state.next_batch_id(), 1, 1, named))
    assert list(t.state.waiting) == list(blocks.values())
    assert not t.state.batch_of


def test_what_is_left_waiting_is_counted_and_so_is_what_each_batch_got() -> None:
    t = Tracked(max_queued_batches=2, max_batch_records=25)
    epoch = t.register()
    token = t.claim(epoch).view.token
    for until in (10, 20, 30, 35, 36):
        t.take_in(epoch, token, until)
    first = t.batch()
    assert t.state.index.records == {first: 20, first + 1: 16}
    assert t.state.index.waiting_records == 0
    t.take_in(epoch, token, 40)
    assert t.state.index.waiting_records == 4
