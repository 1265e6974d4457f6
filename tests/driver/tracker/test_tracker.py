"""The tracker's decisions, rule by rule ("The rules" in docs/architecture/ownership.md)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from driver.decisions.clean_up import CleanSegment, is_stray
from driver.decisions.receiver_lifecycle import ManagedReceivers, ManagedRules
from driver.journal import events as ev
from driver.journal.state import State
from driver.journal.transitions import apply
from driver.tracker.requests import (
    Allocate,
    BeginDrain,
    CleanedUp,
    CleanLocalCopies,
    Complete,
    Copied,
    FoundPartitions,
    PlaceReceivers,
)
from forebay import messages as m
from forebay.model.errors import FencedError, RefusedError, UsageError
from forebay.model.values import BlockMeta, numbered
from tests.support.shown import shown
from tests.support.tracked import STREAM, TOPIC, Tracked, offsets, tp
from wal.decisions.retention import FrameFacts, SegmentFacts


def fault(epoch: int, token: int, **changes: object) -> m.Fault:
    values: dict[str, object] = {
        "receiver_id": "r1",
        "epoch": epoch,
        "topic": TOPIC,
        "partition": 0,
        "token": token,
        "kind": "out-of-range",
        "position": 0,
        "low": 40,
        "high": 90,
    }
    return m.Fault(**{**values, **changes})  # type: ignore[arg-type]


# ---- rule 1: register ------------------------------------------------------------------------------------------------


def test_the_same_instance_gets_the_same_epoch_again() -> None:
    t = Tracked()
    assert t.register() == t.register()


def test_a_new_instance_gets_a_new_epoch_and_ends_the_claims_of_the_older_one() -> None:
    """INV-4: the older process learns that it is superseded by whatever it does next."""
    t = Tracked()
    old = t.register()
    grant = t.claim(old)
    new = t.register(instance="i2")
    assert new > old
    assert t.state.partitions["t/0"].owner == ""
    with pytest.raises(FencedError, match="registered again"):
        t.report(old, t.block(old, [offsets(0, 5, grant.view.token)]))
    (result,) = t.report(new, t.block(new, [offsets(0, 5, grant.view.token)]))
    assert [s.reason for s in result.stale] == ["token"]
    assert t.state.partitions["t/0"].position == 0


def test_a_superseded_instance_that_registers_again_does_not_supersede_its_successor() -> None:
    """INV-4: its request was late, or it slept."""
    t = Tracked()
    t.register(instance="i1")
    new = t.register(instance="i2")
    with pytest.raises(FencedError, match="has registered"):
        t.register(instance="i1")
    assert t.register(instance="i2") == new


def test_a_receiver_of_another_stream_is_refused() -> None:
    with pytest.raises(UsageError, match="leads stream 'flights'"):
        Tracked().say(m.RegisterRequest(stream="x", receiver_id="r1", host="h", instance_id="i", release="1"))


# ---- rule 2: claim ---------------------------------------------------------------------------------------------------


def test_a_claim_that_names_an_older_token_changes_nothing() -> None:
    """Compare-and-set: a claim sent before another receiver's claim comes too late, however late it is (INV-4)."""
    t = Tracked()
    first, second = t.register("r1"), t.register("r2", "i2")
    seen_by_first = t.look(first).token
    granted = t.claim(second, receiver="r2")
    late = t.claim(first, known=seen_by_first)
    assert granted.granted
    assert not late.granted
    assert late.view.token == granted.view.token
    assert t.state.partitions["t/0"].owner == "r2"


def test_a_repeated_claim_is_refused_by_its_own_token_and_can_be_looked_up_again() -> None:
    t = Tracked()
    epoch = t.register()
    first = t.claim(epoch, known=0)
    again = t.claim(epoch, known=0)
    assert first.granted
    assert not again.granted
    assert t.claim(epoch).granted


def test_partition_without_an_incarnation_can_be_looked_up_but_not_claimed() -> None:
    t = Tracked(partitions=1)
    epoch = t.register()
    assert not t.look(epoch, 9).known
    assert not t.claim(epoch, 9, known=0).granted
    assert "t/9" not in t.state.partitions


def test_a_release_of_an_older_token_changes_nothing() -> None:
    t = Tracked()
    epoch = t.register()
    old = t.claim(epoch).view.token
    new = t.claim(epoch).view.token
    t.say(m.ReleaseRequest(receiver_id="r1", epoch=epoch, releases=(m.Release(topic=TOPIC, partition=0, token=old),)))
    assert t.state.partitions["t/0"].owner == "r1"
    t.say(m.ReleaseRequest(receiver_id="r1", epoch=epoch, releases=(m.Release(topic=TOPIC, partition=0, token=new),)))
    assert t.state.partitions["t/0"].owner == ""


# ---- rule 4: report --------------------------------------------------------------------------------------------------


def test_a_block_that_continues_the_position_is_accepted_and_moves_it() -> None:
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 10)
    t.take_in(epoch, token, 25)
    assert t.state.partitions["t/0"].position == 25
    assert len(t.state.waiting) == 2


def test_a_repeated_block_id_gets_the_same_answer_and_is_taken_once() -> None:
    """INV-2: the answer was lost, and the receiver reports again."""
    t = Tracked()
    epoch = t.register()
    block = t.take_in(epoch, t.claim(epoch).view.token, 10)
    before = len(t.events)
    assert t.report(epoch, block)[0].accepted
    assert len(t.events) == before


@pytest.mark.parametrize(("start", "until"), [(5, 15), (11, 20), (0, 10)])
def test_a_range_that_overlaps_or_leaves_a_hole_is_refused_with_the_position(start: int, until: int) -> None:
    """INV-2."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 10)
    (result,) = t.report(epoch, t.block(epoch, [offsets(start, until, token)]))
    assert not result.accepted
    assert [(s.reason, s.position) for s in result.stale] == [("position", 10)]
    assert t.state.partitions["t/0"].position == 10


def test_one_stale_range_refuses_the_whole_block_and_names_only_that_range() -> None:
    t = Tracked()
    epoch = t.register()
    first, second = t.claim(epoch, 0).view.token, t.claim(epoch, 1).view.token
    t.claim(epoch, 1)
    (result,) = t.report(epoch, t.block(epoch, [offsets(0, 5, first, 0), offsets(0, 5, second, 1)]))
    assert [(s.partition, s.reason) for s in result.stale] == [(1, "token")]
    assert t.state.partitions["t/0"].position == 0


def test_blocks_after_a_refused_one_are_refused_where_they_need_it_and_accepted_where_not() -> None:
    t = Tracked()
    epoch = t.register()
    first, second = t.claim(epoch, 0).view.token, t.claim(epoch, 1).view.token
    refused = t.block(epoch, [offsets(3, 5, first, 0)])
    follows = t.block(epoch, [offsets(5, 8, first, 0)])
    apart = t.block(epoch, [offsets(0, 4, second, 1)])
    assert [r.accepted for r in t.report(epoch, refused, follows, apart)] == [False, False, True]


def test_block_of_another_receiver_is_bad_input() -> None:
    t = Tracked()
    epoch = t.register()
    other = t.block(epoch, [offsets(0, 5, 1)], receiver="r2")
    with pytest.raises(UsageError):
        t.report(epoch, other)


def test_report_with_a_block_of_another_receiver_takes_in_none_of_its_blocks() -> None:
    """INV-7: a refusal leaves no event behind, or the state would be ahead of the journal for ever."""
    t = Tracked()
    epoch, other = t.register("r1"), t.register("r2", "i2")
    grant = t.claim(epoch)
    own = t.block(epoch, [offsets(0, 5, grant.view.token)])
    foreign = t.block(other, [offsets(0, 5, grant.view.token, partition=1)], receiver="r2")
    with pytest.raises(UsageError, match="was not written by receiver"):
        t.report(epoch, own, foreign)
    assert t.state.partitions["t/0"].position == 0
    assert t.state.events == len(t.events)


def test_block_that_names_another_host_than_its_receivers_is_refused() -> None:
    """So tasks ask for blocks on hosts that registered, and on no host of a receiver's choice."""
    t = Tracked()
    epoch = t.register(host="h1")
    block = t.block(epoch, [offsets(0, 5, t.claim(epoch).view.token)], local=True)
    forged = msgspec.structs.replace(block, meta=msgspec.structs.replace(block.meta, host="h2"))
    with pytest.raises(UsageError, match="names host 'h2', but its receiver registered on host 'h1'"):
        t.report(epoch, forged)
    assert t.state.partitions["t/0"].position == 0 and not t.state.blocks
    assert t.report(epoch, block)[0].accepted


@pytest.mark.parametrize(
    "request_",
    [
        m.RegisterRequest(stream=STREAM, receiver_id="a b", host="h", instance_id="i", release="1"),
        m.RegisterRequest(stream=STREAM, receiver_id="a", host="../h", instance_id="i", release="1"),
        m.AgentHeartbeatRequest(
            host="h h", url="http://h1:1", instance_id="i", acknowledged=0, blocks=0, used_bytes=0, free_bytes=0
        ),
    ],
)
def test_a_name_from_the_wire_that_can_be_none_is_bad_input_and_ends_nothing(request_: Any) -> None:
    with pytest.raises(UsageError, match="allowed are 1 to 64"):
        Tracked().say(request_)


@pytest.mark.parametrize("name", ["r1-10000000001-\u00b2", "r1-10000000001-" + "1" * 200, "r1-x-1", "/r1--1", ""])
def test_a_local_copy_with_a_name_that_no_block_has_is_left_alone(name: str) -> None:
    t = Tracked()
    t.register("r1")
    beat = m.AgentHeartbeatRequest(
        host="h1",
        url="http://h1:1",
        instance_id="i",
        acknowledged=0,
        blocks=1,
        used_bytes=0,
        free_bytes=0,
        old_blocks=(name,),
    )
    assert t.say(beat).commands == ()


def test_watermarks_that_are_no_offsets_are_bad_input() -> None:
    t = Tracked()
    epoch = t.register()
    grant = t.claim(epoch)
    with pytest.raises(UsageError, match="not valid offsets"):
        t.say(fault(epoch, grant.view.token, low=1 << 64))


def test_fault_that_passed_by_itself_is_no_longer_shown() -> None:
    t = Tracked()
    epoch = t.register()
    t.say(fault(epoch, t.claim(epoch).view.token))
    assert t.state.partitions["t/0"].fault is not None
    t.take_in(epoch, t.claim(epoch).view.token, 5)
    assert t.state.partitions["t/0"].fault is None


def test_block_of_an_ended_incarnation_is_refused_even_with_the_right_token_number() -> None:
    t = Tracked(on_gap="record")
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.say(fault(epoch, token, kind="recreated", topic_id="id-2", low=0))
    assert t.search_in_vain(epoch)
    (result,) = t.report(epoch, t.block(epoch, [offsets(0, 5, token)]))
    assert [s.reason for s in result.stale] == ["life"]


def test_a_handle_that_points_out_of_its_receivers_own_segments_is_bad_input() -> None:
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    for path in ("../../etc/passwd", f"{STREAM}/blocks/r2/{epoch:016x}/00000001.seg", f"{STREAM}/lineage-00000001"):
        with pytest.raises(UsageError, match="is not a segment of the receiver"):
            t.report(epoch, t.block(epoch, [offsets(0, 5, token)], path=path))
    assert t.state.partitions["t/0"].position == 0


def test_ranges_of_two_incarnations_have_different_labels() -> None:
    assert offsets(0, 5, 1).label == "t/0[0, 5)"
    assert offsets(0, 5, 1, incarnation=2).label == "t/0[0, 5) life 2"


# ---- rule 8: gaps and incarnations -----------------------------------------------------------------------------------


def test_with_stop_a_gap_waits_for_a_person_and_the_position_stays() -> None:
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    answer = t.say(fault(epoch, token))
    assert not answer.proceed
    assert "forebay offsets accept-gap t/0 0 40" in answer.message
    assert t.state.partitions["t/0"].position == 0
    assert t.search_in_vain(epoch)
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
    assert t.search_in_vain(epoch)
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
    assert t.search_in_vain(epoch)
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
        assert t.search_in_vain(epoch)
        assert t.state.partitions["t/0"].completed == 0
    t.complete(batch)
    if not gap_first:
        assert t.state.partitions["t/0"].completed == 10
        t.say(fault(epoch, token, position=10))
        assert t.search_in_vain(epoch)
    assert t.state.partitions["t/0"].completed == 40


def test_position_above_the_log_begins_a_new_incarnation_at_its_end() -> None:
    t = Tracked(on_gap="record")
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 100)
    t.say(fault(epoch, token, position=100, low=0, high=60))
    assert t.search_in_vain(epoch)
    partition = t.state.partitions["t/0"]
    assert (partition.incarnation.number, partition.position, partition.incarnations[0].end) == (2, 60, 100)


def test_a_corrupt_batch_is_never_skipped_without_a_person() -> None:
    """INV-5: whatever the policy."""
    t = Tracked(on_gap="record")
    epoch = t.register()
    token = t.claim(epoch).view.token
    assert not t.say(fault(epoch, token, kind="corrupt", low=0)).proceed
    assert t.search_in_vain(epoch)
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


# ---- batches ---------------------------------------------------------------------------------------------------------


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


# ---- clean-up (INV-8) ------------------------------------------------------------------------------------------------


def segment(t: Tracked, epoch: int, *metas: BlockMeta, sealed: bool = True, now_ms: int = 10_000) -> CleanSegment:
    path = f"{STREAM}/blocks/r1/{epoch:016x}/00000000.seg"
    frames = tuple(FrameFacts(meta.id, meta.ranges) for meta in metas)
    return CleanSegment(SegmentFacts(path, sealed, False, frames), "r1", epoch, now_ms)


def kept_because(t: Tracked, request: CleanSegment) -> str:
    decision = t.decide(request)
    assert not decision.events
    judged: Any = decision.answer
    return "; ".join(judged.reasons)


def test_a_segment_goes_only_when_every_block_in_it_is_completed_archived_and_past_the_horizon() -> None:
    t = Tracked(retention_ms=5_000)
    epoch = t.register()
    token = t.claim(epoch).view.token
    block = t.take_in(epoch, token, 5)
    assert "is needed" in kept_because(t, segment(t, epoch, block.meta))
    batch = t.batch()
    assert "is needed" in kept_because(t, segment(t, epoch, block.meta))
    t.complete(batch)
    assert "is needed" in kept_because(t, segment(t, epoch, block.meta))
    t.archive(batch)
    t.copy()
    assert "is needed" in kept_because(t, segment(t, epoch, block.meta, now_ms=5_999))
    decision = t.decide(segment(t, epoch, block.meta, now_ms=6_000))
    (action,) = decision.actions
    assert isinstance(decision.events[0], ev.CleanupIntended)
    assert block.id in t.state.blocks
    assert "has begun" in kept_because(t, segment(t, epoch, block.meta, now_ms=9_000))
    t.say(CleanedUp(action.number))
    assert block.id not in t.state.blocks
    assert not t.state.cleanups


def test_a_barrier_stays_as_long_as_it_says() -> None:
    """INV-2: what its writer sent could land where it was."""
    t = Tracked()
    epoch = t.register()
    path = f"{STREAM}/blocks/r1/{epoch:016x}/00000001.seg"
    t.register("r1", "i2")
    barrier = SegmentFacts(path, True, False, (), bars_until_ms=20_000)
    assert "barrier" in kept_because(t, CleanSegment(barrier, "r1", epoch, 19_999))
    assert t.decide(CleanSegment(barrier, "r1", epoch, 20_000)).actions


def test_a_segment_goes_only_when_the_last_two_snapshot_copies_both_call_its_blocks_released() -> None:
    """INV-8: a rebuild begins from either, and must find every block that the copy does not call released."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.copy()
    block = t.take_in(epoch, token, 5)
    batch = t.batch()
    t.complete(batch)
    before = t.state.events
    t.archive(batch)
    for said in (before, t.state.events, t.state.events + 1):
        assert "snapshot copies" in kept_because(t, segment(t, epoch, block.meta))
        t.say(Copied(said, f"{STREAM}/snapshots/{numbered(1, 1):016x}/00000001.seg"))
    assert t.decide(segment(t, epoch, block.meta)).actions


def test_segments_and_local_copies_of_an_older_timeline_have_no_writer() -> None:
    """INV-4: a rebuilt journal has forgotten the receivers; their epochs contain the timeline."""
    t = Tracked()
    t.state.timeline = 2
    old, new = numbered(1, 7), numbered(2, 7)
    assert "may still append" in kept_because(t, segment(t, new, sealed=False))
    assert t.decide(segment(t, old, sealed=False)).actions
    assert is_stray(t.state, f"r9-{old:x}-3")
    assert not is_stray(t.state, f"r9-{new:x}-3")


def test_an_open_segment_of_a_living_writer_is_kept_and_a_fenced_one_is_not() -> None:
    t = Tracked()
    epoch = t.register()
    block = t.take_in(epoch, t.claim(epoch).view.token, 5)
    batch = t.batch()
    t.complete(batch)
    t.archive(batch)
    t.copy()
    assert "may still append" in kept_because(t, segment(t, epoch, block.meta, sealed=False))
    t.register(instance="i2")
    assert t.decide(segment(t, epoch, block.meta, sealed=False)).actions


def test_an_orphan_is_kept_until_its_report_can_no_longer_be_accepted() -> None:
    """The rule behind it: deleted earlier, a late report would be accepted for bytes that were deleted."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    orphan = t.block(epoch, [offsets(0, 5, token)])
    elsewhere = f"{STREAM}/blocks/r1/{epoch:016x}/00000001.seg"
    assert "is before its end" in kept_because(t, segment(t, epoch, orphan.meta))
    t.take_in(epoch, token, 4, path=elsewhere)
    assert "is before its end" in kept_because(t, segment(t, epoch, orphan.meta))
    t.take_in(epoch, token, 5, path=elsewhere)
    assert t.decide(segment(t, epoch, orphan.meta)).actions


def test_a_block_written_twice_stays_in_both_places_until_it_is_released() -> None:
    """After a failed sync, or a recovery that was cut off before it journalled where the block is: the place that the journal
    names may be the damaged one."""
    t = Tracked()
    epoch = t.register()
    named = f"{STREAM}/blocks/r1/{epoch:016x}/00000001.seg"
    block = t.take_in(epoch, t.claim(epoch).view.token, 5, path=named)
    assert "is needed" in kept_because(t, segment(t, epoch, block.meta))
    batch = t.batch()
    assert "is needed" in kept_because(t, segment(t, epoch, block.meta))
    t.complete(batch)
    t.archive(batch)
    assert t.decide(segment(t, epoch, block.meta)).actions


def test_a_segment_in_which_the_scan_missed_a_named_block_is_kept() -> None:
    t = Tracked()
    epoch = t.register()
    t.take_in(epoch, t.claim(epoch).view.token, 5)
    batch = t.batch()
    t.complete(batch)
    t.archive(batch)
    assert "the scan did not find block" in kept_because(t, segment(t, epoch))


def test_orphan_of_an_ended_incarnation_is_deleted() -> None:
    t = Tracked(on_gap="record")
    epoch = t.register()
    token = t.claim(epoch).view.token
    orphan = t.block(epoch, [offsets(0, 5, token)])
    t.say(fault(epoch, token, kind="recreated", topic_id="id-2", low=0))
    assert t.search_in_vain(epoch)
    assert t.decide(segment(t, epoch, orphan.meta)).actions


def test_local_copies_are_deleted_when_their_batch_is_completed_and_the_agent_confirms() -> None:
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    block = t.take_in(epoch, token, 5, local=True)
    t.say(CleanLocalCopies())
    assert not t.state.cleanups
    batch = t.batch()
    t.complete(batch)
    t.say(CleanLocalCopies())

    def beat(acknowledged: int) -> tuple[m.Command, ...]:
        heartbeat = m.AgentHeartbeatRequest(
            host="h1", url="http://h1", instance_id="a", acknowledged=acknowledged, blocks=1, used_bytes=1, free_bytes=1
        )
        return t.say(heartbeat).commands  # type: ignore[no-any-return]

    (command,) = beat(0)
    assert command.blocks == (f"{STREAM}/{block.id}",)
    assert beat(0) == (command,)
    assert t.state.blocks[block.id].local
    assert beat(command.version) == ()
    assert not t.state.blocks[block.id].local


def test_only_local_copies_that_no_receiver_will_report_are_ordered_to_be_deleted() -> None:
    """A receiver killed between its local copy and its report leaves one at every crash."""
    t = Tracked()
    old = t.register()
    killed = t.block(old, [offsets(0, 5, 1)])
    epoch = t.register(instance="i2")
    token = t.claim(epoch).view.token
    accepted = t.take_in(epoch, token, 5)
    coming = t.block(epoch, [offsets(5, 9, token)])

    def beat(*blocks: str, acknowledged: int = 0) -> tuple[m.Command, ...]:
        heartbeat = m.AgentHeartbeatRequest(
            host="h1",
            url="http://h1",
            instance_id="a",
            acknowledged=acknowledged,
            blocks=1,
            used_bytes=1,
            free_bytes=1,
            old_blocks=blocks,
        )
        return t.say(heartbeat).commands  # type: ignore[no-any-return]

    (command,) = beat(killed.id, accepted.id, coming.id, "unknown-1-1", "no block id")
    assert command.blocks == (f"{STREAM}/{killed.id}",)
    assert beat(killed.id) == (command,)
    assert beat(acknowledged=command.version) == ()
    t.take_in(epoch, token, 12)
    (command,) = beat(accepted.id, coming.id)
    assert command.blocks == (f"{STREAM}/{coming.id}",), "a later block was accepted: this one was refused"


# ---- managed receivers -----------------------------------------------------------------------------------------------


def agent_says(host: str = "h1", *running: str) -> m.AgentHeartbeatRequest:
    return m.AgentHeartbeatRequest(
        host=host,
        url="http://a",
        instance_id="a",
        acknowledged=0,
        blocks=0,
        used_bytes=0,
        free_bytes=0,
        capacity=2,
        labels=("rack=a",),
        receivers=tuple(
            m.ReceiverProcess(receiver_id=name, driver_epoch=numbered(1, 1), version=1, running=True, pid=7)
            for name in running
        ),
    )


def managed(count: int = 1) -> Tracked:
    t = Tracked()
    t.tracker.agents.managed = ManagedReceivers(STREAM, numbered(1, 1), count, {}, ManagedRules(hosts_wait_seconds=0.0))
    return t


def test_agent_gets_its_start_command_until_it_reports_the_receiver_running() -> None:
    t = managed()
    assert t.say(agent_says()).commands == ()
    journalled = len(t.events)
    assert t.say(PlaceReceivers()) == ()
    (start,) = t.say(agent_says()).commands
    assert (start.kind, start.receiver_id) == ("start-receiver", f"{STREAM}-r0")
    assert t.say(agent_says()).commands == (start,), "its answer may have been lost"
    assert t.say(agent_says("h1", f"{STREAM}-r0")).commands == ()
    assert len(t.events) == journalled
    assert any("scheduled → active" in said for said in t.say(PlaceReceivers()))


def test_status_shows_managed_receivers_and_what_their_agents_offer() -> None:
    t = managed(count=3)
    t.say(agent_says())
    t.say(PlaceReceivers())
    t.say(agent_says())
    t.say(agent_says("h1", f"{STREAM}-r0"))
    seen = shown(t.tracker, t.now_ms / 1000)
    assert [(r.receiver_id, r.state, r.host, r.pid) for r in seen.managed] == [
        (f"{STREAM}-r0", "active", "h1", 7),
        (f"{STREAM}-r1", "scheduled", "h1", 0),
        (f"{STREAM}-r2", "scheduled", "", 0),
    ]
    assert "has no host" in seen.managed[2].fault
    assert (seen.agents[0].capacity, seen.agents[0].labels) == (2, ("rack=a",))


def test_managed_receivers_that_drain_with_their_driver_are_not_started_again() -> None:
    t = managed()
    t.say(agent_says())
    t.say(PlaceReceivers())
    t.say(agent_says())
    t.say(agent_says("h1", f"{STREAM}-r0"))
    t.say(BeginDrain())
    (stop,) = t.say(agent_says("h1", f"{STREAM}-r0")).commands
    assert (stop.kind, stop.receiver_id) == ("stop-receiver", f"{STREAM}-r0")
    assert t.say(agent_says()).commands == ()
    t.now_ms += 100_000
    t.say(PlaceReceivers())
    assert t.say(agent_says()).commands == ()
    assert [r.state for r in t.tracker.managed.status(0)] == ["stopped"]


def test_operator_restarts_a_managed_receiver_by_its_agent() -> None:
    t = managed()
    name = f"{STREAM}-r0"
    for request in (agent_says(), PlaceReceivers(), agent_says(), agent_says("h1", name)):
        t.say(request)
    assert "its agent starts it again" in t.say(m.RestartReceiverRequest(receiver_id=name)).message
    assert [command.kind for command in t.say(agent_says("h1", name)).commands] == ["stop-receiver"]
    assert t.say(agent_says()).commands == ()
    t.say(PlaceReceivers())
    assert [command.kind for command in t.say(agent_says()).commands] == ["start-receiver"]


def test_operator_restarts_a_static_receiver_by_one_command_until_it_registers_again() -> None:
    t = Tracked()
    epoch = t.register()
    restart = m.RestartReceiverRequest(receiver_id="r1", cause="anna")
    with pytest.raises(RefusedError, match="does not run: start it on host h1"):
        t.say(restart)
    t.beat(epoch)
    for _ in range(2):
        assert "exits with 6" in t.say(restart).message
    (command,) = t.beat(epoch)
    assert command.kind == "restart"
    assert t.beat(epoch, seen=command.version) == ()
    again = t.register(instance="i2")
    assert t.beat(again) == ()
    with pytest.raises(RefusedError, match="no receiver is named 'r9'"):
        t.say(m.RestartReceiverRequest(receiver_id="r9"))
    t.now_ms += 60_000
    with pytest.raises(RefusedError, match="does not run"):
        t.say(restart)


def test_errors_that_a_receiver_tells_are_shown() -> None:
    t = Tracked()
    epoch = t.register()
    note = m.ErrorNote(words="Kafka: a broker is away", count=2, seconds_ago=1.5)
    t.say(
        m.HeartbeatRequest(
            receiver_id="r1", epoch=epoch, state="active", detail="", acknowledged=0, buffered_bytes=0, records=0,
            errors=(note,),
        )
    )  # fmt: skip
    assert shown(t.tracker, t.now_ms / 1000).receivers[0].errors == (note,)


# ---- INV-7 -----------------------------------------------------------------------------------------------------------


def test_replaying_the_events_gives_the_same_state() -> None:
    t = Tracked(on_gap="record")
    first, second = t.register("r1"), t.register("r2", "i2")
    token = t.claim(first).view.token
    t.take_in(first, token, 10, local=True)
    t.batch()
    t.say(fault(first, token, position=10))
    assert t.search_in_vain(first)
    token = t.claim(second, receiver="r2").view.token
    t.take_in(second, token, 50, receiver="r2")
    t.complete(t.state.unfinished()[0].batch_id)
    t.archive(t.state.unfinished()[0].batch_id - 1 if t.state.unfinished() else numbered(1, 1))
    t.say(FoundPartitions((ev.IncarnationStart(TOPIC, 7, 3),), 5, "later"))
    replayed = State(stream=STREAM, timeline=1)
    for event in t.events:
        apply(replayed, event)
    assert replayed == t.state
