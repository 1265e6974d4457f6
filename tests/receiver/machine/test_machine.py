"""The receiver's decisions, rule by rule ("The rules" in docs/architecture/ownership.md)."""

from __future__ import annotations

import msgspec
import pytest

from forebay import messages
from forebay.model.columns import EndOfPartition, PartitionFault
from forebay.model.units import Duration, Size
from forebay.model.values import NUMBER_MAX, Gap, TopicPartition, numbered
from receiver import actions as act
from receiver import inputs as inp
from receiver.machine.control.heartbeat import POLL_PATIENCE_SECONDS
from receiver.machine.exchange.recent_errors import ERROR_WORDS_MAX, ERRORS_MAX
from receiver.machine.limits.pausing import PAUSE_SECONDS
from tests.receiver.stage import EPOCH, P0, P1, P2, Stage, bounds, columns, offsets_of, view

# ---- rule 1: register ------------------------------------------------------------------------------------------------


def test_receiver_joins_no_group_before_the_driver_grants_an_epoch() -> None:
    stage = Stage().tell(inp.Tick())
    register = stage.one(act.Register)
    assert register.message.instance_id == "instance"
    stage.none(act.Subscribe)
    stage.tell(inp.DriverFailed(register.request, "refused")).wait(0.1)
    stage.none(act.Register)
    stage.wait(10.0)
    stage.tell(inp.Registered(stage.one(act.Register).request, EPOCH, 1, 1))
    assert stage.one(act.Subscribe).epoch == EPOCH


def test_receiver_joins_the_topics_that_the_driver_names_at_registration() -> None:
    stage = Stage().tell(inp.Tick())
    stage.tell(inp.Registered(stage.one(act.Register).request, EPOCH, 1, 1, ("a", "b")))
    assert stage.one(act.Subscribe) == act.Subscribe(EPOCH, ("a", "b"))
    stage.none(act.Follow)


def _named(stage: Stage, driver_epoch: int, topics: tuple[str, ...] | None) -> Stage:
    """Answer the next heartbeat with ``topics``."""
    beats = stage.all(act.Heartbeat) or stage.wait(10.0).all(act.Heartbeat)
    (beat,) = beats
    stage.actions.clear()
    return stage.tell(inp.HeartbeatAnswered(beat.request, driver_epoch, (), None, topics))


def test_receiver_subscribes_again_when_the_driver_names_other_topics_and_only_then() -> None:
    stage = Stage().tell(inp.Tick())
    stage.tell(inp.Registered(stage.one(act.Register).request, EPOCH, numbered(1, 1), 1, ()))
    assert stage.machine.detail == "no topic matches kafka.pattern"
    assert _named(stage, numbered(1, 1), ("a",)).one(act.Follow) == act.Follow(("a",))
    assert stage.machine.detail == ""
    _named(stage, numbered(1, 1), ("a",)).none(act.Follow)
    _named(stage, numbered(1, 1), None).none(act.Follow)  # a driver of an older release
    assert _named(stage, numbered(1, 2), ("a", "b")).one(act.Follow) == act.Follow(("a", "b"))
    _named(stage, numbered(1, 1), ("a",)).none(act.Follow)  # INV-4: of a driver that was superseded


def _warnings(stage: Stage) -> list[str]:
    return [note.text for note in stage.all(act.Note) if note.warning]


def test_receiver_warns_once_of_older_driver_without_topics_and_joins_when_newer_one_names_them() -> None:
    stage = Stage(by_pattern=True).tell(inp.Tick())
    stage.tell(inp.Registered(stage.one(act.Register).request, EPOCH, numbered(1, 1), 1))
    (warning,) = _warnings(stage)
    assert warning.endswith("upgrade the driver: until then no topic is subscribed to")
    assert (stage.machine.state, stage.machine.detail) == ("waiting", warning.partition(": until")[0])
    beat = stage.one(act.Heartbeat)
    assert beat.message.detail == stage.machine.detail
    assert [note.words for note in beat.message.errors] == [warning]
    stage.tell(inp.HeartbeatAnswered(beat.request, numbered(1, 1), (), None, None))
    assert not _warnings(stage) and stage.machine.detail
    assert _named(stage, numbered(1, 2), ("a",)).one(act.Follow) == act.Follow(("a",))
    assert stage.machine.detail == ""


def test_receiver_that_goes_back_to_an_older_driver_keeps_its_topics_and_warns() -> None:
    stage = Stage(by_pattern=True).tell(inp.Tick())
    stage.tell(inp.Registered(stage.one(act.Register).request, EPOCH, numbered(1, 2), 1, ("a",)))
    assert not _warnings(stage)
    _named(stage, numbered(1, 1), None)  # INV-4: of a driver that was superseded
    assert not _warnings(stage)
    _named(stage, numbered(1, 3), None)
    (warning,) = _warnings(stage)
    assert warning.endswith("new and deleted topics are not noticed")
    assert stage.machine.detail == ""
    stage.none(act.Follow)


def test_receiver_of_named_topics_needs_none_from_the_driver() -> None:
    stage = Stage().tell(inp.Tick())
    stage.tell(inp.Registered(stage.one(act.Register).request, EPOCH, 1, 1))
    assert not _warnings(stage) and stage.machine.detail == ""


def test_draining_receiver_keeps_its_subscription() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(5)).wait(10.0)  # a heartbeat is under way
    beat = stage.one(act.Heartbeat)
    stage.tell(inp.DrainRequested())
    stage.tell(inp.HeartbeatAnswered(beat.request, numbered(1, 1), (), None, ("other",)))
    stage.none(act.Follow)


def test_superseded_process_exits_with_4_and_does_nothing_more() -> None:
    """INV-4."""
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(5)).tell(inp.Fenced("registered again since"))
    assert stage.one(act.Exit).code == 4
    stage.actions.clear()
    stage.wait(5.0)
    assert stage.actions == []


# ---- rule 2: claim ---------------------------------------------------------------------------------------------------


def test_a_partition_is_looked_up_committed_and_claimed_before_it_is_read() -> None:
    """Rules 2 and 4: the claim names the token of the lookup, after a commit that only a member of the group can do."""
    stage = Stage().register()
    stage.tell(inp.Assigned((P0,)))
    look = stage.one(act.Lookup)
    stage.none(act.CommitSync)
    stage.tell(inp.LookupAnswered(look.request, (view(P0, 40, token=6, incarnation=2, leader_epoch=3),)))
    commit = stage.one(act.CommitSync)
    point = commit.positions[P0]
    assert (point.offset, point.leader_epoch, point.metadata) == (40, 3, "forebay:1:2")
    stage.none(act.Claim)
    stage.tell(inp.CommitSynced(commit.request, {}))
    claim = stage.one(act.Claim)
    assert claim.message.claims == (messages.ClaimAsk(topic="t", partition=0, known_token=6),)
    stage.none(act.StartPartitions)
    granted = view(P0, 42, token=8, incarnation=2, leader_epoch=4)
    stage.tell(inp.Claimed(claim.request, (messages.ClaimGrant(granted=True, view=granted),)))
    (start,) = stage.one(act.StartPartitions).starts
    assert (start.offset, start.leader_epoch) == (42, 4)


def test_a_zombie_whose_commit_fails_claims_nothing() -> None:
    """Rule 4: a local assignment does not prove membership."""
    stage = Stage().register()
    stage.tell(inp.Assigned((P0,)))
    stage.tell(inp.LookupAnswered(stage.one(act.Lookup).request, (view(P0),)))
    commit = stage.one(act.CommitSync)
    stage.tell(inp.CommitSynced(commit.request, {P0: "unknown member"}))
    stage.none(act.Claim)
    stage.none(act.Lookup)
    stage.wait(0.5)
    stage.one(act.Lookup)


def test_refused_claims_are_retried_with_growing_delay() -> None:
    stage = Stage().register()
    stage.tell(inp.Assigned((P0,)))
    delays = []
    for _ in range(7):
        stage.tell(inp.LookupAnswered(stage.one(act.Lookup).request, (view(P0),)))
        stage.tell(inp.CommitSynced(stage.one(act.CommitSync).request, {}))
        claim = stage.one(act.Claim)
        stage.tell(inp.Claimed(claim.request, (messages.ClaimGrant(granted=False, view=view(P0, token=5)),)))
        delay = 0.0
        while not any(isinstance(action, act.Lookup) for action in stage.actions):
            stage.wait(0.25)
            delay += 0.25
        delays.append(delay)
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    stage.none(act.StartPartitions)


def test_a_partition_that_the_driver_does_not_know_yet_is_looked_up_again() -> None:
    stage = Stage().register()
    stage.tell(inp.Assigned((P0, P1)))
    unknown = messages.PartitionView(topic="t", partition=0, known=False)
    stage.tell(inp.LookupAnswered(stage.one(act.Lookup).request, (unknown, view(P1))))
    assert set(stage.one(act.CommitSync).positions) == {P1}
    stage.wait(0.5)
    assert stage.one(act.Lookup).message.partitions == (P0,)


def test_late_and_repeated_answers_change_nothing() -> None:
    stage = Stage().register()
    stage.tell(inp.Assigned((P0,)))
    look = stage.one(act.Lookup)
    answer = inp.LookupAnswered(look.request, (view(P0),))
    stage.wait(31.0)  # considered lost
    stage.wait(1.0)
    second = stage.one(act.Lookup)
    assert second.request != look.request
    stage.tell(answer)
    stage.none(act.CommitSync)
    stage.tell(inp.LookupAnswered(second.request, (view(P0),)))
    commit = stage.one(act.CommitSync)
    stage.tell(inp.LookupAnswered(second.request, (view(P0),)))
    stage.none(act.CommitSync)
    stage.tell(inp.CommitSynced(commit.request, {}))
    claim = stage.one(act.Claim)
    stage.tell(inp.CommitSynced(commit.request, {}))
    stage.none(act.Claim)
    stage.tell(inp.Revoked((P0,)))
    stage.tell(inp.Claimed(claim.request, (messages.ClaimGrant(granted=True, view=view(P0, token=9)),)))
    stage.none(act.StartPartitions)


# ---- rule 3: generations ---------------------------------------------------------------------------------------------


def test_records_polled_under_older_generation_are_dropped() -> None:
    stage = Stage()
    old = stage.own(P0)[P0]
    stage.tell(inp.Revoked((P0,)))
    stage.tell(inp.Assigned((P0,)))
    (new,) = stage.claim({P0: view(P0)})
    assert new.generation > old.generation
    stage.poll(old, range(5)).poll(new, range(2)).wait(1.0)
    (pending,) = stage.sealed()
    assert offsets_of(pending, P0) == [0, 1]
    assert stage.machine.counters["stale_polls_dropped"] == 1


def test_columns_that_begin_below_the_position_are_trimmed_and_repeated_ones_dropped() -> None:
    """INV-2: a source may begin earlier, within a batch of the broker."""
    stage = Stage()
    start = stage.own(P0, position=10)[P0]
    stage.poll(start, range(7, 13)).poll(start, range(8, 12)).poll(start, range(11, 15)).wait(1.0)
    (pending,) = stage.sealed()
    assert offsets_of(pending, P0) == [10, 11, 12, 13, 14]
    assert bounds(pending, P0) == (10, 15)


def test_gap_inside_a_range_is_part_of_it() -> None:
    """Offsets of compacted records and markers are inside ranges."""
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, [0, 1, 5, 9]).poll(start, [20, 21]).wait(1.0)
    (pending,) = stage.sealed()
    assert bounds(pending, P0) == (0, 22)
    stage.none(act.Inspect)


def test_gap_at_start_is_confirmed_by_second_read_from_same_position() -> None:
    """Rule 3: a record fetched for an older assignment would look like compaction."""
    stage = Stage()
    start = stage.own(P0, position=5)[P0]
    stage.poll(start, [8, 9])
    inspect = stage.one(act.Inspect)
    stage.poll(start, [10]).wait(1.0)
    assert stage.sealed() == []
    stage.tell(inp.Inspected(inspect.request, 0, 10, ""))
    (again,) = stage.one(act.StartPartitions).starts
    assert (again.offset, again.generation > start.generation) == (5, True)
    stage.poll(again, [8, 9]).wait(1.0)
    (pending,) = stage.sealed()
    assert bounds(pending, P0) == (5, 10)


def test_gap_that_second_read_does_not_show_is_ignored() -> None:
    stage = Stage()
    start = stage.own(P0, position=5)[P0]
    stage.poll(start, [8, 9])
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 0, 10, ""))
    (again,) = stage.one(act.StartPartitions).starts
    stage.poll(again, [5, 6, 8, 9]).wait(1.0)
    (pending,) = stage.sealed()
    assert offsets_of(pending, P0) == [5, 6, 8, 9]


def test_gap_at_start_where_log_begins_later_is_a_loss() -> None:
    """INV-5: records deleted by retention are never taken for compacted ones."""
    stage = Stage()
    start = stage.own(P0, position=5)[P0]
    stage.poll(start, [8, 9])
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 8, 10, ""))
    fault = stage.one(act.SendFault).message
    assert (fault.kind, fault.position, fault.low, fault.high) == ("out-of-range", 5, 8, 10)
    stage.none(act.StartPartitions)


def test_the_end_of_a_partition_moves_the_position_past_markers() -> None:
    """The range may hold no record. Without it the lag would never reach 0."""
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, [0, 1]).wait(1.0)
    stage.store(*stage.sealed())
    stage.answer()
    stage.tell(inp.Polled([EndOfPartition(P0, start.generation, 3)])).wait(1.0)
    (pending,) = stage.sealed()
    assert bounds(pending, P0) == (2, 3)
    assert pending.ranges[0].pieces == ()
    stage.tell(inp.Polled([EndOfPartition(P0, start.generation - 1, 9)])).wait(1.0)
    assert stage.sealed() == []


# ---- cutting ---------------------------------------------------------------------------------------------------------


def test_empty_intervals_make_no_block() -> None:
    stage = Stage()
    stage.own(P0)
    for _ in range(5):
        stage.wait(1.0)
    assert stage.sealed() == []


def test_a_block_is_cut_at_its_size_and_a_larger_record_is_a_block_of_its_own() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(5), 100).poll(start, range(5, 9), 100).poll(start, range(9, 12), 100)
    stage.poll(start, [12], 5000).poll(start, [13], 100).wait(1.0)
    pending_blocks = stage.sealed()
    assert [bounds(pending, P0) for pending in pending_blocks] == [(0, 9), (9, 12), (12, 13), (13, 14)]
    assert [pending.sequence for pending in pending_blocks] == [1, 2, 3, 4]


def test_the_gap_before_a_position_is_named_by_the_first_range_after_it_only() -> None:
    stage = Stage()
    gap = Gap(3, 10, "aged out")
    start = stage.own(P0, position=10, preceding_gap=gap)[P0]
    stage.poll(start, [10, 11]).wait(1.0)
    stage.poll(start, [12]).wait(1.0)
    first, second = stage.sealed()
    assert first.ranges[0].preceding_gap == gap
    assert second.ranges[0].preceding_gap is None


# ---- rule 4: report --------------------------------------------------------------------------------------------------


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


# ---- rule 6: revoked and lost ----------------------------------------------------------------------------------------


def test_revoked_partitions_are_sealed_stored_and_reported_before_they_are_released() -> None:
    stage = Stage()
    starts = stage.own(P0, P1)
    stage.poll(starts[P0], range(3)).poll(starts[P1], range(2))
    stage.tell(inp.Revoked((P0,)))
    (pending,) = stage.sealed()
    stage.none(act.RevocationDone)
    stage.store(pending)
    stage.none(act.RevocationDone)
    stage.answer()
    assert set(stage.one(act.CommitAsync).positions) == {P0, P1}
    assert stage.one(act.RevocationDone).partitions == (P0,)
    release = stage.one(act.Release).message.releases
    assert [(r.partition, r.token) for r in release] == [(0, pending.ranges[0].token)]
    stage.poll(starts[P1], [2]).poll(starts[P0], [3]).wait(1.0)  # the other partitions go on
    (pending,) = stage.sealed()
    assert [part.tp for part in pending.ranges] == [P1]


def test_revocation_ends_at_deadline_and_late_block_only_makes_other_partitions_claim_again() -> None:
    stage = Stage()
    starts = stage.own(P0, P1)
    stage.poll(starts[P0], range(3)).poll(starts[P1], range(2)).tell(inp.Revoked((P0,)))
    (pending,) = stage.sealed()
    stage.wait(19.0)
    stage.none(act.RevocationDone)
    stage.wait(1.0)
    stage.one(act.RevocationDone)
    stage.store(pending).answer(refused={1: [P0]})
    stage.wait(0.5)
    (again,) = stage.claim({P1: view(P1, 0, 30)})
    assert again.offset == 2


def test_partitions_never_assigned_do_not_delay_a_revocation() -> None:
    stage = Stage()
    stage.own(P0)
    stage.tell(inp.Revoked((P2,)))
    stage.one(act.RevocationDone)


def test_lost_partitions_are_dropped_and_others_kept() -> None:
    stage = Stage()
    starts = stage.own(P0, P1)
    stage.poll(starts[P0], range(3)).poll(starts[P1], range(2)).tell(inp.Lost((P0,)))
    stage.wait(1.0)
    (pending,) = stage.sealed()
    assert [part.tp for part in pending.ranges] == [P1]
    stage.none(act.Release)


# ---- rule 7: driver out of reach, no space, memory -------------------------------------------------------------------


def test_while_the_driver_is_out_of_reach_polling_is_paused_and_blocks_are_kept() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3))
    stage.seal_and_store()
    held = stage.machine.buffered_bytes
    for _ in range(4):
        stage.tell(inp.DriverFailed(stage.one(act.Report).request, "connection refused"))
        while not any(isinstance(action, act.Report) for action in stage.actions):
            stage.wait(0.5)
    assert [action.partitions for action in stage.all(act.Pause)] == [(P0,)]
    assert (stage.machine.state, stage.machine.buffered_bytes) == ("waiting", held)
    assert "connection refused" in stage.machine.detail
    stage.answer()
    assert stage.one(act.Resume).partitions == (P0,)
    assert stage.machine.state == "active"
    stage.none(act.Exit)


def test_full_memory_stops_polls_and_does_not_pause_at_first() -> None:
    """INV-6. A pause would make the client drop what it has fetched."""
    stage = Stage(memory=Size(4000))
    starts = stage.own(P0, P1)
    for first in range(0, 40, 10):
        stage.poll(starts[P0], range(first, first + 10), 100)
    assert stage.machine.buffered_bytes >= 4000
    assert stage.machine.poll_records_max(stage.now) == 0
    stage.wait(PAUSE_SECONDS - 0.1).store(stage.sealed()[0]).answer()
    assert stage.machine.buffered_bytes < 4000
    assert stage.machine.poll_records_max(stage.now) > 0
    stage.poll(starts[P0], range(40, 60), 100)
    assert stage.machine.buffered_bytes >= 4000
    stage.wait(PAUSE_SECONDS - 0.1)  # counted anew
    stage.none(act.Pause)


def test_memory_that_stays_full_pauses_all_partitions_until_half_of_it_is_free() -> None:
    """INV-6. Polling goes on, because the group removes a member that does not poll."""
    stage = Stage(memory=Size(4000))
    starts = stage.own(P0, P1)
    for first in range(0, 40, 10):
        stage.poll(starts[P0], range(first, first + 10), 100)
    stage.wait(PAUSE_SECONDS)
    assert set(stage.one(act.Pause).partitions) == {P0, P1}
    assert stage.machine.poll_records_max(stage.now) == 1
    assert stage.machine.detail == "memory is full, polling is paused"
    pending_blocks = stage.sealed()
    stage.store(pending_blocks[0]).answer()
    stage.none(act.Resume)
    stage.store(*pending_blocks[1:]).answer()  # the second block, whose report left before the others were stored
    stage.none(act.Resume)
    stage.answer()
    assert set(stage.one(act.Resume).partitions) == {P0, P1}


def test_lack_of_space_is_waited_out_and_failed_store_ends_the_process() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3)).wait(1.0)
    (pending,) = stage.sealed()
    stage.tell(inp.OutOfSpace("0 bytes are free"))
    assert (stage.machine.state, stage.one(act.Pause).partitions) == ("waiting", (P0,))
    assert "0 bytes are free" in stage.machine.detail
    stage.none(act.Exit)
    stage.store(pending)
    assert (stage.machine.state, stage.one(act.Resume).partitions) == ("active", (P0,))
    stage.tell(inp.StoreFailed("the WAL failed for 30 s"))
    ended = stage.one(act.Exit)
    assert (ended.code, ended.reason) == (1, "the WAL failed for 30 s")


def test_receiver_pauses_and_shows_the_reason_while_store_is_away() -> None:
    """Rule 7, INV-6."""
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3)).wait(1.0)
    (pending,) = stage.sealed()
    stage.tell(inp.StoreAway("HTTP 503, SlowDown"))
    assert (stage.machine.state, stage.one(act.Pause).partitions) == ("waiting", (P0,))
    assert "HTTP 503, SlowDown" in stage.machine.detail
    stage.tell(inp.StoreAway("no answer within 10 s"))
    assert "no answer within 10 s" in stage.machine.detail
    stage.none(act.Exit)
    stage.store(pending)
    assert (stage.machine.state, stage.machine.detail) == ("active", "")
    assert stage.one(act.Resume).partitions == (P0,)


def test_stores_that_hang_end_the_process_and_stores_without_space_do_not() -> None:
    """INV-6: the wait for a store that reports nothing has a limit."""
    stage = Stage(store_timeout=Duration(3.0))
    start = stage.own(P0)[P0]
    stage.poll(start, range(3)).wait(1.0)
    stage.wait(5.0)
    stage.tell(inp.OutOfSpace("0 bytes are free")).wait(100.0)
    stage.none(act.Exit)
    (pending,) = stage.sealed()
    stage.store(pending)
    stage.poll(start, range(3, 6)).wait(1.0)
    stage.wait(5.9)
    stage.none(act.Exit)
    stage.wait(0.2)
    ended = stage.one(act.Exit)
    assert ended.code == 1
    assert "hangs: no result" in ended.reason


def test_omitted_local_copy_is_counted() -> None:
    from tests.receiver.stage import stored

    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3)).wait(1.0)
    (pending,) = stage.sealed()
    stage.tell(inp.BlockStored(pending.sequence, stored(pending, local=False)))
    assert stage.machine.counters["local_copies_given_up"] == 1
    stage.answer()


# ---- rule 8: faults --------------------------------------------------------------------------------------------------


def test_fault_pauses_its_partition_alone_and_is_reported_when_all_before_it_is_accepted() -> None:
    """The report names the durable position."""
    stage = Stage()
    starts = stage.own(P0, P1)
    stage.poll(starts[P0], range(3))
    stage.tell(inp.Polled([PartitionFault(P0, starts[P0].generation, "out-of-range", "x")]))
    assert stage.one(act.Pause).partitions == (P0,)
    stage.seal_and_store()
    stage.none(act.Inspect)
    stage.answer()
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 10, 20, ""))
    told = stage.one(act.SendFault)
    assert (told.message.kind, told.message.position, told.message.low) == ("out-of-range", 3, 10)
    stage.poll(starts[P1], [0])
    stage.seal_and_store()
    stage.answer()  # the other one goes on
    stage.tell(inp.FaultAnswered(told.request, False, "`forebay offsets accept-gap t/0 3 10` goes on"))
    stage.wait(1.0)
    stage.none(act.Inspect)
    stage.wait(4.0)
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 10, 20, ""))
    stage.tell(inp.FaultAnswered(stage.one(act.SendFault).request, True, "recorded"))
    (again,) = stage.claim({P0: view(P0, 10, 20)})
    assert again.offset == 10


def test_out_of_range_error_that_no_longer_holds_is_not_reported_to_the_driver() -> None:
    stage = Stage()
    start = stage.own(P0, position=5)[P0]
    stage.tell(inp.Polled([PartitionFault(P0, start.generation, "out-of-range", "x")]))
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 0, 9, ""))
    stage.none(act.SendFault)
    stage.wait(0.5)
    (again,) = stage.claim({P0: view(P0, 5, 20)})
    assert again.offset == 5


def test_report_of_truncated_and_regrown_log_names_where_it_was_truncated() -> None:
    """INV-5: records between the truncation and the position are new. Otherwise they would be skipped."""
    stage = Stage()
    start = stage.own(P0, position=100)[P0]
    stage.tell(inp.Polled([PartitionFault(P0, start.generation, "truncated", "cut", 80)]))
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 0, 120, ""))
    told = stage.one(act.SendFault).message
    assert (told.kind, told.position, told.high) == ("truncated", 100, 80)


def test_fault_after_new_claim_ignores_where_the_log_was_truncated_before() -> None:
    """INV-5: the driver would take records that Kafka aged out for another truncation, and begin an incarnation below them."""
    stage = Stage()
    start = stage.own(P0, position=100)[P0]
    stage.tell(inp.Polled([PartitionFault(P0, start.generation, "truncated", "cut", 80)]))
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 0, 120, ""))
    stage.tell(inp.FaultAnswered(stage.one(act.SendFault).request, True, "recorded"))
    (again,) = stage.claim({P0: view(P0, 90, 20, incarnation=2)})
    stage.poll(again, [150])
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 150, 200, ""))
    reported = stage.one(act.SendFault).message
    assert (reported.kind, reported.position, reported.high) == ("out-of-range", 90, 200)


def test_corrupt_batch_is_reported_and_never_skipped() -> None:
    stage = Stage()
    start = stage.own(P0, position=5)[P0]
    stage.tell(inp.Polled([PartitionFault(P0, start.generation, "corrupt", "CRC"), columns(P0, start.generation, [9])]))
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 0, 9, ""))
    assert stage.one(act.SendFault).message.kind == "corrupt"
    stage.wait(1.0)
    assert stage.sealed() == []


def test_topic_ids_are_read_after_the_last_poll_of_a_block_and_before_its_report() -> None:
    stage = Stage()
    start = stage.own(P0, topic_id="A")[P0]
    stage.poll(start, range(3)).wait(1.0)
    check = stage.one(act.CheckTopicIds)
    (pending,) = stage.sealed()
    stage.store(pending)
    stage.none(act.Report)
    stage.poll(start, [3])
    stage.seal_and_store()
    stage.tell(inp.TopicIdsRead(check.request, {"t": "A"}))
    assert [block.meta.sequence for block in stage.one(act.Report).message.blocks] == [1]  # the second was polled later
    stage.tell(inp.BrokerFailed(stage.one(act.CheckTopicIds).request, "no answer"))
    assert "no answer" in stage.machine.detail, "the status shows why blocks wait (INV-5)"
    stage.wait(0.5)
    stage.one(act.CheckTopicIds)


def test_a_broker_that_cannot_tell_topic_ids_is_not_asked() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3))
    stage.seal_and_store()
    stage.none(act.CheckTopicIds)
    stage.one(act.Report)


def test_blocks_of_a_recreated_topic_are_never_reported() -> None:
    """Their records may be of either topic, so the blocks stay orphans (rule 8)."""
    other = type(P0)("u", 0)
    stage = Stage().register()
    stage.tell(inp.Assigned((P0, other)))
    starts = {s.tp: s for s in stage.claim({P0: view(P0, topic_id="A"), other: view(other, topic_id="U")})}
    stage.poll(starts[P0], range(3)).poll(starts[other], range(2))
    stage.seal_and_store()
    stage.tell(inp.TopicIdsRead(stage.one(act.CheckTopicIds).request, {"t": "B", "u": "U"}))
    stage.none(act.Report)
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 0, 3, "B"))
    fault = stage.one(act.SendFault).message
    assert (fault.kind, fault.position, fault.topic_id) == ("recreated", 0, "B")
    stage.wait(0.5)
    (again,) = stage.claim({other: view(other, 0, 30, topic_id="U")})
    assert (again.tp, again.offset) == (other, 2)  # cut again from memory under a new token


# ---- rule 9: commands ------------------------------------------------------------------------------------------------


def _beat(stage: Stage, driver_epoch: int, *commands: messages.Command) -> act.Heartbeat:
    stage.wait(5.0)
    beat = stage.all(act.Heartbeat)[-1]
    stage.tell(inp.HeartbeatAnswered(beat.request, driver_epoch, commands))
    return beat


def test_command_is_performed_once_and_acknowledged() -> None:
    stage = Stage()
    stage.own(P0)
    order = messages.Command(version=4, driver_epoch=2, kind="reclaim", partitions=(P0,))
    stage.machine._parts.contact.epoch = 2
    _beat(stage, 2, order)
    stage.claim({P0: view(P0, 0, 20)})
    assert stage.all(act.Heartbeat)[-1].message.acknowledged == 4
    stage.tell(inp.HeartbeatAnswered(stage.machine._parts.requests.last, 2, (order,)))
    stage.none(act.Lookup)


def test_replicas_go_to_host_that_the_driver_names_also_after_its_name_changed() -> None:
    """A block is reported with the host's name, and the agent of the host accepts copies under that name only."""
    stage = Stage()
    stage.own(P0)
    for second in ("h2", "h2", "h2-renamed"):
        stage.wait(5.0)
        beat = stage.all(act.Heartbeat)[-1]
        named = messages.ReplicaHost(host=second, url="http://h2:1")
        stage.tell(inp.HeartbeatAnswered(beat.request, numbered(1, 1), (), named))
    assert [action.host.host for action in stage.all(act.ReplicateTo)] == ["h2", "h2-renamed"]


def test_an_older_drivers_commands_are_refused() -> None:
    """INV-4."""
    stage = Stage()
    stage.own(P0)
    new, old = numbered(1, 3), numbered(1, 2)
    _beat(stage, new)
    _beat(stage, new, messages.Command(version=9, driver_epoch=old, kind="stop"))
    assert stage.machine.state != "draining"
    assert stage.machine.counters["commands_refused"] == 1


# ---- draining --------------------------------------------------------------------------------------------------------


def test_drain_seals_stores_reports_commits_releases_and_exits_with_0() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3)).tell(inp.DrainRequested())
    assert stage.machine.state == "draining"
    stage.poll(start, [3])  # too late: Kafka still has it
    (pending,) = stage.sealed()
    assert offsets_of(pending, P0) == [0, 1, 2]
    stage.none(act.CommitSync)
    stage.store(pending).answer()
    stage.all(act.CommitAsync)
    commit = stage.one(act.CommitSync)
    assert commit.positions[P0].offset == 3
    stage.none(act.Release)
    stage.tell(inp.CommitSynced(commit.request, {}))
    release = stage.one(act.Release)
    stage.none(act.Exit)
    stage.tell(inp.Released(release.request))
    assert stage.one(act.Exit).code == 0


def test_process_exits_with_1_after_drain_timeout_and_names_what_is_left() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3)).tell(inp.DrainRequested()).store(*stage.sealed())
    stage.wait(20.0)
    ended = stage.one(act.Exit)
    assert ended.code == 1
    assert "1 blocks not reported" in ended.reason


def test_a_refusal_while_draining_is_claimed_and_cut_again_but_nothing_more_is_read() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3)).tell(inp.DrainRequested()).store(*stage.sealed())
    stage.answer(refused={1: [P0]})
    stage.none(act.Release)
    stage.wait(0.5)
    assert stage.claim({P0: view(P0, 1, 30)}) == []
    (pending,) = stage.sealed()
    assert offsets_of(pending, P0) == [1, 2]
    stage.store(pending).answer()
    stage.tell(inp.CommitSynced(stage.one(act.CommitSync).request, {}))
    stage.tell(inp.Released(stage.one(act.Release).request))
    assert stage.one(act.Exit).code == 0


def test_receiver_restarted_by_the_driver_drains_and_exits_with_6() -> None:
    """Its supervisor starts it again."""
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3))
    order = messages.Command(version=1, driver_epoch=numbered(1, 1), kind="restart")
    _beat(stage, numbered(1, 1), order)
    assert stage.machine.state == "draining"
    (pending,) = stage.sealed()
    stage.store(pending).answer()
    stage.tell(inp.CommitSynced(stage.one(act.CommitSync).request, {}))
    stage.tell(inp.Released(stage.one(act.Release).request))
    assert stage.one(act.Exit).code == 6


def test_restart_of_a_receiver_that_drains_already_does_not_start_it_again() -> None:
    stage = Stage()
    stage.own(P0)
    stage.tell(inp.DrainRequested())
    _beat(stage, numbered(1, 1), messages.Command(version=1, driver_epoch=numbered(1, 1), kind="restart"))
    stage.tell(inp.CommitSynced(stage.one(act.CommitSync).request, {}))
    stage.tell(inp.Released(stage.one(act.Release).request))
    assert stage.one(act.Exit).code == 0


def test_a_stop_ends_without_reporting_what_is_open() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    stage.poll(start, range(3)).seal_and_store()
    _beat(stage, numbered(1, 1), messages.Command(version=1, driver_epoch=numbered(1, 1), kind="stop"))
    stage.tell(inp.CommitSynced(stage.one(act.CommitSync).request, {}))
    stage.tell(inp.Released(stage.one(act.Release).request))
    assert stage.one(act.Exit).code == 0


def test_reclaim_delay_setting_sets_the_delay() -> None:
    stage = Stage(reclaim_delay=Duration(3.0)).register()
    stage.tell(inp.Assigned((P0,)))
    stage.tell(inp.LookupAnswered(stage.one(act.Lookup).request, ()))
    stage.wait(2.9)
    stage.none(act.Lookup)
    stage.wait(0.2)
    stage.one(act.Lookup)


# ---- tokens under which a block may still be written (rule 8: a gap waits for them) ----


def _holds(stage: Stage) -> tuple[int, set[tuple[TopicPartition, int]]]:
    """Return the finished claims and held tokens that a heartbeat sent now names."""
    for beat in stage.all(act.Heartbeat):
        stage.tell(inp.HeartbeatAnswered(beat.request, numbered(1, 1), ()))
    message = _beat(stage, numbered(1, 1)).message
    return message.claims_done, {(TopicPartition(h.topic, h.partition), h.token) for h in message.holding}


def test_a_token_is_held_while_its_partition_takes_in_and_while_the_store_has_a_block_of_it() -> None:
    """This holds after the partition is lost too: the block may become durable long after that."""
    stage = Stage(block_interval=Duration(1.0))
    start = stage.own(P0)[P0]
    token = stage.tokens
    assert _holds(stage) == (1, {(P0, token)})
    stage.poll(start, range(3)).wait(1.0)
    (pending,) = stage.sealed()
    stage.tell(inp.Lost((P0,)))
    assert _holds(stage) == (1, {(P0, token)})
    stage.store(pending)
    assert _holds(stage) == (1, set())


def test_a_block_that_was_refused_is_held_until_the_store_has_written_it() -> None:
    """The store still writes a withdrawn block."""
    stage = Stage(block_interval=Duration(1.0), block_size=Size(40))
    start = stage.own(P0)[P0]
    token = stage.tokens
    stage.poll(start, range(3)).wait(1.0)
    stage.store(*stage.sealed())
    stage.poll(start, range(3, 6)).wait(1.0)
    (second,) = stage.sealed()
    stage.answer(refused={1: [P0]})
    assert (P0, token) in _holds(stage)[1]
    stage.store(second)
    assert (P0, token) not in _holds(stage)[1]


def test_token_of_partition_with_fault_is_not_held_and_next_heartbeat_is_immediate() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    _holds(stage)
    for beat in stage.all(act.Heartbeat):
        stage.tell(inp.HeartbeatAnswered(beat.request, numbered(1, 1), ()))
    stage.none(act.Heartbeat)
    stage.tell(inp.Polled([PartitionFault(P0, start.generation, "out-of-range", "gone")]))
    stage.tell(inp.Inspected(stage.one(act.Inspect).request, 5, 9, ""))
    assert stage.one(act.SendFault).message.position == 0
    assert stage.one(act.Heartbeat).message.holding == ()


def test_claim_is_done_when_answered_or_considered_lost() -> None:
    """While the answer is on its way, the receiver does not know the token, so it cannot name it as held."""
    stage = Stage().register()
    stage.tell(inp.Assigned((P0,)))
    stage.tell(inp.LookupAnswered(stage.one(act.Lookup).request, (view(P0),)))
    stage.tell(inp.CommitSynced(stage.one(act.CommitSync).request, {}))
    claim = stage.one(act.Claim)
    assert claim.message.number == 1
    assert _holds(stage) == (0, set())
    stage.tell(inp.DriverFailed(claim.request, "no answer in time"))
    assert _holds(stage) == (1, set())
    late = messages.ClaimGrant(granted=True, view=view(P0, token=99))
    stage.tell(inp.Claimed(claim.request, (late,)))
    assert (P0, 99) not in _holds(stage)[1]


def test_a_partition_is_not_released_while_the_store_has_a_block_of_it() -> None:
    """A release says that nothing is written under the token any more (INV-2)."""
    stage = Stage(block_interval=Duration(1.0), drain_timeout=Duration(3.0))
    start = stage.own(P0)[P0]
    stage.poll(start, range(3))
    stage.tell(inp.Revoked((P0,)))
    stage.wait(3.0)
    assert stage.one(act.RevocationDone).partitions == (P0,)
    stage.none(act.Release)


def test_blocks_whose_topic_ids_were_read_are_marked_checked() -> None:
    stage = Stage(block_interval=Duration(1.0))
    start = stage.own(P0, topic_id="id")[P0]
    stage.poll(start, range(3)).wait(1.0)
    stage.tell(inp.TopicIdsRead(stage.one(act.CheckTopicIds).request, {"t": "id"}))
    assert stage.one(act.TopicsChecked).sequences == (1,)


def test_blocks_of_recreated_topic_are_not_marked_checked() -> None:
    """They may hold records of the new topic under the old incarnation."""
    stage = Stage(block_interval=Duration(1.0))
    start = stage.own(P0, topic_id="id")[P0]
    stage.poll(start, range(3)).wait(1.0)
    stage.tell(inp.TopicIdsRead(stage.one(act.CheckTopicIds).request, {"t": "other"}))
    stage.none(act.TopicsChecked)


def test_poll_that_hangs_stops_heartbeats_whatever_other_threads_do() -> None:
    """The driver notices it by the missing heartbeats. Stores and answers go on."""
    stage = Stage(heartbeat_interval=Duration(1.0))
    stage.own(P0)
    stage.tell(inp.HeartbeatAnswered(stage.one(act.Heartbeat).request, numbered(1, 1), ()))
    stage.now += POLL_PATIENCE_SECONDS + 1
    stage.tell(inp.StoreAway("the store is away"))
    stage.none(act.Heartbeat)
    stage.tell(inp.Tick())
    stage.one(act.Heartbeat)


def test_heartbeat_has_the_last_few_errors_that_did_not_end_the_process() -> None:
    stage = Stage(heartbeat_interval=Duration(1.0))
    stage.own(P0)
    stage.tell(inp.HeartbeatAnswered(stage.one(act.Heartbeat).request, numbered(1, 1), ()))
    for number in range(ERRORS_MAX + 3):
        stage.tell(inp.SourceSeen({}, f"broker {number} is away" + "!" * ERROR_WORDS_MAX))
    stage.tell(inp.SourceSeen({}, "again"))
    stage.tell(inp.SourceSeen({}, ""))
    stage.tell(inp.SourceSeen({}, "again"))
    errors = stage.wait(2.0).one(act.Heartbeat).message.errors
    assert len(errors) == ERRORS_MAX
    assert all(len(error.words) <= ERROR_WORDS_MAX for error in errors)
    assert (errors[-1].words, errors[-1].count, errors[-1].seconds_ago) == ("Kafka: again", 2, 2.0)


def test_heartbeats_tell_how_long_records_wait_for_the_seal_and_for_the_store() -> None:
    """So the driver's first view shows where records wait, and how long a write takes."""
    stage = Stage(block_interval=Duration(1.0), heartbeat_interval=Duration(0.25))
    start = stage.own(P0)[P0]

    def beat(seconds: float) -> tuple[float, int, float, int, float]:
        """Return what the heartbeat after ``seconds`` tells. The one before is answered only then."""
        before = stage.one(act.Heartbeat)
        stage.now += seconds
        stage.tell(inp.HeartbeatAnswered(before.request, numbered(1, 1), ()))
        (sent,) = (action for action in stage.actions if isinstance(action, act.Heartbeat))
        message = sent.message
        storing = message.storing_seconds, message.storing_records
        return message.open_seconds, message.open_records, *storing, message.store_seconds

    assert beat(0.25) == (0, 0, 0, 0, 0)
    stage.poll(start, range(10))
    assert beat(0.5) == (0.5, 10, 0, 0, 0)
    stage.wait(0.5)
    (first,) = stage.sealed()
    stage.poll(start, range(10, 30))
    assert beat(0.75) == (0.75, 20, 0.75, 10, 0)
    stage.store(first)
    assert beat(0.25) == (0, 0, 0, 20, 0.75), "the second block is sealed now"


def test_heartbeat_of_a_block_that_skips_nearly_all_offsets_has_a_number_that_the_driver_accepts() -> None:
    """A custom source may number by nanoseconds."""
    stage = Stage(heartbeat_interval=Duration(0.25))
    stage.poll(stage.own(P0)[P0], [0, NUMBER_MAX + 7])
    before = stage.one(act.Heartbeat)
    stage.wait(1.0)
    assert stage.sealed()
    stage.tell(inp.HeartbeatAnswered(before.request, numbered(1, 1), ())).wait(0.25)
    message = stage.one(act.Heartbeat).message
    assert message.storing_records == NUMBER_MAX
    msgspec.json.decode(msgspec.json.encode(message), type=type(message))
