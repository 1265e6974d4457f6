"""Answers to a query: blocks, gaps and losses of offsets, earliest places, and times."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from driver.decisions import intake
from driver.journal.block_index import IncarnationBlocks
from driver.journal.events import GapRecorded, IncarnationBegun, IncarnationStart
from driver.journal.transitions import apply
from driver.tracker.requests import CleanedUp
from forebay import messages as m
from forebay.model.errors import UsageError
from forebay.model.values import Gap, TopicPartition
from tests.support.state.cursors import blocks_answer, clean, held, path, span, worked
from tests.support.state.tracked import TOPIC, Tracked, offsets, tp


def test_the_blocks_of_offsets_are_those_that_hold_any_of_them() -> None:
    t, _, _ = worked()
    assert held(blocks_answer(t, span(0, 40))) == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert held(blocks_answer(t, span(9, 11))) == [(0, 10), (10, 20)]
    assert held(blocks_answer(t, span(10, 20))) == [(10, 20)]
    assert held(blocks_answer(t, span(10, 10))) == []
    assert held(blocks_answer(t, span(0, 40, incarnation=2))) == []


def test_hosts_that_were_given_a_copy_come_with_the_blocks() -> None:
    t, _, _ = worked()
    first, second = (block.id for block in blocks_answer(t, span(0, 20)).blocks)
    for host, copies in (("h2", (first, second)), ("h3", (first, "other"))):
        t.say(
            m.AgentHeartbeatRequest(
                host=host, url=f"http://{host}:1", instance_id="i", acknowledged=0, blocks=2, used_bytes=0,
                free_bytes=0, copies=copies,
            )
        )  # fmt: skip
    assert blocks_answer(t, span(0, 20)).copies == {first: ("h2", "h3"), second: ("h2",)}


def test_what_is_about_to_be_deleted_is_not_named() -> None:
    t, epoch, _ = worked()
    t.decide(clean(t, epoch, 2))
    assert held(blocks_answer(t, span(0, 40))) == [(0, 10), (20, 30), (30, 40)]
    assert earliest(t) == (1, 20)


def test_gaps_come_with_the_blocks() -> None:
    t, epoch, _ = worked(1)
    apply(t.state, GapRecorded(TOPIC, 0, Gap(10, 25, "aged out"), t.now_ms))
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 30, path=path(epoch, 2))
    answer = blocks_answer(t, span(0, 30))
    assert [(g.from_offset, g.until_offset, g.cause) for g in answer.gaps] == [(10, 25, "aged out")]
    assert held(answer) == [(0, 10), (25, 30)]
    assert blocks_answer(t, span(25, 30)).gaps == ()
    assert earliest(t) == (1, 0)
    apply(t.state, IncarnationBegun(IncarnationStart(TOPIC, 0, 0, "id-2"), t.now_ms, "recreated"))
    assert blocks_answer(t, span(0, 30, incarnation=2)).gaps == ()


def earliest(t: Tracked) -> tuple[int, int]:
    (found,) = t.say(m.EarliestRequest(partitions=(tp(0),))).places
    return found.incarnation, found.offset


def test_the_earliest_place_is_that_from_which_on_nothing_is_missing() -> None:
    t, epoch, _ = worked()
    assert earliest(t) == (1, 0)
    for number in (1, 3):
        t.decide(clean(t, epoch, number))
        t.say(CleanedUp(t.state.cleanup_count))
    assert earliest(t) == (1, 30)
    apply(t.state, IncarnationBegun(IncarnationStart(TOPIC, 0, 7, "id-2"), t.now_ms, "recreated"))
    assert earliest(t) == (1, 30)
    t.decide(clean(t, epoch, 4))
    assert earliest(t) == (2, 7)


def test_the_earliest_place_is_found_without_going_over_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: it is asked of the thread that decides. Blocks come in any order and go in any; so do gaps."""
    chance = random.Random(7)
    for _ in range(200):
        cuts = sorted(chance.sample(range(1, 60), 12))
        held = IncarnationBlocks()
        left: set[tuple[int, int]] = set()
        for piece in chance.sample(list(itertools.pairwise(cuts)), 11):
            held.add(offsets(*piece, 1), f"b{piece[0]}")
            left.add(piece)
            for gone in chance.sample(sorted(left), chance.randrange(2)):
                held.remove(gone[0])
                left.remove(gone)
            for _, until in left:
                reached = until
                while found := [begin for begin, end in left if end == reached]:
                    (reached,) = found
                assert held.reaches_back(until) == reached
            assert held.reaches_back(60) == 60
    t, _, _ = worked(8)
    t.state.index.by_offset(t.state.blocks)
    monkeypatch.setattr(t.state, "blocks", {})
    assert earliest(t) == (1, 0)


def test_a_loss_that_was_accepted_comes_with_its_block_and_goes_with_it() -> None:
    """INV-5: a later reader learns who decided."""
    t, epoch, token = worked(1)
    t.take_in(epoch, token, 20, path=path(epoch, 2))
    batch = t.batch()
    t.say(m.AcceptLossRequest(batch_id=batch, ranges=("t/0[10, 20)",), cause="ann: disk gone"))
    assert blocks_answer(t, span(0, 20)).lost == {"t/0[10, 20)": "ann: disk gone"}
    assert blocks_answer(t, span(0, 10)).lost == {}
    t.complete(batch)
    t.archive(batch)
    t.copy()
    assert blocks_answer(t, span(0, 20)).lost == {"t/0[10, 20)": "ann: disk gone"}
    t.decide(clean(t, epoch, 2))
    t.say(CleanedUp(t.state.cleanup_count))
    assert t.state.lost == {}


def test_a_time_is_in_the_first_block_whose_records_are_not_all_older(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times need not rise. A range that does not say is looked into, one without records or that is going is not."""
    t = Tracked(partitions=1)
    epoch = t.register()
    token = t.claim(epoch).view.token
    made = []
    for number, newest in enumerate((50, 30, 90, None, 70, -1)):
        r = offsets(number * 10, number * 10 + 10, token, records=0 if newest is None else 10)
        r = msgspec.structs.replace(r, max_timestamp_ms=-1 if newest is None else newest)
        made.append(t.block(epoch, [r], path=path(epoch, number)))
        (result,) = t.report(epoch, made[-1])
        assert result.accepted

    def first(time_ms: int, begin: int = 0, until: int = 60) -> tuple[str | None, int]:
        wanted = m.TimedSpan(span=span(begin, until), time_ms=time_ms)
        (found,) = t.say(m.TimesRequest(wanted=(wanted,))).found
        return found.block and found.block.id, found.reached

    assert first(0) == first(50) == (made[0].id, 0)
    assert first(20, begin=5) == (made[0].id, 5)
    assert first(51) == first(90) == (made[2].id, 20)
    assert first(60, begin=30) == (made[4].id, 40)
    assert first(91) == first(80, begin=30) == (made[5].id, 50)
    assert first(91, until=50) == (None, 50)
    t.state.lost["t/0[0, 10)"] = "ann: disk gone"
    assert first(0) == (made[1].id, 10)
    t.state.cleaning_segments[path(epoch, 1)] = True
    assert first(0) == (made[2].id, 20)
    monkeypatch.setattr(intake, "RANGES_AT_ONCE", 2)
    assert first(90) == (made[2].id, 20)
    assert first(91) == (None, 20)
    assert first(91, begin=20) == (None, 40)
    elsewhere = m.IncarnationSpan(topic="x", partition=0, incarnation=1, from_offset=0, until_offset=1)
    with pytest.raises(UsageError, match="no partition x/0"):
        t.say(m.TimesRequest(wanted=(m.TimedSpan(span=elsewhere, time_ms=0),)))


@pytest.mark.parametrize(
    ("bound", "most", "blocks"), [("BLOCKS_AT_ONCE", 3, 3), ("RANGES_AT_ONCE", 4, 3), ("RANGES_AT_ONCE", 1, 1)]
)
def test_answers_are_bounded_and_further_requests_return_the_rest(
    bound: str, most: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6. Blocks of two partitions, with one of them further back; an answer has at least one block."""
    monkeypatch.setattr(intake, bound, most)
    t = Tracked(partitions=2)
    epoch = t.register()
    tokens = [t.claim(epoch, number).view.token for number in range(2)]
    made = []
    for number in range(8):
        t.now_ms += 1
        begin = number * 10
        ranges = [offsets(begin, begin + 10, tokens[0])]
        if number % 2:
            ranges.append(offsets(begin // 2 - 5, begin // 2 + 5, tokens[1], partition=1))
        block = t.block(epoch, ranges)
        (result,) = t.report(epoch, block)
        assert result.accepted
        made.append(block.id)
    spans = [span(0, 80), span(0, 40, partition=1)]
    seen: list[str] = []
    while any(s.from_offset < s.until_offset for s in spans):
        answer = blocks_answer(t, *spans)
        assert 1 <= len(answer.blocks) <= blocks
        seen += [block.id for block in answer.blocks]
        spans = [span(at, s.until_offset, partition=s.partition) for s, at in zip(spans, answer.reached, strict=True)]
    assert list(dict.fromkeys(seen)) == made
    assert len(seen) <= len(made) + (
        2 if blocks > 1 else 4
    )  # a block of both partitions comes once, or twice at the edge of an answer


def test_intake_shows_each_partitions_incarnations_position_and_leader_epoch() -> None:
    t, _, _ = worked(1, partitions=2)
    t.state.partitions[f"{TOPIC}/0"].leader_epoch = 4
    assert [one.leader_epoch for one in intake.intake(t.state)] == [4, t.state.partitions[f"{TOPIC}/1"].leader_epoch]
    apply(t.state, IncarnationBegun(IncarnationStart(TOPIC, 0, 3, "id-2"), t.now_ms, "recreated"))
    (first, second) = intake.intake(t.state)
    assert (first.tp, first.position) == (TopicPartition(TOPIC, 0), 3)
    assert [(one.number, one.start, one.end, one.topic_id) for one in first.incarnations] == [
        (1, 0, 10, "id-1"),
        (2, 3, None, "id-2"),
    ]
    assert second.position == 0
