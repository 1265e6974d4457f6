"""Product code that the simulation replaces: it behaves like the replacement."""

from __future__ import annotations

import itertools

import pytest

from driver.decision_loop.loop import DriverLoop
from driver.journal import opening as journal
from driver.tracker import Action, Tracker
from forebay import messages as m
from forebay.model.errors import FencedError, UnreachableError
from forebay.process.clock import ManualClock
from tests.support.forgetful import ForgetfulStorage
from tests.support.tracked import tracker_options


def test_driver_that_was_taken_over_sends_no_refusal() -> None:
    """INV-4: a refusal needs no durable write, but the driver checks for a newer epoch before it (trace
    ``refusal-after-take-over``).
    """
    disk, uids = ForgetfulStorage(), itertools.count(1)
    opened, state = journal.lead(disk, "sim", "one", 0, lambda: 0.0, lambda: next(uids))
    ended: list[BaseException] = []
    acted: list[Action] = []
    loop = DriverLoop(
        Tracker(state, opened.epoch, tracker_options(max_queued_batches=1)),
        opened,
        ManualClock(),
        perform=acted.append,
        failed=ended.append,
    )
    loop.start()
    try:
        question = m.LookupRequest(receiver_id="r1", epoch=1, partitions=())
        with pytest.raises(FencedError):
            loop.ask(question, 30.0)
        journal.lead(disk, "sim", "other", 0, lambda: 0.0, lambda: next(uids))
        with pytest.raises(UnreachableError):
            loop.ask(question, 30.0)
    finally:
        loop.stop()
    assert isinstance(ended[0], FencedError)
