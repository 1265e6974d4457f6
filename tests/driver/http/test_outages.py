"""Outages that the driver notices, and what it answers meanwhile: an unknown lag, and a status without the journal."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from driver.background.reach import (
    END_AGE_SECONDS_MAX,
    HANG_SECONDS,
    Ends,
    Outage,
    Probe,
    offsets_of_known,
    soon,
    still_there,
)
from driver.http.status import PartsStatus, status
from forebay import messages as m
from forebay.model.errors import UnknownTopicError, UnreachableError
from forebay.model.values import TopicPartition
from forebay.process.clock import ManualClock
from tests.support.state.tracked import Tracked, tp


def test_question_that_fails_or_hangs_is_an_outage_until_one_is_answered() -> None:
    clock = ManualClock()
    errors: list[Exception] = []

    def ask() -> None:
        if errors:
            raise errors.pop()

    probe = Probe("kafka", ask, clock, interval_seconds=5.0)
    probe.ask()
    assert probe.outage() is None
    errors.append(UnreachableError("connection refused"))
    clock.advance(9)
    probe.ask()
    assert probe.outage() == Outage("kafka", "connection refused", 9)
    probe.ask()
    assert probe.outage() is None
    begun, go_on = threading.Event(), threading.Event()
    why = ""
    slow = Probe("wal", lambda: (begun.set(), go_on.wait(30))[1], clock, interval_seconds=5.0, why_silent=lambda: why)  # type: ignore[arg-type]
    slow.start()
    try:
        assert begun.wait(30)
        assert slow.outage() is None
        clock.advance(HANG_SECONDS + 1)
        assert slow.outage() == Outage("wal", "no answer for 6 s", HANG_SECONDS + 1)
        why = "connection refused"
        assert slow.outage() == Outage("wal", "no answer for 6 s: connection refused", HANG_SECONDS + 1)
    finally:
        go_on.set()
        slow.stop()


def test_what_was_there_and_is_not_any_more_is_an_outage(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    ask = still_there(marker.exists, "it has no marker any more")
    ask()  # it was never there: an older stream's
    marker.touch()
    ask()
    marker.unlink()
    with pytest.raises(LookupError, match="no marker any more"):
        ask()


def test_topic_that_is_being_deleted_leaves_the_ends_of_the_others() -> None:
    class Upstream:
        def ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
            if any(one.topic == "gone" for one in partitions):
                raise UnknownTopicError("gone")
            return dict.fromkeys(partitions, 7)

    both: Any = [TopicPartition("gone", 0), TopicPartition("t", 1)]
    assert offsets_of_known(Upstream().ends, both) == {TopicPartition("t", 1): 7}


def test_lag_is_unknown_when_the_end_is_old_and_never_zero() -> None:
    t = Tracked()
    clock = ManualClock()
    ends = Ends(lambda: {tp(): 40}, clock)

    def shown() -> m.TrackedPartition:
        service = PartsStatus(state="running")
        answer = status(t.tracker, service, release="test", now=0.0, now_ms=0, receiver_timeout=30.0, ends=ends)
        return answer.partitions[0]

    assert (shown().high_watermark, shown().lag, shown().end_age_seconds) == (-1, None, -1.0)
    ends.read()
    assert (shown().high_watermark, shown().lag) == (40, 40)
    clock.advance(END_AGE_SECONDS_MAX + 1)
    assert (shown().high_watermark, shown().lag, shown().end_age_seconds) == (40, None, END_AGE_SECONDS_MAX + 1)


def test_status_that_the_journal_holds_up_is_answered_without_it() -> None:
    held: Future[Any] = Future()
    answer = soon(held, 0.01, lambda: "the journal's store is out of reach")
    assert answer.result(30) == "the journal's store is out of reach"
    held.set_result("late")
    quick: Future[Any] = Future()
    quick.set_result("state")
    assert soon(quick, 30.0, lambda: "never").result(30) == "state"
    failed: Future[Any] = Future()
    failed.set_exception(UnreachableError("ended"))
    with pytest.raises(UnreachableError, match="ended"):
        soon(failed, 30.0, lambda: "never").result(30)
