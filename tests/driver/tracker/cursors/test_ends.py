"""A cursor ends by its timeout or by a person, and keeps nothing afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from driver.journal.events import CursorMoved
from driver.journal.transitions import cursors as cursor_events
from driver.tracker.requests import ExpireCursors
from forebay import messages as m
from forebay.model.errors import FencedError, RefusedError
from tests.support.state.cursors import RULES, check_index, due, move, open_, place, shown_cursors, worked
from tests.support.state.tracked import tracker_options


def test_a_forgotten_cursor_expires_with_a_cause_and_holds_nothing_any_more() -> None:
    """INV-5: in the status, in the log, and in the error of its user."""
    t, _, _ = worked()
    answer = open_(t, place(0))
    t.now_ms += 3_600_000
    assert t.say(ExpireCursors()) == ()
    t.now_ms += 1
    (message,) = t.say(ExpireCursors())
    assert "cursor q expired: no heartbeat of u1 for 1.0 h (driver.cursor_timeout)" in message
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
    last_seen_ms, now = t.now_ms, t.now_ms / 1000
    assert t.tracker.decide(ExpireCursors(), now, last_seen_ms + jump_ms).answer == ()
    assert t.tracker.decide(ExpireCursors(), now + 3_600, last_seen_ms + jump_ms).answer == ()
    expired: Any = t.tracker.decide(ExpireCursors(), now + 3_601, last_seen_ms + jump_ms).answer
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
