"""Which segments may be deleted (INV-8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from forebay.model.values import BlockMeta, BlockRange, TopicPartition, block_id
from tests.support.state.segments import memory, segment
from wal.blocks import encode_meta
from wal.decisions.retention import (
    REASONS_MAX,
    FrameFacts,
    JournalView,
    PartitionPosition,
    RangeStatus,
    SegmentFacts,
    judge_segment,
    segment_facts,
)
from wal.segments.scan import Damage, Newer, TornTail, scan_segment

TP = TopicPartition("t", 0)


def held(start: int, until: int, incarnation: int = 2, partition: int = 0) -> BlockRange:
    return BlockRange("t", partition, incarnation, start, until, 0, 0, "0" * 16, 1)


def view(
    position: int = 0,
    incarnation: int = 2,
    needed: frozenset[str] = frozenset(),
    released: frozenset[str] = frozenset(),
) -> JournalView:
    return JournalView(needed, released, {TP: PartitionPosition(incarnation, position)})


def facts(*frames: FrameFacts, sealed: bool = True, fenced: bool = False) -> SegmentFacts:
    return SegmentFacts("p", sealed, fenced, frames)


ORPHAN = FrameFacts("r-1-1", (held(10, 20),))


@pytest.mark.parametrize(
    ("journal", "status"),
    [
        (view(9), RangeStatus.BEHIND),
        (view(19), RangeStatus.BEHIND),
        (view(20), RangeStatus.PAST),
        (view(0, incarnation=3), RangeStatus.INCARNATION_ENDED),
        (view(99, incarnation=1), RangeStatus.UNKNOWN),
        (JournalView(frozenset(), frozenset(), {}), RangeStatus.UNKNOWN),
    ],
)
def test_status_of_range_depends_on_incarnation_then_position(journal: JournalView, status: RangeStatus) -> None:
    assert journal.status_of(held(10, 20)) is status
    assert judge_segment(facts(ORPHAN), journal).deletable == status.is_final


def test_a_segment_that_may_still_be_appended_to_is_kept() -> None:
    judgement = judge_segment(facts(ORPHAN, sealed=False), view(20))
    assert judgement.reasons == ("its writer may still append to it",)
    assert judge_segment(facts(ORPHAN, sealed=False, fenced=True), view(20)).deletable


def test_needed_block_keeps_its_segment_at_any_position() -> None:
    assert judge_segment(facts(ORPHAN), view(99, needed=frozenset({"r-1-1"}))).reasons == ("block r-1-1 is needed",)
    assert judge_segment(facts(ORPHAN), view(99, incarnation=9, needed=frozenset({"r-1-1"}))).reasons
    assert judge_segment(facts(ORPHAN), view(0, released=frozenset({"r-1-1"}))).deletable


def test_orphan_is_deleted_only_when_the_status_of_all_its_ranges_is_final() -> None:
    """Its report may still arrive, and would be accepted."""
    orphan = FrameFacts("r-1-1", (held(10, 20), held(0, 5, partition=1)))
    journal = JournalView(
        frozenset(), frozenset(), {TP: PartitionPosition(2, 20), TopicPartition("t", 1): PartitionPosition(2, 4)}
    )
    (reason,) = judge_segment(facts(orphan), journal).reasons
    assert "t/1[0, 5)" in reason
    journal = JournalView(
        frozenset(), frozenset(), {TP: PartitionPosition(2, 20), TopicPartition("t", 1): PartitionPosition(2, 5)}
    )
    assert judge_segment(facts(orphan), journal).deletable


def test_sealed_empty_segment_is_deleted() -> None:
    assert judge_segment(facts(), view()).deletable
    assert not judge_segment(facts(sealed=False), view()).deletable


def test_unreadable_segment_is_never_deleted() -> None:
    """INV-5: it is unknown whether it is needed."""
    for place in (Damage(64, 128, "x"), Newer(64, 128, 2, 1, "format 2")):
        kept = segment_facts("p", [place], sealed=True, fenced=True)
        assert not judge_segment(kept, view(99)).deletable
    assert judge_segment(segment_facts("p", [TornTail(64, 9)], sealed=True, fenced=True), view(99)).deletable


def test_facts_come_from_a_scan_without_payloads() -> None:
    metas = [BlockMeta(block_id("r", 7, n), "s", "r", 7, n, (held(n, n + 1),), 0, 0, "h") for n in (1, 2)]
    storage = memory()
    path = segment(storage, [(encode_meta(meta), b"x" * 100) for meta in metas])
    found = segment_facts(path, scan_segment(storage, path, payloads=False), sealed=True, fenced=False)
    assert found.frames == tuple(FrameFacts(meta.id, meta.ranges) for meta in metas)
    assert found.unreadable == ()
    path = segment(memory_with := memory(), [(b"\xc1", b"")])
    assert segment_facts(path, scan_segment(memory_with, path), sealed=True, fenced=False).unreadable


def test_a_judgement_names_a_bounded_number_of_reasons() -> None:
    """INV-6."""
    many = facts(*(FrameFacts(f"r-1-{n}", (held(10, 20),)) for n in range(1000)))
    assert len(judge_segment(many, view(0)).reasons) == REASONS_MAX


@hypothesis_settings(derandomize=True, max_examples=300)
@given(
    frames=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(0, 30)), max_size=4),
    sealed=st.booleans(),
    fenced=st.booleans(),
    needed=st.frozensets(st.integers(0, 5), max_size=3),
    released=st.frozensets(st.integers(0, 5), max_size=3),
    incarnation=st.integers(1, 3),
    position=st.integers(0, 31),
)
def test_segment_with_a_block_that_may_be_needed_is_never_deletable(
    frames: list[tuple[int, int, int]],
    sealed: bool,
    fenced: bool,
    needed: frozenset[int],
    released: frozenset[int],
    incarnation: int,
    position: int,
) -> None:
    """INV-8: the rule, written a second time independently of the code."""
    segment_of = facts(
        *(
            FrameFacts(str(number), (held(start, start + 1, its_incarnation),))
            for number, its_incarnation, start in frames
        ),
        sealed=sealed,
        fenced=fenced,
    )
    journal = JournalView(
        {str(n) for n in needed}, {str(n) for n in released}, {TP: PartitionPosition(incarnation, position)}
    )
    could_matter = [
        number in needed
        or (
            number not in released
            and not (its_incarnation < incarnation or (its_incarnation == incarnation and start + 1 <= position))
        )
        for number, its_incarnation, start in frames
    ]
    assert judge_segment(segment_of, journal).deletable == ((sealed or fenced) and not any(could_matter))
