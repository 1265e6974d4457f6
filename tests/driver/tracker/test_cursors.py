"""Cursors: the WAL holds what a query has yet to read, one user reads at a time, and a forgotten cursor expires."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest

from driver.decisions import intake
from driver.decisions.clean_up import CleanSegment
from driver.journal.block_index import IncarnationBlocks
from driver.journal.events import (
    CleanupIntended,
    CursorEnded,
    CursorMoved,
    CursorOpened,
    GapRecorded,
    IncarnationBegun,
    IncarnationStart,
)
from driver.journal.state import BrokenInvariant, State
from driver.journal.transitions import apply
from driver.journal.transitions import cursors as cursor_events
from driver.tracker import cursors
from driver.tracker.options import CursorRules
from driver.tracker.requests import CleanedUp, ExpireCursors, FoundPartitions
from forebay import messages as m
from forebay.model.errors import FencedError, RefusedError, UsageError
from forebay.model.values import Gap, TopicPartition
from tests.support.shown import shown
from tests.support.tracked import STREAM, TOPIC, Tracked, offsets, tp, tracker_options
from wal.decisions.retention import FrameFacts, Limits, SegmentFacts

RULES = CursorRules(in_use_seconds=10, timeout_seconds=3_600)


def path(epoch: int, number: int) -> str:
    return f"{STREAM}/blocks/r1/{epoch:016x}/{number:08d}.seg"


def worked(segments: int = 4, partitions: int = 1) -> tuple[Tracked, int, int]:
    """``segments`` archived batches of ten offsets of partition 0 each, a segment for each; nothing else holds them."""
    t = Tracked(partitions=partitions)
    t.tracker.cursors.rules = RULES
    epoch = t.register()
    token = t.claim(epoch).view.token
    for number in range(1, segments + 1):
        t.now_ms += 1_000
        t.take_in(epoch, token, number * 10, path=path(epoch, number))
        finish(t)
    t.copy()
    return t, epoch, token


def finish(t: Tracked) -> None:
    """What waits is a batch, is completed, and goes to the history."""
    batch = t.batch()
    t.complete(batch)
    t.archive(batch)


def place(offset: int, incarnation: int = 1, partition: int = 0) -> m.CursorPlace:
    return m.CursorPlace(topic=TOPIC, partition=partition, incarnation=incarnation, offset=offset)


def open_(t: Tracked, *places: m.CursorPlace, cursor: str = "q", user: str = "u1", **more: Any) -> m.OpenCursorAnswer:
    request = m.OpenCursorRequest(cursor=cursor, user=user, places=places, **more)
    return t.say(request)  # type: ignore[no-any-return]


def move(t: Tracked, epoch: int, *places: m.CursorPlace, cursor: str = "q", **more: Any) -> None:
    t.say(m.MoveCursorRequest(cursor=cursor, epoch=epoch, places=places, **more))


def due(t: Tracked) -> list[int]:
    """Numbers of the segments that retention would take now."""
    return [int(s.path[-12:-4]) for s, _ in t.state.index.due(Limits(0), t.now_ms)]


def clean(t: Tracked, epoch: int, number: int) -> CleanSegment:
    share = t.state.index.segments[path(epoch, number)]
    frames = tuple(FrameFacts(name, t.state.blocks[name].meta.ranges) for name in share.blocks)
    return CleanSegment(SegmentFacts(path(epoch, number), True, False, frames), "r1", epoch, t.now_ms)


def check_index(t: Tracked) -> None:
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(t.state), type=State)
    assert t.state.index == t.state.build_index() == decoded.index
    assert t.state.index.by_offset(t.state.blocks) == decoded.index.by_offset(decoded.blocks)


# ---- retention -------------------------------------------------------------------------------------------------------


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
    assert held(told(t, span(0, 20))) == [(10, 20)]
    t.say(CleanedUp(t.state.cleanup_count))
    assert path(epoch, 1) not in t.state.index.segments
    check_index(t)


# ---- who reads -------------------------------------------------------------------------------------------------------


def test_second_user_is_refused_while_the_first_sends_heartbeats_and_fences_it_later() -> None:
    """INV-4."""
    t, _, _ = worked()
    first = open_(t, place(0))
    t.now_ms += 9_000
    with pytest.raises(
        RefusedError, match="in use by u1, whose last heartbeat was 9 s ago: two queries can't use one cursor"
    ):
        open_(t, place(0), user="u2")
    move(t, first.epoch)  # it is there still
    t.now_ms += 9_000
    with pytest.raises(RefusedError, match="in use by u1"):
        open_(t, place(0), user="u2")
    t.now_ms += 1_000
    second = open_(t, place(0), user="u2")
    with pytest.raises(FencedError, match="opened by u2 since"):
        move(t, first.epoch, place(40))
    assert t.state.cursors["q"].vector == {"t/0": (1, 0)}
    move(t, second.epoch, place(10))


@pytest.mark.parametrize("key", ["", "another"])
def test_client_that_guesses_a_cursors_epoch_or_user_does_not_have_its_key(key: str) -> None:
    """INV-4. The journal and `status` have neither."""
    t, _, _ = worked()
    answer = open_(t, place(0), key="random")
    assert "random" not in str(t.state.cursors) + str(t.events[-1]) + str(shown_cursors(t))
    with pytest.raises(FencedError, match="was opened by u1 since; this query can no longer use it"):
        move(t, answer.epoch, place(40), key=key)
    with pytest.raises(FencedError):
        t.say(m.CloseCursorRequest(cursor="q", epoch=answer.epoch, forget=True, key=key))
    with pytest.raises(RefusedError, match="in use by u1"):
        open_(t, place(40), key=key)
    assert t.state.cursors["q"].vector == {"t/0": (1, 0)}
    assert open_(t, place(0), key="random").epoch == answer.epoch
    move(t, answer.epoch, place(10), key="random")
    t.state.cursors = msgspec.msgpack.decode(msgspec.msgpack.encode(t.state), type=State).cursors
    move(t, answer.epoch, place(20), key="random")
    with pytest.raises(UsageError, match="a cursor's key may have at most 200 characters"):
        open_(t, place(0), cursor="b", key="k" * 201)


def test_a_user_that_ended_in_order_is_not_waited_for() -> None:
    t, _, _ = worked()
    first = open_(t, place(0))
    t.say(m.CloseCursorRequest(cursor="q", epoch=first.epoch))
    open_(t, place(0))  # it is back
    with pytest.raises(RefusedError, match="in use by u1"):
        open_(t, place(0), user="u2")
    t.say(m.CloseCursorRequest(cursor="q", epoch=first.epoch))
    assert open_(t, place(0), user="u2").epoch > first.epoch


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


def test_how_far_a_cursor_is_behind_counts_in_the_newest_life() -> None:
    t, epoch, _ = worked(1)
    open_(t, place(8))
    apply(t.state, IncarnationBegun(IncarnationStart(TOPIC, 0, 0, "id-2"), t.now_ms, "recreated"))
    token = t.claim(epoch).view.token
    (result,) = t.report(epoch, t.block(epoch, [offsets(0, 10, token, incarnation=2)], path=path(epoch, 2)))
    assert result.accepted
    (shown,) = cursors.tracked(t.state, t.tracker.cursors, 0.0, t.now_ms)
    assert shown.behind == 10


def test_new_driver_assumes_that_every_cursor_is_in_use() -> None:
    t, _, _ = worked()
    open_(t, place(0))
    again = Tracked.__new__(Tracked)
    again.state, again.events, again.now_ms = t.state, [], t.now_ms
    again.tracker = type(t.tracker)(t.state, t.tracker.driver_epoch + 1, tracker_options(cursor_rules=RULES))
    with pytest.raises(RefusedError, match="in use by u1"):
        open_(again, place(0), user="u2")
    again.now_ms += 10_000
    open_(again, place(0), user="u2")


def test_the_same_user_gets_the_same_epoch_again_and_nothing_is_journalled() -> None:
    """The answer to the first request may have been lost."""
    t, _, _ = worked()
    first = open_(t, place(10))
    events = len(t.events)
    made_ms = t.now_ms
    t.now_ms += 500
    assert open_(t, place(10)).epoch == first.epoch
    assert len(t.events) == events
    t.now_ms += 10_000
    open_(t, place(10), user="u2")
    assert [(one.opened_ms, one.silent_seconds) for one in shown_cursors(t)] == [
        (made_ms, 0)
    ]  # the cursor's, not its user's


def test_a_cursor_never_goes_back_but_by_being_opened_again() -> None:
    """INV-8. A restored checkpoint reads from its own position."""
    t, _, _ = worked()
    first = open_(t, place(10))
    move(t, first.epoch, place(30))
    move(t, first.epoch, place(20))
    assert t.state.cursors["q"].vector == {"t/0": (1, 30)}
    with pytest.raises(BrokenInvariant, match="went back"):
        apply(t.state, CursorMoved("q", {"t/0": (1, 20)}))
    t.now_ms += 10_000
    open_(t, place(20), user="u2")
    assert t.state.cursors["q"].vector == {"t/0": (1, 20)}
    assert due(t) == [1, 2]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (m.OpenCursorRequest(cursor="../q", user="u", places=()), "cursor '../q': allowed are"),
        (m.OpenCursorRequest(cursor="q", user="", places=()), "the name of a cursor's user must have"),
        (m.OpenCursorRequest(cursor="q", user="u\n", places=()), "the name of a cursor's user must have"),
        (m.OpenCursorRequest(cursor="q", user="u" * 201, places=()), "must have 1 to 200 printable characters"),
        (m.OpenCursorRequest(cursor="q", user="u", places=(place(0, partition=9),)), "no partition t/9"),
        (m.OpenCursorRequest(cursor="q", user="u", places=(place(0, incarnation=0),)), "no offset 0 in incarnation 0"),
        (m.OpenCursorRequest(cursor="q", user="u", places=(place(1 << 63),)), f"no offset {1 << 63} in incarnation 1"),
        (m.OpenCursorRequest(cursor="q", user="u", places=(place(0, incarnation=2),)), "no offset 0 in incarnation 2"),
        (m.OpenCursorRequest(cursor="q", user="u", places=(place(-1),)), "no offset -1"),
        (m.EarliestRequest(partitions=(tp(9),)), "no partition t/9"),
        (
            m.BlocksRequest(
                spans=(m.IncarnationSpan(topic="x", partition=0, incarnation=1, from_offset=0, until_offset=1),)
            ),
            "no partition x/0",
        ),
    ],
)
def test_what_can_not_be_is_refused_in_a_sentence(request_: Any, words: str) -> None:
    t, _, _ = worked(1)
    with pytest.raises(UsageError, match=words):
        t.say(request_)


def test_there_is_a_limit_to_the_cursors_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6."""
    monkeypatch.setattr(cursors, "CURSORS_MAX", 2)
    monkeypatch.setattr(cursors, "PLACES_MAX", 1)
    t, _, _ = worked(1, partitions=2)
    with pytest.raises(UsageError, match="a cursor has at most 1 partitions"):
        open_(t, place(0), place(0, partition=1))
    open_(t, cursor="a")
    open_(t, cursor="b")
    with pytest.raises(RefusedError, match="forebay cursors drop"):
        open_(t, cursor="c")


# ---- the end of one --------------------------------------------------------------------------------------------------


def test_a_forgotten_cursor_expires_in_words_and_holds_nothing_any_more() -> None:
    """INV-5: in the status, in the log, and in the error of its user."""
    t, _, _ = worked()
    answer = open_(t, place(0))
    t.now_ms += 3_600_000
    assert t.say(ExpireCursors()) == ()
    t.now_ms += 1
    (words,) = t.say(ExpireCursors())
    assert "cursor q expired: no heartbeat of u1 for 1.0 h (driver.cursor_timeout)" in words
    assert due(t) == [1, 2, 3, 4]
    (shown,) = shown_cursors(t)
    assert (shown.state, shown.behind) == ("expired", 40) and "no longer held" in shown.detail
    with pytest.raises(RefusedError, match="cursor q does not exist: expired"):
        move(t, answer.epoch, place(10))
    t.say(m.DropCursorRequest(cursor="q", cause="ann"))
    assert [one.state for one in shown_cursors(t)] == ["dropped"]  # a person has seen to it
    with pytest.raises(RefusedError, match="no cursor is named q"):
        t.say(m.DropCursorRequest(cursor="q"))
    assert "expired" in open_(t, place(10), user="u2").ended
    assert [one.state for one in shown_cursors(t)] == ["at work"]
    check_index(t)


def test_user_that_sends_or_may_have_sent_heartbeats_keeps_its_cursor() -> None:
    t, _, _ = worked()
    answer = open_(t, place(0))
    for _ in range(4):
        t.now_ms += 1_000_000
        move(t, answer.epoch)
        assert t.say(ExpireCursors()) == ()
    assert [type(event) for event in t.events].count(CursorMoved) == 4  # an idle one is journalled now and then
    again = type(t.tracker)(t.state, t.tracker.driver_epoch + 1, tracker_options(cursor_rules=RULES))
    now_ms = t.now_ms + 8_000_000  # no driver led meanwhile
    assert again.decide(ExpireCursors(), 100.0, now_ms).answer == ()
    assert again.decide(ExpireCursors(), 100.0 + 3_600, now_ms + 3_600_000).answer == ()
    expired: Any = again.decide(ExpireCursors(), 100.1 + 3_600, now_ms + 3_600_100).answer
    assert len(expired) == 1


@pytest.mark.parametrize("jump_ms", [365 * 86_400_000, -365 * 86_400_000])
def test_a_wall_clock_that_is_set_expires_no_cursor_and_keeps_none(jump_ms: int) -> None:
    t, _, _ = worked()
    open_(t, place(0))
    heard_ms, now = t.now_ms, t.now_ms / 1000
    assert t.tracker.decide(ExpireCursors(), now, heard_ms + jump_ms).answer == ()
    assert t.tracker.decide(ExpireCursors(), now + 3_600, heard_ms + jump_ms).answer == ()
    expired: Any = t.tracker.decide(ExpireCursors(), now + 3_601, heard_ms + jump_ms).answer
    assert len(expired) == 1


def test_a_person_drops_a_cursor_by_name() -> None:
    t, _, _ = worked()
    answer = open_(t, place(0))
    assert (
        t.say(m.DropCursorRequest(cursor="q", cause="ann: job removed")).message
        == "cursor q dropped by ann: job removed"
    )
    assert [one.state for one in shown_cursors(t)] == ["dropped"]
    with pytest.raises(RefusedError, match="does not exist: dropped by ann"):
        move(t, answer.epoch, place(10))
    assert not t.tracker.cursors.heartbeats.times  # INV-6: names come and go
    with pytest.raises(RefusedError, match="no cursor is named q"):
        t.say(m.DropCursorRequest(cursor="q"))


def test_an_expired_cursor_is_shown_until_a_person_has_seen_it_however_many_others_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-5; INV-6: but not without a limit."""
    monkeypatch.setattr(cursor_events, "ENDED_CURSORS_KEPT", 2)
    t, _, _ = worked()
    open_(t, place(0))
    t.now_ms += 3_600_001
    t.say(ExpireCursors())
    for name in ("a", "b", "c"):
        open_(t, place(0), cursor=name)
        t.say(m.DropCursorRequest(cursor=name))
    assert [(one.name, one.expired) for one in t.state.ended_cursors] == [("q", True), ("c", False)]


def test_a_query_that_could_not_begin_leaves_no_cursor() -> None:
    """INV-6: started again and again, it would fill the disk."""
    t, _, _ = worked()
    answer = open_(t, place(0))
    with pytest.raises(FencedError):
        t.say(m.CloseCursorRequest(cursor="q", epoch=answer.epoch - 1, forget=True))
    assert due(t) == []
    t.say(m.CloseCursorRequest(cursor="q", epoch=answer.epoch, forget=True))
    assert due(t) == [1, 2, 3, 4]
    with pytest.raises(RefusedError, match="dropped by u1, whose query could not start"):
        move(t, answer.epoch, place(10))
    check_index(t)


def shown_cursors(t: Tracked) -> tuple[m.TrackedCursor, ...]:
    return shown(t.tracker, t.now_ms / 1000, now_ms=t.now_ms).cursors


def test_cursors_epoch_is_the_next_one_of_the_timeline() -> None:
    """INV-4."""
    t, _, _ = worked(1)
    with pytest.raises(BrokenInvariant, match="not the next one"):
        apply(t.state, CursorOpened("q", t.state.epochs, "u", {}, 1))
    with pytest.raises(BrokenInvariant):
        apply(t.state, CursorEnded("q", 1, "no such"))


# ---- answers to a query ----------------------------------------------------------------------------------------------


def span(begin: int, end: int, partition: int = 0, incarnation: int = 1) -> m.IncarnationSpan:
    return m.IncarnationSpan(
        topic=TOPIC, partition=partition, incarnation=incarnation, from_offset=begin, until_offset=end
    )


def told(t: Tracked, *spans: m.IncarnationSpan) -> m.BlocksAnswer:
    return t.say(m.BlocksRequest(spans=spans))  # type: ignore[no-any-return]


def held(answer: m.BlocksAnswer) -> list[tuple[int, int]]:
    return [(r.from_offset, r.until_offset) for block in answer.blocks for r in block.meta.ranges]


def test_the_blocks_of_offsets_are_those_that_hold_any_of_them() -> None:
    t, _, _ = worked()
    assert held(told(t, span(0, 40))) == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert held(told(t, span(9, 11))) == [(0, 10), (10, 20)]
    assert held(told(t, span(10, 20))) == [(10, 20)]
    assert held(told(t, span(10, 10))) == []
    assert held(told(t, span(0, 40, incarnation=2))) == []


def test_hosts_that_were_given_a_copy_come_with_the_blocks() -> None:
    t, _, _ = worked()
    first, second = (block.id for block in told(t, span(0, 20)).blocks)
    for host, copies in (("h2", (first, second)), ("h3", (first, "other"))):
        t.say(
            m.AgentHeartbeatRequest(
                host=host, url=f"http://{host}:1", instance_id="i", acknowledged=0, blocks=2, used_bytes=0,
                free_bytes=0, copies=copies,
            )
        )  # fmt: skip
    assert told(t, span(0, 20)).copies == {first: ("h2", "h3"), second: ("h2",)}


def test_what_is_about_to_be_deleted_is_not_named() -> None:
    t, epoch, _ = worked()
    t.decide(clean(t, epoch, 2))
    assert held(told(t, span(0, 40))) == [(0, 10), (20, 30), (30, 40)]
    assert earliest(t) == (1, 20)


def test_gaps_come_with_the_blocks() -> None:
    t, epoch, _ = worked(1)
    apply(t.state, GapRecorded(TOPIC, 0, Gap(10, 25, "aged out"), t.now_ms))
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 30, path=path(epoch, 2))
    answer = told(t, span(0, 30))
    assert [(g.from_offset, g.until_offset, g.cause) for g in answer.gaps] == [(10, 25, "aged out")]
    assert held(answer) == [(0, 10), (25, 30)]
    assert told(t, span(25, 30)).gaps == ()
    assert earliest(t) == (1, 0)
    apply(t.state, IncarnationBegun(IncarnationStart(TOPIC, 0, 0, "id-2"), t.now_ms, "recreated"))
    assert told(t, span(0, 30, incarnation=2)).gaps == ()


def earliest(t: Tracked) -> tuple[int, int]:
    (found,) = t.say(m.EarliestRequest(partitions=(tp(0),))).places
    return found.incarnation, found.offset


def test_the_earliest_place_is_that_from_which_on_nothing_is_missing() -> None:
    t, epoch, _ = worked()
    assert earliest(t) == (1, 0)
    for number in (1, 3):
        t.decide(clean(t, epoch, number))
        t.say(CleanedUp(t.state.cleanup_count))
    assert earliest(t) == (1, 30)
    apply(t.state, IncarnationBegun(IncarnationStart(TOPIC, 0, 7, "id-2"), t.now_ms, "recreated"))
    assert earliest(t) == (1, 30)
    t.decide(clean(t, epoch, 4))
    assert earliest(t) == (2, 7)


def test_the_earliest_place_is_found_without_going_over_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: it is asked of the thread that decides. Blocks come in any order and go in any; so do gaps."""
    chance = random.Random(7)
    for _ in range(200):
        cuts = sorted(chance.sample(range(1, 60), 12))
        held = IncarnationBlocks()
        left: set[tuple[int, int]] = set()
        for piece in chance.sample(list(itertools.pairwise(cuts)), 11):
            held.add(offsets(*piece, 1), f"b{piece[0]}")
            left.add(piece)
            for gone in chance.sample(sorted(left), chance.randrange(2)):
                held.remove(gone[0])
                left.remove(gone)
            for _, until in left:
                reached = until
                while found := [begin for begin, end in left if end == reached]:
                    (reached,) = found
                assert held.reaches_back(until) == reached
            assert held.reaches_back(60) == 60
    t, _, _ = worked(8)
    t.state.index.by_offset(t.state.blocks)
    monkeypatch.setattr(t.state, "blocks", {})
    assert earliest(t) == (1, 0)


def test_a_loss_that_was_accepted_comes_with_its_block_and_goes_with_it() -> None:
    """INV-5: a later reader learns who decided."""
    t, epoch, token = worked(1)
    t.take_in(epoch, token, 20, path=path(epoch, 2))
    batch = t.batch()
    t.say(m.AcceptLossRequest(batch_id=batch, ranges=("t/0[10, 20)",), cause="ann: disk gone"))
    assert told(t, span(0, 20)).lost == {"t/0[10, 20)": "ann: disk gone"}
    assert told(t, span(0, 10)).lost == {}
    t.complete(batch)
    t.archive(batch)
    t.copy()
    assert told(t, span(0, 20)).lost == {"t/0[10, 20)": "ann: disk gone"}
    t.decide(clean(t, epoch, 2))
    t.say(CleanedUp(t.state.cleanup_count))
    assert t.state.lost == {}


def test_a_time_is_in_the_first_block_whose_records_are_not_all_older(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times need not rise. A range that does not say is looked into, one without records or that is going is not."""
    t = Tracked(partitions=1)
    epoch = t.register()
    token = t.claim(epoch).view.token
    made = []
    for number, newest in enumerate((50, 30, 90, None, 70, -1)):
        r = offsets(number * 10, number * 10 + 10, token, records=0 if newest is None else 10)
        r = msgspec.structs.replace(r, max_timestamp_ms=-1 if newest is None else newest)
        made.append(t.block(epoch, [r], path=path(epoch, number)))
        (result,) = t.report(epoch, made[-1])
        assert result.accepted

    def first(time_ms: int, begin: int = 0, until: int = 60) -> tuple[str | None, int]:
        wanted = m.TimedSpan(span=span(begin, until), time_ms=time_ms)
        (found,) = t.say(m.TimesRequest(wanted=(wanted,))).found
        return found.block and found.block.id, found.reached

    assert first(0) == first(50) == (made[0].id, 0)
    assert first(20, begin=5) == (made[0].id, 5)
    assert first(51) == first(90) == (made[2].id, 20)
    assert first(60, begin=30) == (made[4].id, 40)
    assert first(91) == first(80, begin=30) == (made[5].id, 50)
    assert first(91, until=50) == (None, 50)
    t.state.lost["t/0[0, 10)"] = "ann: disk gone"
    assert first(0) == (made[1].id, 10)
    t.state.cleaning_segments[path(epoch, 1)] = True
    assert first(0) == (made[2].id, 20)
    monkeypatch.setattr(intake, "RANGES_AT_ONCE", 2)
    assert first(90) == (made[2].id, 20)
    assert first(91) == (None, 20)
    assert first(91, begin=20) == (None, 40)
    elsewhere = m.IncarnationSpan(topic="x", partition=0, incarnation=1, from_offset=0, until_offset=1)
    with pytest.raises(UsageError, match="no partition x/0"):
        t.say(m.TimesRequest(wanted=(m.TimedSpan(span=elsewhere, time_ms=0),)))


@pytest.mark.parametrize(
    ("bound", "most", "blocks"), [("BLOCKS_AT_ONCE", 3, 3), ("RANGES_AT_ONCE", 4, 3), ("RANGES_AT_ONCE", 1, 1)]
)
def test_answers_are_bounded_and_further_requests_return_the_rest(
    bound: str, most: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6. Blocks of two partitions, with one of them further back; an answer has at least one block."""
    monkeypatch.setattr(intake, bound, most)
    t = Tracked(partitions=2)
    epoch = t.register()
    tokens = [t.claim(epoch, number).view.token for number in range(2)]
    made = []
    for number in range(8):
        t.now_ms += 1
        begin = number * 10
        ranges = [offsets(begin, begin + 10, tokens[0])]
        if number % 2:
            ranges.append(offsets(begin // 2 - 5, begin // 2 + 5, tokens[1], partition=1))
        block = t.block(epoch, ranges)
        (result,) = t.report(epoch, block)
        assert result.accepted
        made.append(block.id)
    spans = [span(0, 80), span(0, 40, partition=1)]
    seen: list[str] = []
    while any(s.from_offset < s.until_offset for s in spans):
        answer = told(t, *spans)
        assert 1 <= len(answer.blocks) <= blocks
        seen += [block.id for block in answer.blocks]
        spans = [span(at, s.until_offset, partition=s.partition) for s, at in zip(spans, answer.reached, strict=True)]
    assert list(dict.fromkeys(seen)) == made
    assert len(seen) <= len(made) + (
        2 if blocks > 1 else 4
    )  # a block of both partitions comes once, or twice at the edge of an answer


def test_intake_shows_each_partitions_incarnations_and_position() -> None:
    t, _, _ = worked(1, partitions=2)
    apply(t.state, IncarnationBegun(IncarnationStart(TOPIC, 0, 3, "id-2"), t.now_ms, "recreated"))
    (first, second) = intake.intake(t.state)
    assert (first.tp, first.position) == (TopicPartition(TOPIC, 0), 3)
    assert [(one.number, one.start, one.end, one.topic_id) for one in first.incarnations] == [
        (1, 0, 10, "id-1"),
        (2, 3, None, "id-2"),
    ]
    assert second.position == 0
