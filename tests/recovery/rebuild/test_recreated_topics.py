"""Blocks of topics that may have been created again after the snapshot copy: taken, or named as repeated."""

from __future__ import annotations

import msgspec

from driver.journal import events as ev
from driver.journal import history
from driver.journal.transitions import apply
from forebay.model.identifiers import numbered
from forebay.model.values import Gap
from recovery import audit
from recovery.rebuild import RebuildPlan
from tests.support.state.lost_journal import Lost, numbers
from tests.support.state.tracked import STREAM, offsets


def created_again(in_kafka: str | None = "id-2") -> tuple[Lost, int, int]:
    """Incarnation 1 at offset 5, of a topic whose id in Kafka is ``in_kafka`` now; an epoch and its token."""
    lost = Lost(in_kafka=in_kafka)
    epoch = lost.t.register()
    token = lost.t.claim(epoch).view.token
    lost.take_in(epoch, offsets(0, 5, token))
    lost.copy()
    return lost, epoch, token


def position(plan: RebuildPlan, partition: int = 0) -> int:
    return plan.state.partitions[f"t/{partition}"].position


def test_block_that_may_be_of_a_recreated_topic_is_not_taken_but_named_as_repeated() -> None:
    """INV-3: the new topic's records were polled before its id was read; incarnation 2 begins at 0 and reads them."""
    for in_kafka in ("id-2", "", None):
        lost, epoch, token = created_again(in_kafka)
        block = lost.write(epoch, offsets(5, 20, token))
        plan = lost.rebuild()
        assert position(plan) == 5, in_kafka
        assert block.id not in plan.state.blocks
        (not_taken,) = plan.not_taken
        assert not_taken.block_id == block.id
        assert "created again" in not_taken.reason
        assert plan.rebuild.repeated[-1].ranges == ("t/0[0, 20)",)
        assert [note for note in plan.notes if "no broker answered" in note] == list(plan.notes)
        assert bool(plan.notes) is (in_kafka is None)
        assert audit.report(plan.state, ()).clean


def test_records_of_the_new_topic_are_taken_only_in_its_incarnation() -> None:
    """INV-3."""
    lost, epoch, token = created_again()
    lost.write(epoch, offsets(5, 20, token))
    apply(lost.t.state, ev.IncarnationBegun(ev.IncarnationStart("t", 0, 0, "id-2"), 1, "recreated"))
    lost.take_in(epoch, offsets(0, 20, lost.t.claim(epoch).view.token, incarnation=2))
    state = lost.rebuild().state
    old, new = state.partitions["t/0"].incarnations
    assert (old.end, new.start, state.partitions["t/0"].position) == (5, 0, 20)
    assert len(state.waiting) == 2


def test_a_topic_that_is_still_the_same_or_a_block_that_was_checked_is_taken() -> None:
    """INV-1."""
    for in_kafka, checked in (("id-1", False), ("id-2", True), (None, True)):
        lost, epoch, token = created_again(in_kafka)
        lost.write(epoch, offsets(5, 20, token), checked=checked)
        plan = lost.rebuild()
        assert (position(plan), plan.not_taken, plan.notes) == (20, (), ()), in_kafka


def test_block_without_a_known_topic_id_is_taken_without_asking_kafka() -> None:
    lost = Lost(in_kafka=None)
    for partition in lost.t.state.partitions.values():
        partition.incarnation.topic_id = ""
    lost.copy()
    epoch = lost.t.register()
    lost.take_in(epoch, offsets(0, 20, lost.t.claim(epoch).view.token))
    plan = lost.rebuild()
    assert (position(plan), plan.notes) == (20, ())


def test_block_before_a_later_claim_or_gap_was_accepted() -> None:
    """INV-1: and with it the blocks of its token before it."""
    for over_gap in (False, True):
        lost, epoch, token = created_again()
        for at in (5, 10, 15):
            lost.take_in(epoch, offsets(at, at + 5, token))
        if over_gap:
            apply(lost.t.state, ev.GapRecorded(topic="t", partition=0, gap=Gap(20, 22, "retention"), time_ms=1))
        view = lost.t.claim(epoch).view
        held = offsets(view.position, 30, view.token)
        lost.take_in(epoch, msgspec.structs.replace(held, preceding_gap=view.preceding_gap))
        plan = lost.rebuild()
        assert position(plan) == 20
        assert [one.ranges for one in plan.not_taken] == [(held.label,)]


def test_continuing_block_under_the_same_token_proves_nothing_unless_checked() -> None:
    """INV-3: a receiver writes ahead of its reports, so both may hold the new topic's records."""
    for checked, reached in ((False, 5), (True, 30)):
        lost, epoch, token = created_again()
        other = lost.t.claim(epoch, 1).view.token
        lost.write(epoch, offsets(5, 20, token), offsets(0, 7, other, 1))
        lost.write(epoch, offsets(20, 30, token), checked=checked)
        assert position(lost.rebuild()) == reached


def test_block_named_by_a_surviving_history_was_accepted() -> None:
    """INV-1, INV-3."""
    lost, epoch, token = created_again()
    block = lost.take_in(epoch, offsets(5, 20, token))
    lost.t.complete(lost.t.batch())
    writer = history.HistoryWriter(
        lost.journal, STREAM, numbered(1, 1), segment_bytes=1 << 20, now=lambda: 1.0, new_uid=lambda: next(numbers)
    )
    writer.append(history.finished(lost.t.state))
    writer.close()
    plan = lost.rebuild()
    assert position(plan) == 20
    assert block.id in plan.state.released
    assert audit.report(plan.state, history.read(lost.journal, STREAM)).clean
