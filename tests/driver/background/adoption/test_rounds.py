"""Rounds of adoption beside receivers, kills, refusals and stores without space: each orphan is adopted once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from driver.background import adoption
from driver.background.adoption import AdoptionThread, adopter
from driver.background.adoption.adopter import BLOCKED_SECONDS
from driver.decision_loop.loop import GROWING
from driver.journal import events as ev
from driver.journal.state import ADOPTER
from driver.tracker.requests import Request
from forebay import messages as m
from forebay.model.errors import OutOfSpaceError, SourceError, TurnedAwayError, UnreachableError
from tests.support.state.orphans import Stream
from tests.support.state.tracked import STREAM, fault, tp
from wal.segments import layout
from wal.segments.writer import LogWriter


def test_a_claim_that_came_since_the_search_makes_it_void() -> None:
    """The receiver with the newer token may have written since."""
    t = Stream(on_gap="record")
    epoch, _ = t.faulted()
    t.between["search"] = lambda: t.claim(epoch, receiver="r2")
    assert t.round() is not None
    assert not t.partition.gaps
    t.beat(epoch, "r2")
    t.round()
    assert t.partition.gaps


def test_a_fault_at_a_later_position_since_the_search_makes_it_void() -> None:
    """The WAL may hold blocks from there on."""
    t = Stream(on_gap="record")
    epoch, token = t.faulted()

    def goes_on() -> None:
        t.take_in(epoch, token, 10, receiver="r2")
        t.say(fault(epoch, token, receiver_id="r2", position=10))
        t.beat(epoch, "r2")

    t.between["search"] = goes_on
    assert t.round() is not None
    assert not t.partition.gaps
    t.round()
    assert [recorded.gap.from_offset for recorded in t.partition.gaps] == [10]


def test_a_report_that_comes_before_the_claim_is_not_repeated_from_the_wal() -> None:
    """INV-2: the owner's block was late, not lost."""
    t = Stream()
    epoch, token = t.faulted(low=40)
    late = t.orphan(epoch, (0, 0, 40, token), receiver="r2")
    t.between["claim"] = lambda: t.report(epoch, late, receiver="r2")
    t.round()
    assert not t.adopted()
    assert (t.partition.position, t.partition.owner) == (40, "")


@pytest.mark.parametrize("error", [SourceError("identity(): no route to host"), UnreachableError("no answer")])
def test_source_that_cannot_name_its_topics_delays_the_adoption(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver goes on: otherwise each start would end at the fault, which is in the journal."""
    t = Stream(on_gap="record")
    t.faulted()
    adopter = t.new_adopter("d2")

    def fails(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(adopter._search, "find", fails)
        assert t.round(adopter) == BLOCKED_SECONDS
    assert not t.partition.gaps
    t.round(adopter)
    assert t.partition.gaps


def test_no_receiver_gets_a_partition_while_it_is_adopted() -> None:
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 40, token))
    again, _ = t.faulted(low=40)
    granted = []
    t.between["write"] = lambda: granted.append(t.claim(again, receiver="r2").granted)
    t.round()
    assert granted == [False]
    assert t.partition.position == 40
    (command,) = t.beat(again, "r2")
    assert (command.kind, command.partitions) == ("reclaim", (tp(),))
    assert t.claim(again, receiver="r2").granted


@pytest.mark.parametrize("step", ["search", "claim", "write", "report", "release"])
def test_killed_at_any_step_it_adopts_once_in_the_end(step: str) -> None:
    """INV-2: the next driver's adopter begins anew, from the orphan or from what its predecessor wrote."""
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 40, token))
    t.faulted(low=40)
    t.round(until_step=step)
    after = t.new_adopter("d2")
    t.round(after)
    assert t.partition.owner == ""
    if step != "release":  # else it had come in, and the fault was over
        assert t.partition.position == 40
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(0, 40)]


def test_adoption_is_tried_again_after_a_store_without_space_with_the_claim_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The frame that was not written carries a token that has ended: it is never written later."""
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 40, token))
    t.faulted(low=40)

    def full(*_: object) -> None:
        raise OutOfSpaceError("memory://: the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(LogWriter, "sync", full)
        t.round()
    assert t.partition.owner == ""
    assert "the disk is full" in t.tracker.describe_fault(t.partition)
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(0, 40)]
    segments = t.wal.list(layout.block_folder(STREAM, ADOPTER))
    assert len({layout.parse_block(path).epoch for path in segments}) == len(segments)  # type: ignore[union-attr]


@pytest.mark.parametrize("turned_away", [m.RegisterRequest, m.ClaimRequest, m.ReportRequest])
def test_a_round_that_the_reserve_turns_away_begins_anew_when_there_is_room(turned_away: type) -> None:
    """INV-2: with the claim that it may hold ended, and what it may have written taken in like any orphan."""
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 40, token))
    t.faulted(low=40)
    t.turned_away = (turned_away,)
    for _ in range(2):
        assert t.round() == adoption.BLOCKED_SECONDS
        assert "down to the reserve" in t.tracker.describe_fault(t.partition)
    t.turned_away = ()
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(0, 40)]
    assert (t.partition.position, t.partition.owner, t.partition.fault) == (40, "", None)
    segments = t.wal.list(layout.block_folder(STREAM, ADOPTER))
    assert len({layout.parse_block(path).epoch for path in segments}) == len(segments)  # type: ignore[union-attr]


def test_an_adopter_that_can_not_end_what_an_older_driver_claimed_tries_again() -> None:
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 40, token))
    t.faulted(low=40)
    t.round(until_step="write")
    after = t.new_adopter("d2")
    t.turned_away = (m.RegisterRequest,)
    assert t.round(after) == adoption.BLOCKED_SECONDS
    assert t.partition.owner == ADOPTER
    t.turned_away = ()
    t.round(after)
    assert (t.partition.position, t.partition.owner) == (40, "")


class Turnstile:
    """A decision loop that refuses requests that grow the journal for a number of times. ``ended``: it answers none."""

    def __init__(self, t: Stream, closed_for: int) -> None:
        self._t = t
        self._closed_for = closed_for
        self.ended = False

    def ask(self, request: Request) -> Any:
        if self.ended:
            raise UnreachableError("the driver is stopping")
        if isinstance(request, GROWING) and self._closed_for:
            self._closed_for -= 1
            raise TurnedAwayError("down to the reserve")
        return self._t.say(request)


def test_the_thread_goes_on_after_it_was_turned_away_and_ends_with_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a partition with a fault would wait silently for the driver's next start (INV-5)."""
    monkeypatch.setattr(adopter, "BLOCKED_SECONDS", 0.0)
    monkeypatch.setattr(adopter, "ROUND_SECONDS", 0.0)
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 40, token))
    t.faulted(low=40)
    turnstile, failed = Turnstile(t, closed_for=3), list[BaseException]()
    thread = AdoptionThread(t.adopter, turnstile, failed.append)  # type: ignore[arg-type]
    adopted = threading.Event()
    say = t.say

    def noticed(request: Request) -> Any:
        answer = say(request)
        if t.partition.position == 40 and not t.partition.owner:
            adopted.set()
        return answer

    monkeypatch.setattr(t, "say", noticed)
    thread.start()
    try:
        assert adopted.wait(30.0)
        turnstile.ended = True
        thread.note([ev.ClaimGiven("t", 0, "r1", 1, 1)])
        thread._thread.join(30.0)
        assert not thread._thread.is_alive()
    finally:
        thread.stop()
    assert failed == []


def test_nothing_is_decided_while_kafka_does_not_say_which_topic_it_is() -> None:
    t = Stream(on_gap="record", kafka_answers=False)
    t.faulted()
    t.round()
    assert not t.partition.gaps
    assert "no broker answered" in t.tracker.describe_fault(t.partition)
    t.kafka_answers = True
    t.round()
    assert t.partition.gaps
