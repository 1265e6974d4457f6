"""Faults: gaps with their exact ranges, and incarnations that end (rule 8)."""

from __future__ import annotations

import pytest

from driver.journal import events as ev
from forebay import messages as m
from forebay.model.errors import RefusedError, UsageError
from forebay.model.identifiers import numbered
from tests.support.state.tracked import TOPIC, Tracked, fault, tp


def test_fault_that_passed_by_itself_is_no_longer_shown() -> None:
    t = Tracked()
    epoch = t.register()
    t.say(fault(epoch, t.claim(epoch).view.token))
    assert t.state.partitions["t/0"].fault is not None
    t.take_in(epoch, t.claim(epoch).view.token, 5)
    assert t.state.partitions["t/0"].fault is None


def test_with_stop_a_gap_waits_for_a_person_and_the_position_stays() -> None:
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    answer = t.say(fault(epoch, token))
    assert not answer.proceed
    assert "forebay offsets accept-gap t/0 0 40" in answer.message
    assert t.state.partitions["t/0"].position == 0
    assert t.search_finding_nothing(epoch)
    with pytest.raises(RefusedError, match="exactly what"):
        t.say(m.AcceptGapRequest(topic=TOPIC, partition=0, from_offset=0, until_offset=41))
    t.say(m.AcceptGapRequest(topic=TOPIC, partition=0, from_offset=0, until_offset=40))
    assert t.state.partitions["t/0"].position == 40
    assert t.say(fault(epoch, token)).proceed
    view = t.claim(epoch).view
    assert view.preceding_gap is not None
    assert (view.preceding_gap.from_offset, view.preceding_gap.until_offset) == (0, 40)


def test_accepting_orders_the_owner_to_claim_again_until_it_has() -> None:
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.say(fault(epoch, token))
    assert t.search_finding_nothing(epoch)
    t.say(m.AcceptGapRequest(topic=TOPIC, partition=0, from_offset=0, until_offset=40))
    (command,) = t.beat(epoch)
    assert (command.kind, command.partitions, command.driver_epoch) == ("reclaim", (tp(),), numbered(1, 1))
    assert t.beat(epoch) == (command,)
    assert t.beat(epoch, seen=command.version) == ()


def test_with_record_a_gap_is_journalled_with_its_exact_range_and_ends_the_token() -> None:
    t = Tracked(on_gap="record")
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 10)
    assert not t.say(fault(epoch, token, position=10)).proceed
    assert t.search_finding_nothing(epoch)
    assert next(e.gap for e in t.events if isinstance(e, ev.GapRecorded)).from_offset == 10
    assert t.state.partitions["t/0"].owner == ""
    assert t.state.partitions["t/0"].position == 40


@pytest.mark.parametrize("gap_first", [True, False])
def test_gap_is_completed_with_the_records_before_it(gap_first: bool) -> None:
    """No batch will ever hold it, so the completed position would stay before it for good."""
    t = Tracked(on_gap="record")
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 10)
    batch = t.batch()
    if gap_first:
        t.say(fault(epoch, token, position=10))
        assert t.search_finding_nothing(epoch)
        assert t.state.partitions["t/0"].completed == 0
    t.complete(batch)
    if not gap_first:
        assert t.state.partitions["t/0"].completed == 10
        t.say(fault(epoch, token, position=10))
        assert t.search_finding_nothing(epoch)
    assert t.state.partitions["t/0"].completed == 40


def test_position_above_the_log_begins_a_new_incarnation_at_its_end() -> None:
    t = Tracked(on_gap="record")
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 100)
    t.say(fault(epoch, token, position=100, low=0, high=60))
    assert t.search_finding_nothing(epoch)
    partition = t.state.partitions["t/0"]
    assert (partition.incarnation.number, partition.position, partition.incarnations[0].end) == (2, 60, 100)


def test_a_corrupt_batch_is_never_skipped_without_a_person() -> None:
    """INV-5: whatever the policy."""
    t = Tracked(on_gap="record")
    epoch = t.register()
    token = t.claim(epoch).view.token
    assert not t.say(fault(epoch, token, kind="corrupt", low=0)).proceed
    assert t.search_finding_nothing(epoch)
    assert t.state.partitions["t/0"].position == 0


def test_fault_without_anything_missing_is_bad_input() -> None:
    t = Tracked()
    epoch = t.register()
    with pytest.raises(UsageError, match="nothing is missing"):
        t.say(fault(epoch, t.claim(epoch).view.token, low=0))


def test_fault_of_an_outdated_token_changes_nothing() -> None:
    """INV-4."""
    t = Tracked(on_gap="record")
    epoch = t.register()
    old = t.claim(epoch).view.token
    t.claim(epoch)
    before = len(t.events)
    assert t.say(fault(epoch, old)).proceed
    assert len(t.events) == before
