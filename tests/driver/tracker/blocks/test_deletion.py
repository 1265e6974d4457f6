"""Clean-up: which segments and local copies are deleted, and which are kept (INV-8)."""

from __future__ import annotations

from typing import Any

from driver.decisions.clean_up import CleanSegment, is_stray
from driver.journal import events as ev
from driver.tracker.requests import CleanedUp, CleanLocalCopies, Copied
from forebay import messages as m
from forebay.model.identifiers import numbered
from forebay.model.values import BlockMeta
from tests.support.state.tracked import STREAM, Tracked, fault, offsets
from wal.decisions.retention import FrameFacts, SegmentFacts


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
    assert t.search_finding_nothing(epoch)
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
