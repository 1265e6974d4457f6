"""Rebuilding a lost journal: which frames are taken, what the new timeline says, what is refused, what a kill leaves."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from driver.background.snapshot_copies import Due, SnapshotCopies, copy_due
from driver.journal import events as ev
from driver.journal import history
from driver.journal.files import Claim, claim_path
from driver.journal.leadership import timeline
from driver.journal.leadership.lease import LeaseKeeper, lease_path
from driver.journal.leadership.timeline import TimelineFound
from driver.journal.log import opening
from driver.journal.log.encoding import EncodedState
from driver.journal.state import State
from driver.journal.transitions import apply
from driver.tracker import Tracker
from driver.tracker.requests import Copied
from forebay import messages as m
from forebay.model.errors import CorruptionError, FencedError, NewerVersionError, RefusedError, UnreachableError
from forebay.model.values import Block, BlockRange, Gap, Handle, numbered, timeline_of
from forebay.process.clock import ManualClock
from recovery import audit, rebuild
from recovery.plan import HistoryView, history_view
from recovery.rebuild import RebuildPlan
from tests.support.forgetful import Crash, ForgetfulStorage
from tests.support.tracked import STREAM, Tracked, offsets, tracker_options
from tests.support.unlisted import Unlisted
from wal.blocks import encode_meta
from wal.decisions.retention import Limits
from wal.segments import layout
from wal.segments.frame import FrameKind
from wal.segments.payload import checksum
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import MemoryStorage, Storage

numbers = itertools.count(1)
FOREVER = Limits(1 << 40)


@dataclass
class Lost:
    """A stream with its WAL. Its journal is what ``t`` decided; it is written only by :meth:`keep`."""

    journal: Any = None
    wal: Any = None
    t: Tracked = field(default_factory=lambda: Tracked(on_gap="record"))
    writers: dict[int, LogWriter] = field(default_factory=dict)
    in_kafka: str | None = "id-1"  # the id of its topics; None: Kafka does not answer

    def __post_init__(self) -> None:
        name = f"rebuild-{next(numbers)}"
        self.journal = self.journal or MemoryStorage(f"{name}-journal")
        self.wal = self.wal or MemoryStorage(f"{name}-wal")
        self.wal.put_new(layout.timeline_marker(STREAM, 1), self.claim)
        self.copies = SnapshotCopies(
            self.t.ask,
            self.wal,
            stream=STREAM,
            epoch=numbered(1, 1),
            clock=ManualClock(1_000),
            interval_seconds=0.0,
            limits=FOREVER,
            new_uid=lambda: next(numbers),
        )

    @property
    def claim(self) -> bytes:
        return msgspec.json.encode(Claim(numbered(1, 1), "test", 1))

    def copy(self) -> str:
        state = EncodedState.of(self.t.state)
        path = self.copies.write(state)
        self.t.say(Copied(state.next, path))
        return path

    def keep(self) -> None:
        """Writes the journal."""
        led, state = opening.lead(self.journal, STREAM, "test", 1, lambda: 1.0, lambda: next(numbers))
        self.wal.delete(layout.timeline_marker(STREAM, 1))
        self.wal.put_new(layout.timeline_marker(STREAM, 1), self.journal.read(claim_path(STREAM, numbered(1, 1))))
        for event in self.t.events:
            apply(state, event)
        led.append(self.t.events)
        led.sync()
        led.close()

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        if self.in_kafka is None:
            raise UnreachableError("no broker answered")
        return dict.fromkeys(topics, self.in_kafka)

    def write(self, epoch: int, *ranges: BlockRange, receiver: str = "r1", checked: bool = False) -> Block:
        """Write a block to the WAL without a report."""
        made = self.t.block(epoch, list(ranges), receiver=receiver)
        if checked:
            made = msgspec.structs.replace(made, meta=msgspec.structs.replace(made.meta, checked=True))
        if epoch not in self.writers:
            self.writers[epoch] = LogWriter(
                self.wal,
                lambda sequence: layout.block_segment(STREAM, receiver, epoch, sequence),
                SegmentIdentity(STREAM, receiver, epoch, timeline_of(epoch)),
                SegmentLimits(1, 1e9),
                lambda: 1.0,
                lambda: next(numbers),
            )
        pending = self.writers[epoch].append(FrameKind.BLOCK, encode_meta(made.meta), b"payload " * 20)
        self.writers[epoch].sync()
        assert pending.handle is not None
        return msgspec.structs.replace(made, handle=pending.handle)

    def take_in(self, epoch: int, *ranges: BlockRange, receiver: str = "r1") -> Block:
        block = self.write(epoch, *ranges, receiver=receiver)
        (result,) = self.t.report(epoch, block, receiver=receiver)
        assert result.accepted, result
        return block

    def rebuild(self) -> RebuildPlan:
        return rebuild.rebuild(
            self.journal, self.wal, STREAM, self.topic_ids, "test", 9, lambda: 1.0, lambda: next(numbers)
        )

    def lead(self) -> State:
        return opening.lead(self.journal, STREAM, "test", 1, lambda: 1.0, lambda: next(numbers), wal=self.wal)[1]


def damage(storage: Storage, handle: Handle) -> None:
    whole = bytearray(storage.read(handle.path))
    whole[handle.offset + handle.length - 1] ^= 1
    storage.replace(handle.path, bytes(whole))


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
    (hole,) = plan.missing_offsets
    assert (hole.topic, hole.partition, hole.position, hole.next_from) == ("t", 0, 10, 20)


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


def test_batch_finished_in_a_surviving_history_is_not_repeated() -> None:
    for survives in (True, False):
        lost = Lost()
        t = lost.t
        epoch = t.register()
        token = t.claim(epoch).view.token
        lost.take_in(epoch, offsets(0, 10, token))
        first = t.batch()
        lost.copy()
        t.complete(first)
        lost.take_in(epoch, offsets(10, 20, token))
        second = t.batch()
        t.complete(second)
        done = history.finished(t.state)
        t.archive(first, second)
        lost.take_in(epoch, offsets(20, 30, token))
        if survives:
            writer = history.HistoryWriter(
                lost.journal,
                STREAM,
                numbered(1, 1),
                segment_bytes=1 << 20,
                now=lambda: 1.0,
                new_uid=lambda: next(numbers),
            )
            writer.append(done)
            writer.close()
        plan = lost.rebuild()
        named = {batch.batch_id: batch.ranges for batch in plan.rebuild.repeated}
        if survives:
            assert named == {0: ("t/0[20, 30)",)}
        else:
            assert named == {first: ("t/0[0, 10)",), 0: ("t/0[10, 30)",)}
        assert plan.state.next_batch_id() > second
        assert plan.state.partitions["t/0"].completed == (20 if survives else 0)
        assert audit.report(plan.state, history.read(lost.journal, STREAM)).clean
        # a driver that slept archives its batches after the rebuild: they don't count any more
        assert audit.report(plan.state, done).clean
        assert not history_view(plan.state, history.read(lost.journal, STREAM)).finding
        assert bool(history_view(plan.state, ()).finding) == survives  # it was there when the rebuild read it


def test_offsets_finished_only_by_the_copy_are_attested() -> None:
    lost = Lost()
    t = lost.t
    epoch = t.register()
    token = t.claim(epoch).view.token
    block = lost.take_in(epoch, offsets(0, 10, token))
    batch = t.batch()
    t.complete(batch)
    t.archive(batch)
    lost.copy()
    lost.wal.delete(block.handle.path)  # by a clean-up that the copy does not know of
    lost.take_in(epoch, offsets(10, 20, token))
    plan = lost.rebuild()
    report = audit.report(plan.state, ())
    assert report.clean
    assert (report.incarnations[0].attested, report.incarnations[0].waiting) == (10, 10)
    assert report.rebuilds[0].attested == 10
    assert block.id not in plan.state.blocks
    assert not plan.missing
    assert history_view(plan.state, ()) == HistoryView(0)
    later = msgspec.structs.replace(plan.state, archived_number=2)  # of the new timeline
    assert history_view(later, ()).finding == "the history lacks 1 finished batches, from number 2 to 2"
    cut = msgspec.structs.replace(plan.state.partitions["t/0"], position=30)
    plan.state.partitions["t/0"] = cut
    assert [f.kind for f in audit.report(plan.state, ()).findings] == ["missing"]


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


def test_unreadable_copy_is_reported_and_the_previous_one_used() -> None:
    lost = Lost()
    t = lost.t
    epoch = t.register()
    token = t.claim(epoch).view.token
    lost.take_in(epoch, offsets(0, 10, token))
    older = lost.copy()
    lost.take_in(epoch, offsets(10, 20, token))
    newest = lost.copy()
    whole = lost.wal.read(newest)
    for bad, words in ((whole[:300], "not finished"), (whole[:300] + b"x" + whole[301:], "can't be used")):
        lost.wal.replace(newest, bad)
        evidence = rebuild.read_evidence(lost.journal, lost.wal, STREAM, lost.topic_ids)
        assert evidence.copy_path == older
        assert words in evidence.notes[0]
        state = rebuild.rebuilt(evidence, 2, 9, "test").state
        assert state.partitions["t/0"].position == 20
    lost.wal.delete(newest)
    plan = rebuild.rebuilt(rebuild.read_evidence(lost.journal, lost.wal, STREAM, lost.topic_ids), 2, 9, "test")
    assert (plan.copy_path, plan.state.partitions["t/0"].position) == (older, 20)
    lost.wal.delete(older)
    with pytest.raises(RefusedError, match="holds no snapshot copy"):
        lost.rebuild()
    assert timeline.newest_marker(lost.wal, STREAM) == 1, "refused before anything was changed"


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


@pytest.mark.parametrize("hidden", [0, 1])
def test_copy_omitted_by_a_listing_is_found(hidden: int) -> None:
    lost = Lost()
    epoch = lost.t.register()
    token = lost.t.claim(epoch).view.token
    lost.take_in(epoch, offsets(0, 10, token))
    copies = [lost.copy()]
    lost.take_in(epoch, offsets(10, 20, token))
    copies.append(lost.copy())
    wal = cast(Storage, Unlisted(lost.wal, {copies[hidden]}))
    evidence = rebuild.read_evidence(lost.journal, wal, STREAM, lost.topic_ids)
    assert evidence.copy_path == copies[1], "the one after those that are listed is asked for by name"
    assert rebuild.rebuilt(evidence, 2, 9, "test").state.partitions["t/0"].position == 20


def test_a_journal_that_lost_a_segment_or_its_end_is_rebuilt() -> None:
    """The remedy in the driver's error works: such a journal does not count as whole."""
    for is_end in (False, True):
        lost = Lost()
        epoch = lost.t.register()
        token = lost.t.claim(epoch).view.token
        lost.copy()
        lost.take_in(epoch, offsets(0, 10, token))
        lost.keep()
        led, _ = opening.lead(lost.journal, STREAM, "test", 1, lambda: 1.0, lambda: next(numbers), wal=lost.wal)
        keeper = LeaseKeeper(lost.journal, STREAM, led.epoch, owner="test", url="", duration_seconds=600.0)
        keeper.follow(lambda led=led: led.confirmed + 1)  # type: ignore[misc]  # one more, which is cut off
        keeper.begin()
        keeper.end()
        if not is_end:
            lost.journal.delete(lease_path(STREAM))
            lost.journal.delete(layout.journal_segment(STREAM, led.epoch, 1))
        with pytest.raises(CorruptionError):
            lost.lead()
        copy, _, _ = rebuild.newest_copy(lost.wal, STREAM)
        rebuild.refuse_intact(lost.journal, lost.wal, STREAM, copy)
        lost.rebuild()
        assert lost.lead().partitions["t/0"].position == 10


def test_whole_journal_is_not_rebuilt_unless_older_than_its_copy() -> None:
    lost = Lost()
    t = lost.t
    lost.copy()
    lost.keep()
    copy, _, _ = rebuild.newest_copy(lost.wal, STREAM)
    with pytest.raises(RefusedError, match="--even-if-intact"):
        rebuild.refuse_intact(lost.journal, lost.wal, STREAM, copy)
    t.register()
    t.register("r2", "i2")
    lost.copy()
    copy, _, _ = rebuild.newest_copy(lost.wal, STREAM)
    rebuild.refuse_intact(lost.journal, lost.wal, STREAM, copy)


def test_a_frame_of_a_newer_release_stops_the_rebuild() -> None:
    lost = Lost()
    t = lost.t
    lost.copy()
    epoch = t.register()
    block = lost.take_in(epoch, offsets(0, 10, t.claim(epoch).view.token))
    whole = bytearray(lost.wal.read(block.handle.path))
    header = memoryview(whole)[block.handle.offset : block.handle.offset + 64]
    header[8:10] = (99).to_bytes(2, "little")  # the format version, under a checksum that holds (docs/FORMAT.md)
    header[60:64] = checksum([bytes(header[:60])]).to_bytes(4, "little")
    lost.wal.replace(block.handle.path, bytes(whole))
    with pytest.raises(NewerVersionError):
        rebuild.read_evidence(lost.journal, lost.wal, STREAM, lost.topic_ids)


def test_numbers_of_the_new_timeline_exceed_all_of_the_old_one() -> None:
    """INV-4: epochs, tokens, batches, and clean-ups, which agents acknowledge by number."""
    lost = Lost()
    t = lost.t
    lost.copy()
    old = t.register()
    token = t.claim(old).view.token
    lost.take_in(old, offsets(0, 10, token))
    lost.rebuild()
    state = lost.lead()
    assert min(state.next_epoch(), state.next_token(), state.next_batch_id(), state.cleanup_count + 1) > numbered(2, 0)
    tracker = Tracker(state, numbered(2, 2), tracker_options())
    with pytest.raises(FencedError, match="not registered"):
        tracker.decide(m.LookupRequest(receiver_id="r1", epoch=old, partitions=()), 0.0, 0)


@pytest.mark.parametrize("appendable", [True, False])
def test_no_driver_leads_an_empty_journal_after_a_kill_at_any_step(appendable: bool) -> None:
    """INV-5: refused, or the rebuilt state; and the next attempt succeeds. Every step of every write of both stores."""
    for disk in ("journal", "wal"):
        for step in itertools.count(1):
            lost = Lost(
                ForgetfulStorage("forgetful://journal", appendable=appendable),
                ForgetfulStorage("forgetful://wal", appendable=appendable),
            )
            t = lost.t
            lost.copy()
            epoch = t.register()
            token = t.claim(epoch).view.token
            lost.take_in(epoch, offsets(0, 10, token))
            batch = t.batch()
            t.complete(batch)
            lost.copy()
            lost.take_in(epoch, offsets(10, 20, token))
            storage: ForgetfulStorage = getattr(lost, disk)
            storage.crash_at_step = storage.steps + step
            try:
                lost.rebuild()
            except Crash:
                storage.crash_process()
            else:
                assert step > 5
                break
            try:
                state = lost.lead()
            except TimelineFound:
                lost.rebuild()
                state = lost.lead()
            assert state.partitions["t/0"].position == 20, (disk, step)
            assert len(state.waiting) == 1
            assert audit.report(state, history.read(lost.journal, STREAM)).clean


def test_paused_rebuild_changes_nothing_after_another_one() -> None:
    """INV-4: its timeline is an older one."""
    lost = Lost()
    lost.copy()
    slow = rebuild.steps(lost.journal, lost.wal, STREAM, lost.topic_ids, "slow", 9, lambda: 1.0, lambda: next(numbers))
    assert [next(slow), next(slow), next(slow)] == ["marked", "claimed", "read"]
    lost.rebuild()
    state = lost.lead()
    assert state.timeline == 3
    with pytest.raises(FencedError, match="rebuilt"):
        list(slow)
    assert lost.lead().timeline == 3


def test_driver_paused_during_several_rebuilds_is_fenced() -> None:
    """INV-4: it looks up the timeline after its own; a killed attempt left only its marker."""
    lost = Lost()
    led, _ = opening.lead(lost.journal, STREAM, "test", 1, lambda: 1.0, lambda: next(numbers))
    lost.copy()
    for path in lost.journal.list(""):
        lost.journal.delete(path)
    killed = rebuild.steps(
        lost.journal, lost.wal, STREAM, lost.topic_ids, "killed", 9, lambda: 1.0, lambda: next(numbers)
    )
    assert next(killed) == "marked"
    killed.close()
    led.check()
    assert lost.rebuild().state.timeline == 3
    with pytest.raises(FencedError, match="rebuilt"):
        led.check()


def test_batches_archived_after_the_loss_count_only_without_a_missing_one_before() -> None:
    """INV-3: the history's batches 1 and 2 were lost with the journal; the running driver archived the third."""
    lost = Lost()
    t = lost.t
    epoch = t.register()
    token = t.claim(epoch).view.token
    lost.copy()
    for until in (10, 20, 30):
        lost.take_in(epoch, offsets(until - 10, until, token))
        t.complete(t.batch())
    done = history.finished(t.state)
    writer = history.HistoryWriter(
        lost.journal, STREAM, numbered(1, 1), segment_bytes=1 << 20, now=lambda: 1.0, new_uid=lambda: next(numbers)
    )
    writer.append(done[2:])
    writer.close()
    plan = lost.rebuild()
    assert len(plan.state.waiting) == 3
    (named,) = plan.rebuild.repeated
    assert named.ranges == ("t/0[0, 30)",)
    assert audit.report(plan.state, history.read(lost.journal, STREAM)).clean


# ---- which topic is it of? --------------------------------------------------------------------------------------------


def created_again(in_kafka: str | None = "id-2") -> tuple[Lost, int, int]:
    """Incarnation 1 at offset 5, of a topic whose id in Kafka is ``in_kafka`` now; an epoch and its token."""
    lost = Lost(in_kafka=in_kafka)
    epoch = lost.t.register()
    token = lost.t.claim(epoch).view.token
    lost.take_in(epoch, offsets(0, 5, token))
    lost.copy()
    return lost, epoch, token


def position(plan: RebuildPlan, partition: int = 0) -> int:
    return plan.state.partitions[f"t/{partition}"].position


def test_block_that_may_be_of_a_recreated_topic_is_not_taken_but_named_as_repeated() -> None:
    """INV-3: the new topic's records were polled before its id was read; incarnation 2 begins at 0 and reads them."""
    for in_kafka in ("id-2", "", None):
        lost, epoch, token = created_again(in_kafka)
        block = lost.write(epoch, offsets(5, 20, token))
        plan = lost.rebuild()
        assert position(plan) == 5, in_kafka
        assert block.id not in plan.state.blocks
        (not_taken,) = plan.not_taken
        assert not_taken.block_id == block.id
        assert "created again" in not_taken.reason
        assert plan.rebuild.repeated[-1].ranges == ("t/0[0, 20)",)
        assert [note for note in plan.notes if "no broker answered" in note] == list(plan.notes)
        assert bool(plan.notes) is (in_kafka is None)
        assert audit.report(plan.state, ()).clean


def test_records_of_the_new_topic_are_taken_only_in_its_incarnation() -> None:
    """INV-3."""
    lost, epoch, token = created_again()
    lost.write(epoch, offsets(5, 20, token))
    apply(lost.t.state, ev.IncarnationBegun(ev.IncarnationStart("t", 0, 0, "id-2"), 1, "recreated"))
    lost.take_in(epoch, offsets(0, 20, lost.t.claim(epoch).view.token, incarnation=2))
    state = lost.rebuild().state
    old, new = state.partitions["t/0"].incarnations
    assert (old.end, new.start, state.partitions["t/0"].position) == (5, 0, 20)
    assert len(state.waiting) == 2


def test_a_topic_that_is_still_the_same_or_a_block_that_was_checked_is_taken() -> None:
    """INV-1."""
    for in_kafka, checked in (("id-1", False), ("id-2", True), (None, True)):
        lost, epoch, token = created_again(in_kafka)
        lost.write(epoch, offsets(5, 20, token), checked=checked)
        plan = lost.rebuild()
        assert (position(plan), plan.not_taken, plan.notes) == (20, (), ()), in_kafka


def test_block_without_a_known_topic_id_is_taken_without_asking_kafka() -> None:
    lost = Lost(in_kafka=None)
    for partition in lost.t.state.partitions.values():
        partition.incarnation.topic_id = ""
    lost.copy()
    epoch = lost.t.register()
    lost.take_in(epoch, offsets(0, 20, lost.t.claim(epoch).view.token))
    plan = lost.rebuild()
    assert (position(plan), plan.notes) == (20, ())


def test_block_before_a_later_claim_or_gap_was_accepted() -> None:
    """INV-1: and with it the blocks of its token before it."""
    for over_gap in (False, True):
        lost, epoch, token = created_again()
        for at in (5, 10, 15):
            lost.take_in(epoch, offsets(at, at + 5, token))
        if over_gap:
            apply(lost.t.state, ev.GapRecorded(topic="t", partition=0, gap=Gap(20, 22, "retention"), time_ms=1))
        view = lost.t.claim(epoch).view
        held = offsets(view.position, 30, view.token)
        lost.take_in(epoch, msgspec.structs.replace(held, preceding_gap=view.preceding_gap))
        plan = lost.rebuild()
        assert position(plan) == 20
        assert [one.ranges for one in plan.not_taken] == [(held.label,)]


def test_continuing_block_under_the_same_token_proves_nothing_unless_checked() -> None:
    """INV-3: a receiver writes ahead of its reports, so both may hold the new topic's records."""
    for checked, reached in ((False, 5), (True, 30)):
        lost, epoch, token = created_again()
        other = lost.t.claim(epoch, 1).view.token
        lost.write(epoch, offsets(5, 20, token), offsets(0, 7, other, 1))
        lost.write(epoch, offsets(20, 30, token), checked=checked)
        assert position(lost.rebuild()) == reached


def test_block_named_by_a_surviving_history_was_accepted() -> None:
    """INV-1, INV-3."""
    lost, epoch, token = created_again()
    block = lost.take_in(epoch, offsets(5, 20, token))
    lost.t.complete(lost.t.batch())
    writer = history.HistoryWriter(
        lost.journal, STREAM, numbered(1, 1), segment_bytes=1 << 20, now=lambda: 1.0, new_uid=lambda: next(numbers)
    )
    writer.append(history.finished(lost.t.state))
    writer.close()
    plan = lost.rebuild()
    assert position(plan) == 20
    assert block.id in plan.state.released
    assert audit.report(plan.state, history.read(lost.journal, STREAM)).clean


# ---- snapshot copies --------------------------------------------------------------------------------------------------


def test_copy_is_due_immediately_for_new_partitions_and_waiting_clean_up() -> None:
    t = Tracked()
    now = Limits(0)
    assert copy_due(State(stream=STREAM, timeline=1), now, 0) is Due.NO
    assert copy_due(t.state, now, 0) is Due.NOW
    t.copy(1)
    assert copy_due(t.state, now, 0) is Due.NO, "the event that tells of the copy is no news"
    epoch = t.register()
    t.take_in(epoch, t.claim(epoch).view.token, 10)
    assert copy_due(t.state, now, 0) is Due.LATER
    batch = t.batch()
    t.complete(batch)
    t.archive(batch)
    for _ in range(2):
        assert copy_due(t.state, now, t.now_ms) is Due.SOON
        t.copy(1)
    assert copy_due(t.state, now, t.now_ms) is Due.NO
    apply(t.state, ev.PartitionsAdded((ev.IncarnationStart("t", 9, 0),), 1, "later"))
    assert copy_due(t.state, now, t.now_ms) is Due.NOW


def test_last_two_copies_are_kept_and_older_remains_deleted() -> None:
    lost = Lost()
    paths = [lost.copy() for _ in range(4)]
    lost.wal.put_new(layout.snapshot_copy(STREAM, numbered(1, 1), 9), b"")
    for _ in range(2):
        lost.copies.prune(lost.t.state.copies)
        kept = lost.wal.list(layout.snapshot_folder(STREAM))
        assert kept == [*paths[2:], layout.snapshot_copy(STREAM, numbered(1, 1), 9)]
