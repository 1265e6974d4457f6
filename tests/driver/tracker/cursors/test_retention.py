"""Blocks that a cursor has yet to read stay; the others are deleted."""

from __future__ import annotations

import pytest

from driver.journal.events import CleanupIntended, IncarnationBegun, IncarnationStart
from driver.journal.state import BrokenInvariant
from driver.journal.transitions import apply
from driver.tracker.requests import CleanedUp, FoundPartitions
from forebay import messages as m
from forebay.model.errors import RefusedError
from tests.support.state.cursors import (
    blocks_answer,
    check_index,
    clean,
    due,
    finish,
    held,
    move,
    open_,
    path,
    place,
    span,
    worked,
)
from tests.support.state.tracked import TOPIC, offsets, tp


def test_what_a_cursor_has_yet_to_read_is_held_and_goes_when_it_has_moved_on() -> None:
    """INV-8."""
    t, epoch, _ = worked()
    assert due(t) == [1, 2, 3, 4]
    answer = open_(t, place(15))
    assert due(t) == [1]
    assert not t.decide(clean(t, epoch, 2)).events
    check_index(t)
    move(t, answer.epoch, place(20))
    assert due(t) == [1, 2]
    move(t, answer.epoch, place(39))
    assert due(t) == [1, 2, 3]
    check_index(t)
    move(t, answer.epoch, place(40))
    assert due(t) == [1, 2, 3, 4]
    assert t.decide(clean(t, epoch, 2)).events
    check_index(t)


def test_of_two_cursors_the_one_that_is_further_back_holds() -> None:
    """INV-8: whichever comes, goes back or ends."""
    t, _, _ = worked()
    ahead = open_(t, place(30), cursor="ahead")
    open_(t, place(10), cursor="behind")
    assert due(t) == [1]
    check_index(t)
    move(t, ahead.epoch, place(40), cursor="ahead")
    assert due(t) == [1]
    t.say(m.DropCursorRequest(cursor="behind", cause="its owner left"))
    assert due(t) == [1, 2, 3, 4]
    check_index(t)


def test_blocks_that_come_in_later_are_held_as_well() -> None:
    t, epoch, token = worked(2)
    open_(t, place(20))
    t.take_in(epoch, token, 30, path=path(epoch, 3))
    finish(t)
    assert due(t) == [1, 2]
    check_index(t)


def test_a_partition_that_comes_later_is_held_from_its_beginning_until_the_query_says_that_it_does_not_read_it() -> (
    None
):
    """INV-8: a query that is behind, or away, has not seen it yet."""
    t, epoch, _ = worked(1)
    answer = open_(t, place(10))
    t.say(FoundPartitions((IncarnationStart(TOPIC, 7, 5, "id-1"),), t.now_ms, "found"))
    token = t.claim(epoch, 7).view.token
    t.take_in(epoch, token, 15, partition=7, path=path(epoch, 9))
    finish(t)
    assert due(t) == [1]
    check_index(t)
    move(t, answer.epoch, left=(tp(7),))
    assert due(t) == [1, 9]
    check_index(t)


def test_a_partition_that_came_since_the_query_looked_is_held_from_its_beginning() -> None:
    """INV-8: it names it neither as read nor as left. A cursor that is taken over keeps what it had."""
    t, epoch, _ = worked(1)
    t.say(
        FoundPartitions(
            (IncarnationStart(TOPIC, 7, 5, "id-1"), IncarnationStart(TOPIC, 8, 0, "id-1")), t.now_ms, "found"
        )
    )
    open_(t, place(10), left=(tp(8),))
    assert t.state.cursors["q"].vector == {"t/0": (1, 10), "t/7": (1, 5)}
    token = t.claim(epoch, 7).view.token
    t.take_in(epoch, token, 15, partition=7, path=path(epoch, 9))
    finish(t)
    assert due(t) == [1]
    check_index(t)
    move(t, t.state.cursors["q"].epoch, place(15, partition=7))
    t.now_ms += 10_000
    open_(t, place(10), user="u2", left=(tp(8),))
    assert t.state.cursors["q"].vector == {"t/0": (1, 10), "t/7": (1, 15)}


def test_ended_incarnation_is_held_until_the_cursor_has_read_it() -> None:
    t, epoch, _ = worked(1)
    answer = open_(t, place(5))
    apply(t.state, IncarnationBegun(IncarnationStart(TOPIC, 0, 0, "id-2"), t.now_ms, "recreated"))
    token = t.claim(epoch).view.token
    made = t.block(epoch, [offsets(0, 10, token, incarnation=2)], path=path(epoch, 2))
    t.report(epoch, made)
    finish(t)
    assert due(t) == []
    move(t, answer.epoch, place(0, incarnation=2))
    assert due(t) == [1]
    move(t, answer.epoch, place(10, incarnation=2))
    assert due(t) == [1, 2]
    check_index(t)


def test_deleting_what_a_cursor_has_yet_to_read_is_a_broken_invariant() -> None:
    """INV-8."""
    t, epoch, _ = worked(1)
    open_(t, place(0))
    with pytest.raises(BrokenInvariant, match="a cursor has yet to read it"):
        apply(t.state, CleanupIntended(t.state.cleanup_count + 1, segments=(path(epoch, 1),)))


def test_a_cursor_that_begins_before_what_is_about_to_be_deleted_does_not_keep_it() -> None:
    """The intent is journalled, and the file may be gone already."""
    t, epoch, _ = worked(2)
    t.decide(clean(t, epoch, 1))
    open_(t, place(0))
    assert held(blocks_answer(t, span(0, 20))) == [(10, 20)]
    t.say(CleanedUp(t.state.cleanup_count))
    assert path(epoch, 1) not in t.state.index.segments
    check_index(t)


def test_without_a_wal_nothing_is_held_for_anybody() -> None:
    t, _, _ = worked(1)
    t.tracker.cursors._has_wal = False
    with pytest.raises(RefusedError, match="this stream has none"):
        open_(t, place(0))


def test_a_partition_that_was_left_is_held_again_from_where_the_query_says() -> None:
    """INV-8. And what it never had can't be left: nothing is journalled for that."""
    t, _, _ = worked(1, partitions=2)
    epoch = open_(t, place(0)).epoch
    move(t, epoch, left=(tp(1),))
    assert t.state.cursors["q"].vector == {"t/0": (1, 0)}
    events = len(t.events)
    move(t, epoch, left=(tp(1),))
    assert len(t.events) == events
    move(t, epoch, place(0, partition=1))
    assert t.state.cursors["q"].vector == {"t/0": (1, 0), "t/1": (1, 0)}
    check_index(t)
