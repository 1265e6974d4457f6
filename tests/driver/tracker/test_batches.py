"""Which blocks make a batch; each batch is completed once; events replay to the same state (INV-7)."""

from __future__ import annotations

import pytest

from driver.journal import events as ev
from driver.journal.state import State
from driver.journal.transitions import apply
from driver.tracker.requests import Allocate, Complete, FoundPartitions
from forebay import messages as m
from forebay.model.errors import RefusedError, UsageError
from forebay.model.identifiers import numbered
from tests.support.state.tracked import STREAM, TOPIC, Tracked, fault


def test_all_waiting_blocks_make_one_batch_and_none_is_in_two() -> None:
    """INV-3."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    blocks = [t.take_in(epoch, token, until).id for until in (5, 9, 12)]
    first = t.batch()
    assert t.say(Allocate(2_000, 2)) is None
    later = t.take_in(epoch, token, 20).id
    second = t.batch()
    assert t.state.batches[first].block_ids == blocks
    assert t.state.batches[second].block_ids == [later]
    assert second == first + 1


def test_intervals_coalesce_while_enough_batches_are_queued() -> None:
    t = Tracked(max_queued_batches=1)
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 5)
    first = t.batch()
    for until in (6, 7, 8):
        t.take_in(epoch, token, until)
        assert t.say(Allocate(2_000, 2)) is None
    t.complete(first)
    assert len(t.state.batches[t.batch()].block_ids) == 3


def test_a_batch_is_completed_once() -> None:
    t = Tracked()
    epoch = t.register()
    t.take_in(epoch, t.claim(epoch).view.token, 5)
    batch = t.batch()
    t.complete(batch)
    with pytest.raises(RefusedError, match="completed already"):
        t.say(Complete(batch, 5, 1))


def test_a_loss_is_accepted_for_ranges_that_the_unfinished_batch_has() -> None:
    t = Tracked()
    epoch = t.register()
    t.take_in(epoch, t.claim(epoch).view.token, 5)
    batch = t.batch()
    with pytest.raises(UsageError, match=r"contains t/0\[0, 5\)"):
        t.say(m.AcceptLossRequest(batch_id=batch, ranges=("t/0[0, 6)",)))
    t.say(m.AcceptLossRequest(batch_id=batch, ranges=("t/0[0, 5)",)))
    assert t.state.batches[batch].lost == ("t/0[0, 5)",)


def test_replaying_the_events_gives_the_same_state() -> None:
    t = Tracked(on_gap="record")
    first, second = t.register("r1"), t.register("r2", "i2")
    token = t.claim(first).view.token
    t.take_in(first, token, 10, local=True)
    t.batch()
    t.say(fault(first, token, position=10))
    assert t.search_finding_nothing(first)
    token = t.claim(second, receiver="r2").view.token
    t.take_in(second, token, 50, receiver="r2")
    t.complete(t.state.unfinished()[0].batch_id)
    t.archive(t.state.unfinished()[0].batch_id - 1 if t.state.unfinished() else numbered(1, 1))
    t.say(FoundPartitions((ev.IncarnationStart(TOPIC, 7, 3),), 5, "later"))
    replayed = State(stream=STREAM, timeline=1)
    for event in t.events:
        apply(replayed, event)
    assert replayed == t.state
