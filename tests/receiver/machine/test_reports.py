"""Reports of blocks, the driver's answers, and what a refusal requires (rule 4)."""

from __future__ import annotations

import pytest

from forebay import messages
from forebay.model.identifiers import numbered
from receiver import actions as act
from receiver import inputs as inp
from receiver.machine.machine import ANSWER_PATIENCE
from tests.receiver.stage import P0, P1, P2, Stage, bounds, offsets_of, settings, view


def test_one_report_is_in_flight_and_blocks_go_in_order_of_their_sequence() -> None:
    """A block that is durable early waits for those before it, because its ranges begin where theirs end."""
    stage = Stage()
    start = stage.own(P0)[P0]
    pending_blocks = []
    for first in range(0, 9, 3):
        stage.poll(start, range(first, first + 3)).wait(1.0)
        pending_blocks += stage.sealed()
    stage.store(pending_blocks[1], pending_blocks[2])
    stage.none(act.Report)
    stage.store(pending_blocks[0])
    report = stage.one(act.Report)
    assert [block.meta.sequence for block in report.message.blocks] == [1, 2, 3]
    stage.poll(start, [9]).wait(1.0)
    stage.store(*stage.sealed())
    stage.none(act.Report)


def test_report_without_answer_is_repeated_with_same_blocks_and_those_stored_since() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, [0])
    stage.seal_and_store()
    first = stage.one(act.Report)
    stage.poll(start, [1])
    stage.seal_and_store()
    stage.tell(inp.DriverFailed(first.request, "connection refused"))
    stage.none(act.Report)
    stage.wait(0.5)
    second = stage.one(act.Report)
    assert second.message.blocks[:1] == first.message.blocks
    assert [block.meta.sequence for block in second.message.blocks] == [1, 2]
    stage.tell(inp.ReportAnswered(first.request, ()))
    stage.none(act.CommitAsync)
    assert stage.machine.counters["stale_answers_dropped"] == 1


def test_answer_after_the_receiver_stopped_waiting_changes_nothing() -> None:
    """The blocks were reported again by then, and the answer to that report counts."""
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(4))
    stage.seal_and_store()
    late = stage.one(act.Report)
    stage.wait(ANSWER_PATIENCE * settings().report_timeout + 1.0).wait(0.5)
    again = stage.one(act.Report)
    assert again.message.blocks == late.message.blocks
    accepted = [messages.BlockResult(block_id=block.meta.id, accepted=True, stale=()) for block in late.message.blocks]
    stage.tell(inp.ReportAnswered(late.request, tuple(accepted)))
    stage.none(act.CommitAsync)
    stage.tell(inp.ReportAnswered(again.request, tuple(accepted)))
    assert stage.one(act.CommitAsync).positions[P0].offset == 4


def test_accepted_position_is_committed_with_leader_epoch_timeline_and_incarnation() -> None:
    """Rule 5 and INV-1: nothing is committed before its report was accepted."""
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(4))
    stage.seal_and_store()
    stage.none(act.CommitAsync)
    stage.answer()
    point = stage.one(act.CommitAsync).positions[P0]
    assert (point.offset, point.leader_epoch, point.metadata) == (4, 3, "forebay:1:1")
    assert stage.machine.buffered_bytes == 0


def test_a_block_of_an_earlier_assignment_is_accepted_and_not_committed() -> None:
    """INV-1: until the partition is claimed again, its position is another receiver's."""
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(4))
    stage.seal_and_store()
    stage.tell(inp.Lost((P0,))).tell(inp.Assigned((P0,))).answer()
    assert stage.machine.counters["blocks_accepted"] == 1
    stage.none(act.CommitAsync)


def test_a_failed_commit_is_repeated() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(4))
    stage.seal_and_store()
    stage.answer()
    stage.all(act.CommitAsync)
    stage.tell(inp.CommitFailed({P0: "rebalance in progress"})).wait(0.6)
    assert stage.one(act.CommitAsync).positions[P0].offset == 4


def test_refusal_requires_new_token_for_every_partition_of_all_unanswered_blocks() -> None:
    """Rule 4: no record is written twice under one token. Records in memory are cut again under the new one."""
    stage = Stage()
    starts = stage.own(P0, P1, P2)
    stage.poll(starts[P0], range(3)).poll(starts[P1], range(3))
    (first,) = stage.seal_and_store()
    report = stage.one(act.Report)
    stage.poll(starts[P1], range(3, 5)).poll(starts[P2], range(2)).wait(1.0)
    (second,) = stage.sealed()  # being stored
    stage.poll(starts[P1], [5]).poll(starts[P0], [3])  # open
    stale = messages.StaleRange(topic="t", partition=0, reason="token", token=50, position=2)
    result = messages.BlockResult(block_id=report.message.blocks[0].id, accepted=False, stale=(stale,))
    stage.tell(inp.ReportAnswered(report.request, (result,)))
    paused = {tp for action in stage.all(act.Pause) for tp in action.partitions}
    assert paused == {P0, P1, P2}
    stage.poll(starts[P2], [2]).store(second)  # an answer of the old generation; one for a withdrawn block
    stage.none(act.Report)
    assert stage.sealed() == []
    stage.wait(0.5)
    new = stage.claim({P0: view(P0, 2, 50), P1: view(P1, 0, 12), P2: view(P2, 0, 13)})
    assert {start.tp: start.offset for start in new} == {P0: 4, P1: 6, P2: 2}
    (again,) = stage.seal_and_store()
    assert again.sequence > second.sequence
    assert offsets_of(again, P0) == [2, 3]
    assert offsets_of(again, P1) == [0, 1, 2, 3, 4, 5]
    assert offsets_of(again, P2) == [0, 1]
    old_tokens = {part.token for pending in (first, second) for part in pending.ranges}
    assert not old_tokens & {part.token for part in again.ranges}
    stage.answer()


@pytest.mark.parametrize(
    ("position", "incarnation", "cut"),
    [
        (0, 1, (0, 6)),  # no record of it was taken in
        (4, 1, (4, 6)),  # a piece is trimmed
        (6, 1, None),  # every record was taken in
        (9, 1, None),  # another receiver is ahead
        (4, 2, None),  # the same offsets mean other records
    ],
)
def test_held_records_are_cut_again_only_if_they_continue_at_granted_position(
    position: int, incarnation: int, cut: tuple[int, int] | None
) -> None:
    """Rule 4, INV-2."""
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(6))
    stage.seal_and_store()
    stage.answer(refused={1: [P0]})
    stage.wait(0.5)
    (again,) = stage.claim({P0: view(P0, position, 50, incarnation)})
    assert again.offset == (6 if cut else position)
    stage.wait(1.0)
    pending_blocks = stage.sealed()
    assert [bounds(pending, P0) for pending in pending_blocks] == ([cut] if cut else [])
    if cut:
        assert offsets_of(pending_blocks[0], P0) == list(range(*cut))
    else:
        assert stage.machine.buffered_bytes == 0


def test_held_records_after_granted_position_are_dropped() -> None:
    """INV-2: ranges are contiguous; the offsets in between would be a gap."""
    stage = Stage()
    start = stage.own(P0, position=5)[P0]
    stage.poll(start, range(5, 8))
    stage.seal_and_store()
    stage.answer(refused={1: [P0]})
    stage.wait(0.5)
    (again,) = stage.claim({P0: view(P0, 3, 50)})
    assert again.offset == 3


def test_a_partition_is_not_claimed_while_blocks_under_its_old_token_are_unanswered() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, [0])
    stage.seal_and_store()
    order = messages.Command(version=1, driver_epoch=numbered(1, 1), kind="reclaim", partitions=(P0,))
    beat = stage.all(act.Heartbeat)[-1]
    stage.tell(inp.HeartbeatAnswered(beat.request, numbered(1, 1), (order,)))
    stage.none(act.Lookup)
    stage.answer()
    (again,) = stage.claim({P0: view(P0, 1, 20)})
    assert again.offset == 1
