"""Where recovery wrote a block anew: what the journal checks, and that clean-up finds the new place (INV-7, INV-8)."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from driver.decisions.clean_up import CleanSegment, judge
from driver.journal.events import BlockMoved, CleanupIntended
from driver.journal.state import REPAIR_WRITER, BrokenInvariant, State, is_fenced
from driver.journal.transitions import apply
from forebay.model.identifiers import numbered
from forebay.model.values import Block, Handle
from tests.support.state.tracked import STREAM, Tracked
from wal.decisions.retention import FrameFacts, RetentionLimits, SegmentFacts
from wal.segments.layout import block_segment

NEW = block_segment(STREAM, REPAIR_WRITER, numbered(1, 5), 1)


def taken_in(local: bool = True) -> tuple[Tracked, Block]:
    t = Tracked(partitions=1)
    epoch = t.register()
    token = t.claim(epoch).view.token
    return t, t.take_in(epoch, token, 10, local=local)


def handle(checksum: int = 7) -> Handle:
    return Handle(NEW, 128, 1000, checksum)


def test_only_the_place_changes() -> None:
    t, block = taken_in()
    before = (t.state.waiting.copy(), t.state.partitions["t/0"].position)
    apply(t.state, BlockMoved(block.id, handle(), True))
    assert t.state.blocks[block.id] == Block(block.meta, handle(), True)
    assert (t.state.waiting, t.state.partitions["t/0"].position) == before


def test_the_digest_is_that_of_the_bytes_at_the_new_place() -> None:
    """Kafka gives the same records as other bytes; an older release moves a block and names no digest of it."""
    t, block = taken_in(local=False)
    first, other = b"1" * 32, b"2" * 32
    for event, digest in (
        (BlockMoved(block.id, handle(7), False, first), first),
        (BlockMoved(block.id, handle(8), False, other), other),
        (BlockMoved(block.id, handle(8), False), other),
        (BlockMoved(block.id, handle(9), False), msgspec.UNSET),
    ):
        apply(t.state, event)
        assert t.state.blocks[block.id].meta.sha256 == digest
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=BlockMoved) == event


def test_a_block_that_was_not_accepted_can_not_be_moved() -> None:
    t, _ = taken_in()
    with pytest.raises(BrokenInvariant, match="names no such block"):
        apply(t.state, BlockMoved("r9-1-1", handle(), False))


@pytest.mark.parametrize(("had_copy", "checksum"), [(False, 7), (True, 8)])
def test_a_local_copy_that_does_not_hold_these_bytes_is_none(had_copy: bool, checksum: int) -> None:
    t, block = taken_in(local=had_copy)
    with pytest.raises(BrokenInvariant, match="its local copy does not hold"):
        apply(t.state, BlockMoved(block.id, handle(checksum), True))
    apply(t.state, BlockMoved(block.id, handle(checksum), False))
    assert not t.state.blocks[block.id].local


def test_no_block_moves_into_a_segment_that_is_being_deleted() -> None:
    """INV-8."""
    t, block = taken_in()
    apply(t.state, CleanupIntended(number=1, segments=(NEW,)))
    with pytest.raises(BrokenInvariant, match="is being deleted"):
        apply(t.state, BlockMoved(block.id, handle(), False))


def request(block: Block, now_ms: int = 10_000) -> CleanSegment:
    facts = SegmentFacts(NEW, False, False, (FrameFacts(block.id, block.meta.ranges),))
    return CleanSegment(facts, REPAIR_WRITER, numbered(1, 5), now_ms)


def test_the_last_segment_of_a_recovery_is_deleted_only_when_nothing_needs_its_blocks() -> None:
    """INV-8: no process writes it any more, although no later segment exists."""
    t, block = taken_in()
    apply(t.state, BlockMoved(block.id, handle(), False))
    assert not judge(t.state, request(block), RetentionLimits(retention_ms=0)).deletable
    batch = t.batch()
    t.complete(batch)
    t.archive(batch)
    t.state.copies, t.state.uncovered = cast(Any, ("a", "b")), {}
    assert judge(t.state, request(block), RetentionLimits(retention_ms=0)).deletable


def test_writers_that_lead_the_journal_and_those_of_older_timelines_are_fenced() -> None:
    """INV-4."""
    t, _ = taken_in()
    epoch = t.state.receivers["r1"].epoch
    assert not is_fenced(t.state, "r1", epoch)
    assert is_fenced(t.state, "r1", epoch - 1) and is_fenced(t.state, REPAIR_WRITER, numbered(1, 5))
    later = State(stream=STREAM, timeline=2)
    assert is_fenced(later, "r1", epoch)
