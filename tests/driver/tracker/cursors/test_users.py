"""A cursor has one user at a time, and never goes back unless it is opened again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from driver.journal.events import CursorEnded, CursorMoved, CursorOpened, IncarnationBegun, IncarnationStart
from driver.journal.state import BrokenInvariant, State
from driver.journal.transitions import apply
from driver.tracker import cursors
from forebay import messages as m
from forebay.model.errors import FencedError, RefusedError, UsageError
from tests.support.state.cursors import RULES, due, move, open_, path, place, shown_cursors, worked
from tests.support.state.tracked import TOPIC, Tracked, offsets, tp, tracker_options


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
    with pytest.raises(UsageError, match="the cursor's key has 201 characters; 200 are allowed"):
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


def test_how_far_a_cursor_is_behind_counts_in_the_newest_incarnation() -> None:
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
    ("request_", "message"),
    [
        (m.OpenCursorRequest(cursor="../q", user="u", places=()), "cursor '../q': a name has"),
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
def test_what_can_not_be_is_refused_in_a_sentence(request_: Any, message: str) -> None:
    t, _, _ = worked(1)
    with pytest.raises(UsageError, match=message):
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


def test_cursors_epoch_is_the_next_one_of_the_timeline() -> None:
    """INV-4."""
    t, _, _ = worked(1)
    with pytest.raises(BrokenInvariant, match="not the next one"):
        apply(t.state, CursorOpened("q", t.state.epochs, "u", {}, 1))
    with pytest.raises(BrokenInvariant):
        apply(t.state, CursorEnded("q", 1, "no such"))
