"""Which frames a rebuild takes, and the gaps and damaged blocks between them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from driver.journal import events as ev
from driver.journal.log.encoding import EncodedState
from driver.journal.state_parts import EndedEpoch
from driver.journal.transitions import apply, receivers
from forebay.model.errors import CorruptionError
from forebay.model.identifiers import numbered
from forebay.model.values import Gap
from recovery import audit, rebuild
from tests.support.state.lost_journal import Lost, damage
from tests.support.state.tracked import STREAM, offsets
from tests.support.stores.unlisted import Unlisted
from wal.storage import Storage


def test_walk_takes_accepted_blocks_and_no_orphan() -> None:
    """INV-1, INV-2: an older token's block at the same offsets was never accepted; the newest owner began after it."""
    lost = Lost()
    t = lost.t
    lost.copy()
    first = t.register()
    token = t.claim(first).view.token
    accepted = [lost.take_in(first, offsets(0, 10, token))]
    orphan = lost.write(first, offsets(10, 30, token))
    second = t.register(receiver="r2", instance="i2")
    newer = t.claim(second, receiver="r2").view.token
    other = t.claim(second, 1, "r2").view.token
    accepted.append(lost.take_in(second, offsets(10, 20, newer), offsets(0, 5, other, 1), receiver="r2"))
    accepted.append(lost.take_in(second, offsets(20, 40, newer), receiver="r2"))
    tail = lost.write(second, offsets(5, 7, other, 1), receiver="r2")
    plan = lost.rebuild()
    state = lost.lead()
    assert list(state.waiting) == [block.id for block in (*accepted, tail)]
    assert {key: p.position for key, p in state.partitions.items()} == {"t/0": 40, "t/1": 7}
    (not_taken,) = plan.not_taken
    assert not_taken.block_id == orphan.id
    assert "came in otherwise" in not_taken.reason
    assert audit.report(state, ()).clean
    assert (state.timeline, state.receivers, state.batches) == (2, {}, {})
    assert all(not p.owner and not p.writers for p in state.partitions.values())
    assert all(lost.wal.size(block.handle.path) for block in state.blocks.values())
    assert all("forebay-rebuild" in block.handle.path for block in state.blocks.values()), "synced anew"


def test_epochs_of_the_lost_journal_are_kept_until_they_have_barriers() -> None:
    """INV-2: their objects may appear later. Epochs come from the copy and from the WAL."""
    lost = Lost()
    t = lost.t
    ended = t.register()
    lost.take_in(ended, offsets(0, 10, t.claim(ended).view.token))
    running = t.register(instance="i2")
    token = t.claim(running).view.token
    lost.copy()
    newer = t.register(receiver="r2", instance="i1")
    lost.take_in(running, offsets(10, 20, token))
    lost.write(newer, offsets(20, 30, t.claim(newer, receiver="r2").view.token), receiver="r2")
    lost.rebuild()
    state = lost.lead()
    known = [(epoch.receiver_id, epoch.epoch, epoch.segments) for epoch in state.unbarred]
    assert known == [("r1", ended, 1), ("r1", running, 1), ("r2", newer, 1)]


def test_adjacent_gaps_are_found_as_one_and_blocks_after_them_are_taken() -> None:
    """INV-2: the frame after them names where the first one began."""
    for gaps_before_copy in (0, 1, 2):
        lost = Lost()
        t = lost.t
        epoch = t.register()
        lost.take_in(epoch, offsets(0, 10, t.claim(epoch).view.token))
        for count, until in enumerate((20, 30)):
            if count == gaps_before_copy:
                lost.copy()
            gap = Gap(t.state.partitions["t/0"].position, until, "retention")
            event = ev.GapRecorded(topic="t", partition=0, gap=gap, time_ms=1)
            apply(t.state, event)
        if gaps_before_copy == 2:
            lost.copy()
        grant = t.claim(epoch)
        assert grant.view.preceding_gap == Gap(10, 30, "retention")
        held = msgspec.structs.replace(offsets(30, 40, grant.view.token), preceding_gap=grant.view.preceding_gap)
        lost.take_in(epoch, held)
        state = lost.rebuild().state
        assert state.partitions["t/0"].position == 40
        assert audit.report(state, ()).clean
        assert sum(g.gap.until_offset - g.gap.from_offset for g in state.partitions["t/0"].gaps) == 20


def test_damaged_block_is_taken_only_if_a_block_continues_after_it() -> None:
    """At the end it may be the rest of an unreported write after a power loss."""
    lost = Lost()
    t = lost.t
    lost.copy()
    epoch = t.register()
    token = t.claim(epoch).view.token
    blocks = [lost.take_in(epoch, offsets(at, at + 10, token)) for at in (0, 10, 20)]
    for block in (blocks[1], blocks[2]):
        damage(lost.wal, block.handle)
    plan = lost.rebuild()
    assert list(plan.state.waiting) == [blocks[0].id, blocks[1].id]
    assert plan.state.partitions["t/0"].position == 20
    assert "not whole" in plan.not_taken[0].reason


def test_frames_after_missing_offsets_are_not_taken_but_reported() -> None:
    """INV-5."""
    lost = Lost()
    t = lost.t
    lost.copy()
    epoch = t.register()
    token = t.claim(epoch).view.token
    blocks = [lost.take_in(epoch, offsets(at, at + 10, token)) for at in (0, 10, 20)]
    lost.wal.delete(blocks[1].handle.path)
    plan = lost.rebuild()
    assert plan.state.partitions["t/0"].position == 10
    (gap,) = plan.missing_offsets
    assert (gap.topic, gap.partition, gap.position, gap.next_from) == ("t", 0, 10, 20)


def test_blocks_are_found_if_a_listing_omits_all_of_an_epoch_that_the_copy_knows() -> None:
    """A store's listing may be older than its newest objects."""
    lost = Lost()
    epoch = lost.t.register()
    token = lost.t.claim(epoch).view.token
    lost.copy()
    blocks = [lost.take_in(epoch, offsets(at, at + 10, token)) for at in (0, 10)]
    wal = cast(Storage, Unlisted(lost.wal, {block.handle.path for block in blocks}))
    evidence = rebuild.read_evidence(lost.journal, wal, STREAM, lost.topic_ids)
    assert rebuild.rebuilt(evidence, 2, 9, "test").state.partitions["t/0"].position == 20


def test_running_epochs_stay_known_as_ended_ones_however_many_ended_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-2: what they sent may still arrive in the store."""
    for maximum in ("ENDED_MAX", "UNBARRED_MAX"):
        monkeypatch.setattr(receivers, maximum, 2)
        monkeypatch.setattr("recovery.rebuild.state." + maximum, 2)
    lost = Lost()
    running = lost.t.register()
    lost.take_in(running, offsets(0, 10, lost.t.claim(running).view.token))
    for number in range(4):
        for ended in lost.t.state.unbarred:
            apply(lost.t.state, ev.EpochBarred(ended.receiver_id, ended.epoch))
        lost.t.claim(lost.t.register(receiver="r9", instance=f"i{number}"), 1, receiver="r9")
    for ended in lost.t.state.unbarred:
        apply(lost.t.state, ev.EpochBarred(ended.receiver_id, ended.epoch))
    lost.copy()
    state = lost.rebuild().state
    assert [known.receiver_id for known in state.unbarred] == ["r1", "r9"]
    assert [known.receiver_id for known in state.ended_epochs] == ["r1", "r9"]
    assert state.ended_epochs[0] == EndedEpoch("r1", running, 1)


def test_incarnation_unknown_to_the_copy_begins_as_its_frames_show() -> None:
    lost = Lost()
    t = lost.t
    lost.copy()
    epoch = t.register()
    token = t.claim(epoch).view.token
    lost.take_in(epoch, offsets(0, 10, token))
    apply(t.state, ev.IncarnationBegun(ev.IncarnationStart("t", 0, 3, "id-2"), 1, "recreated"))
    lost.take_in(epoch, offsets(3, 9, t.claim(epoch).view.token, incarnation=2))
    state = lost.rebuild().state
    old, new = state.partitions["t/0"].incarnations
    assert (old.end, new.number, new.start, state.partitions["t/0"].position) == (10, 2, 3, 9)
    assert audit.report(state, ()).clean


@pytest.mark.parametrize("answered", [True, False])
def test_a_journal_whose_last_group_ends_in_zeros_is_rebuilt_with_the_same_positions(answered: bool) -> None:
    """The zeros may be a power loss before the data were written, or damage to answered events; the journal does not show which.

    The WAL's frames are taken in either way (INV-1).
    """
    lost = Lost()
    t = lost.t
    epoch = t.register()
    token = t.claim(epoch).view.token
    lost.copy()
    lost.take_in(epoch, offsets(0, 10, token))
    block = lost.write(epoch, offsets(10, 20, token))
    if answered:
        (result,) = t.report(epoch, block)
        assert result.accepted
    lost.keep()
    (path,) = lost.journal.list(f"{STREAM}/epoch-{numbered(1, 1):016x}")
    lost.journal.replace(path, lost.journal.read(path)[:-100] + bytes(100))
    with pytest.raises(CorruptionError):
        lost.lead()
    copy, _, _ = rebuild.newest_copy(lost.wal, STREAM)
    rebuild.refuse_intact(lost.journal, lost.wal, STREAM, copy)
    plan = lost.rebuild()
    assert plan.state.partitions["t/0"].position == 20
    assert plan.state.next_token() > token
    assert audit.report(plan.state, ()).clean
    lost.lead()


def test_waiting_block_whose_segment_was_deleted_is_named() -> None:
    """INV-5."""
    lost = Lost()
    t = lost.t
    epoch = t.register()
    block = lost.take_in(epoch, offsets(0, 10, t.claim(epoch).view.token))
    lost.copy()
    lost.wal.delete(block.handle.path)
    plan = lost.rebuild()
    assert plan.missing == ("t/0[0, 10)",)
    assert block.id in plan.state.waiting


def test_partition_whose_copied_position_exceeds_the_last_offset_restarts() -> None:
    """An older release wrote the copy."""
    lost = Lost()
    epoch = lost.t.register()
    block = lost.take_in(epoch, offsets(0, 10, lost.t.claim(epoch).view.token))
    state = EncodedState.of(lost.t.state)
    tree = msgspec.msgpack.decode(b"".join(state.payload()))
    tree["partitions"]["t/0"]["position"] = 2**64 - 1
    tree["blocks"][block.id]["meta"]["ranges"][0]["until"] = 2**64 - 1
    written = SimpleNamespace(next=state.next, actions=False, payload=lambda: msgspec.msgpack.encode(tree))
    lost.copies.write(cast(EncodedState, written))
    found, _, notes = rebuild.newest_copy(lost.wal, STREAM)
    assert found.partitions["t/0"].position == 0
    assert "incarnation 2 begins at offset 0" in notes[-1]
