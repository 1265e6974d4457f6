"""The index of blocks is what looking through the whole state would give (INV-7), and says what retention takes (INV-8)."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from driver.decisions.clean_up import CleanSegment, retention_limits
from driver.journal.events import BatchAllocated, BlockMoved
from driver.journal.state import REPAIR_WRITER, State
from driver.journal.transitions import apply
from driver.tracker.requests import CleanedUp, CleanLocalCopies
from forebay.model.values import Handle
from forebay.settings.reading.load import from_values
from tests.forebay.settings.test_settings import good_values
from tests.support.state.tracked import STREAM, Tracked
from wal.decisions.retention import DueReason, FrameFacts, RetentionLimits, SegmentFacts


def path(epoch: int, number: int) -> str:
    return f"{STREAM}/blocks/r1/{epoch:016x}/{number:08d}.seg"


def decoded(t: Tracked) -> State:
    """The state as a snapshot would bring it back."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(t.state), type=State)


def worked(segments: int = 4, **settings: int) -> tuple[Tracked, int]:
    """``segments`` archived batches with one block of 1000 bytes each, in segments of their own; completed at 1000, 2000, …"""
    t = Tracked(partitions=1, **settings)  # type: ignore[arg-type]
    epoch = t.register()
    token = t.claim(epoch).view.token
    for number in range(1, segments + 1):
        t.now_ms = number * 1_000
        t.take_in(epoch, token, number * 10, path=path(epoch, number), local=True)
        batch = t.batch()
        t.complete(batch)
        t.archive(batch)
    return t, epoch


def test_the_index_is_that_of_the_state_after_every_step() -> None:
    t, epoch = worked(3)
    token = t.state.partitions["t/0"].token
    steps = [
        lambda: t.take_in(epoch, token, 50, path=path(epoch, 3)),
        lambda: t.take_in(epoch, token, 60, path=path(epoch, 4), local=True),
        lambda: t.batch(),
        lambda: t.say(CleanLocalCopies()),
        lambda: t.complete(t.state.unfinished()[0].batch_id),
        lambda: t.say(CleanedUp(1)),
        lambda: t.say(CleanLocalCopies()),
        lambda: t.archive(max(t.state.batches)),
        lambda: t.decide(clean(t, epoch, 1)),
        lambda: t.say(CleanedUp(max(t.state.cleanups))),
    ]
    for step in steps:
        step()  # type: ignore[no-untyped-call]
        assert t.state.index == t.state.build_index() == decoded(t).index


def test_completed_position_is_the_highest_end_also_of_a_limited_batch_whose_tasks_mix_the_blocks() -> None:
    """Packing orders blocks by hosts and sizes, not by offsets."""
    t, epoch = worked(1)
    token = t.state.partitions["t/0"].token
    position = t.state.partitions["t/0"].position
    blocks = [t.take_in(epoch, token, position + 10 * (number + 1)) for number in range(4)]
    first, second, third, fourth = (block.id for block in blocks)
    for tasks, reached in ((((third,), (first, second)), position + 30), (((fourth,),), position + 40)):
        batch_id = t.state.next_batch_id()
        number = t.state.batch_count + 1
        apply(t.state, BatchAllocated(batch_id=batch_id, number=number, time_ms=t.now_ms, tasks=tasks))
        assert t.state.index == t.state.build_index() == decoded(t).index
        t.complete(batch_id)
        assert t.state.partitions["t/0"].completed == reached
        assert t.state.index == t.state.build_index() == decoded(t).index


def test_a_block_that_recovery_moved_keeps_its_entries_in_the_index() -> None:
    """INV-7: held and released ones, the last of a segment and one of several."""
    t, epoch = worked(2)
    token = t.state.partitions["t/0"].token
    for until in (30, 40):
        t.take_in(epoch, token, until, path=path(epoch, 3), local=True)
    t.now_ms = 9_000
    batch = t.batch()
    t.complete(batch)
    t.archive(batch)
    t.take_in(epoch, token, 50, path=path(epoch, 3), local=True)
    for number, (name, block) in enumerate(list(t.state.blocks.items())):
        elsewhere = Handle(f"{STREAM}/blocks/{REPAIR_WRITER}/{1:016x}/00000001.seg", number * 1000, 1000, 7)
        apply(t.state, BlockMoved(name, elsewhere, block.local and number % 2 == 0))
        assert t.state.index == t.state.build_index() == decoded(t).index
    assert list(t.state.index.segments) == [elsewhere.path]


def clean(t: Tracked, epoch: int, number: int, now_ms: int = 1_000_000) -> CleanSegment:
    place = path(epoch, number)
    share = t.state.index.segments[place]
    frames = tuple(FrameFacts(name, t.state.blocks[name].meta.ranges) for name in share.blocks)
    return CleanSegment(SegmentFacts(place, True, False, frames), "r1", epoch, now_ms)


def test_a_snapshot_holds_nothing_of_the_index() -> None:
    t, _ = worked()
    assert set(msgspec.msgpack.decode(msgspec.msgpack.encode(t.state))) == set(State.__struct_encode_fields__)


def test_segments_are_deleted_by_time_oldest_first() -> None:
    t, epoch = worked()
    due = [segment.path for segment, _ in t.state.index.due(RetentionLimits(retention_ms=5_000), 7_500)]
    assert due == [path(epoch, 1), path(epoch, 2)]


def test_oldest_segments_are_deleted_early_while_the_wal_is_too_large() -> None:
    t, epoch = worked()
    held = t.state.index.bytes
    share = t.state.index.segments[path(epoch, 1)].bytes
    due = list(t.state.index.due(RetentionLimits(retention_ms=1_000_000, retention_bytes=held - share - 1), 5_000))
    assert [(s.path, why) for s, why in due] == [(path(epoch, 1), DueReason.SIZE), (path(epoch, 2), DueReason.SIZE)]
    assert list(t.state.index.due(RetentionLimits(retention_ms=1_000_000, retention_bytes=held), 5_000)) == []
    assert list(t.state.index.due(RetentionLimits(retention_ms=1_000_000, retention_bytes=0), 5_000)) == []


def test_oldest_segments_are_deleted_early_while_the_wal_has_too_many_blocks() -> None:
    t, epoch = worked()
    due = list(t.state.index.due(RetentionLimits(retention_ms=1_000_000, retention_blocks=3), 5_000))
    assert [(s.path, why) for s, why in due] == [(path(epoch, 1), DueReason.BLOCKS)]
    assert list(t.state.index.due(RetentionLimits(retention_ms=1_000_000, retention_blocks=4), 5_000)) == []


@pytest.mark.parametrize(
    ("free_bytes", "gone"),
    [(20_000, 0), (19_999, 1), (18_000, 1), (17_999, 2), (0, 4), (None, 0)],
    ids=["as much free as asked for", "a byte less", "a segment less", "more than one", "full", "not known"],
)
def test_oldest_segments_are_deleted_early_while_the_store_lacks_free_space(free_bytes: int | None, gone: int) -> None:
    t, epoch = worked()
    assert [segment.bytes for segment in t.state.index.oldest()] == [2_000, 3_000, 4_000, 5_000]
    limits = RetentionLimits(retention_ms=1_000_000, free_bytes=20_000).within(free_bytes, t.state.index.bytes)
    due = list(t.state.index.due(limits, 5_000))
    assert [(s.path, why) for s, why in due] == [(path(epoch, n + 1), DueReason.SPACE) for n in range(gone)]
    unlimited = RetentionLimits(retention_ms=1_000_000).within(free_bytes, t.state.index.bytes)
    assert list(t.state.index.due(unlimited, 5_000)) == []


def test_the_tracker_deletes_for_lack_of_space_what_time_alone_would_keep() -> None:
    """The limits of a round come with its request: the tracker knows nothing of the store's free space."""
    for free_bytes, goes in ((10_000, False), (9_999, True)):
        t, epoch = worked(2, retention_ms=10**9)
        t.say(CleanLocalCopies())
        t.say(CleanedUp(max(t.state.cleanups)))
        t.copy()
        limits = RetentionLimits(retention_ms=10**9, free_bytes=10_000).within(free_bytes, t.state.index.bytes)
        assert bool(t.decide(replace(clean(t, epoch, 1), limits=limits)).events) == goes


def test_segments_that_a_batch_needs_stay_regardless_of_the_wals_size() -> None:
    """INV-8: retention by size takes nothing that is needed."""
    t, epoch = worked(1)
    token = t.state.partitions["t/0"].token
    t.take_in(epoch, token, 50, path=path(epoch, 1))
    limits = RetentionLimits(retention_ms=0, retention_bytes=1, retention_blocks=1, free_bytes=1, room_bytes=0)
    assert list(t.state.index.due(limits, 1_000_000)) == []
    assert not t.decide(clean(t, epoch, 1)).events


def test_the_tracker_deletes_by_size_what_time_alone_would_keep() -> None:
    for retention_bytes, goes in ((0, False), (2_500, True)):
        t, epoch = worked(2, retention_ms=10**9, retention_bytes=retention_bytes)
        t.say(CleanLocalCopies())
        t.say(CleanedUp(max(t.state.cleanups)))
        t.copy()
        assert bool(t.decide(clean(t, epoch, 1)).events) == goes


def test_every_limit_of_the_settings_reaches_clean_up() -> None:
    wal = {"url": "file:///w", "retention": "2s", "retention_size": "3B", "retention_blocks": 5, "retention_free": "7B"}
    assert retention_limits(from_values(good_values(wal=wal))) == RetentionLimits(
        retention_ms=2_000, retention_bytes=3, retention_blocks=5, free_bytes=7
    )
