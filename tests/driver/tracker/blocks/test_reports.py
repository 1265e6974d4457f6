"""Reports: the driver takes in blocks that continue a position, each once, and refuses all others (rule 4)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from driver.decisions.clean_up import CleanSegment
from driver.journal.state import State
from driver.journal.transitions import apply
from forebay import messages as m
from forebay.model.errors import UsageError
from tests.support.state.tracked import STREAM, Tracked, fault, offsets
from wal.decisions.retention import SegmentFacts


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


def test_a_block_whose_segment_was_deleted_is_refused_and_cut_again() -> None:
    """INV-1: a damaged disk cut it off, so clean-up saw a torn end, and its receiver still knows it."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    first, second = (f"{STREAM}/blocks/r1/{epoch:016x}/{sequence:08}.seg" for sequence in (1, 2))
    block = t.block(epoch, [offsets(0, 10, token)], path=first)
    assert t.decide(CleanSegment(SegmentFacts(first, True, False, ()), "r1", epoch, t.now_ms)).actions
    (result,) = t.report(epoch, block)
    assert [(s.reason, s.token, s.position) for s in result.stale] == [("segment", token, 0)]
    assert t.state.partitions["t/0"].position == 0
    t.take_in(epoch, token, 10, path=second)
    replayed = State(stream=STREAM, timeline=1)
    for event in t.events:
        apply(replayed, event)
    assert replayed == t.state


@pytest.mark.parametrize(("start", "until"), [(5, 15), (11, 20), (0, 10)])
def test_a_range_that_overlaps_or_leaves_a_gap_is_refused_with_the_position(start: int, until: int) -> None:
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
    with pytest.raises(UsageError, match="a name has 1 to 64"):
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


def test_block_of_an_ended_incarnation_is_refused_even_with_the_right_token_number() -> None:
    t = Tracked(on_gap="record")
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.say(fault(epoch, token, kind="recreated", topic_id="id-2", low=0))
    assert t.search_finding_nothing(epoch)
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
