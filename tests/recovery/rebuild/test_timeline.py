"""Which journals are rebuilt; the new timeline, after kills, beside other rebuilds, and over drivers of the old one."""

from __future__ import annotations

import itertools
from random import Random
from typing import cast

import pytest

from driver.journal import history
from driver.journal.files import claim_path
from driver.journal.leadership.lease import LeaseKeeper, lease_path
from driver.journal.leadership.timeline import TimelineFound
from driver.journal.log import opening
from driver.tracker import Tracker
from forebay import messages as m
from forebay.model.errors import CorruptionError, FencedError, NewerVersionError, RefusedError
from forebay.model.identifiers import numbered
from recovery import audit, rebuild
from tests.support.state.lost_journal import Lost, numbers
from tests.support.state.tracked import STREAM, offsets, tracker_options
from tests.support.stores.forgetful import Crash, ForgetfulStorage
from tests.support.stores.unlisted import Unlisted
from wal.segments import layout
from wal.segments.payload import checksum
from wal.storage import Storage


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


@pytest.mark.parametrize("seed", range(4))
def test_marker_of_a_killed_rebuild_is_durable_when_the_next_one_has_ended(seed: int) -> None:
    """INV-5. The kill came before the marker's name was durable, and a power loss of the WAL's host comes later."""
    for step in itertools.count(1):
        wal = ForgetfulStorage("forgetful://wal")
        lost = Lost(wal=wal)
        epoch = lost.t.register()
        lost.take_in(epoch, offsets(0, 10, lost.t.claim(epoch).view.token))
        lost.copy()
        wal.crash_at_step = wal.steps + step
        try:
            lost.rebuild()
        except Crash:
            wal.crash_process()
        else:
            assert step > 5
            break
        lost.rebuild()
        wal.crash_host(Random(seed))
        assert lost.lead().partitions["t/0"].position == 10, step


def test_paused_rebuild_changes_nothing_after_another_one() -> None:
    """INV-4: its timeline is an older one."""
    lost = Lost()
    lost.copy()
    slow = rebuild.steps(
        lost.journal,
        lost.wal,
        stream=STREAM,
        topic_ids=lost.topic_ids,
        owner="slow",
        wall_ms=9,
        now=lambda: 1.0,
        new_uid=lambda: next(numbers),
    )
    assert [next(slow), next(slow), next(slow)] == ["marked", "claimed", "read"]
    lost.rebuild()
    state = lost.lead()
    assert state.timeline == 3
    with pytest.raises(FencedError, match="rebuilt"):
        list(slow)
    assert lost.lead().timeline == 3


def test_a_rebuilt_journal_is_led_and_not_rebuilt_again_if_its_claim_is_not_listed() -> None:
    """INV-5: the WAL's marker names its timeline, so the claim is asked for by name."""
    lost = Lost()
    lost.copy()
    for path in lost.journal.list(""):
        lost.journal.delete(path)
    lost.rebuild()
    whole = lost.journal
    lost.journal = cast(Storage, Unlisted(whole, {claim_path(STREAM, numbered(2, 1))}))
    copy, _, _ = rebuild.newest_copy(lost.wal, STREAM)
    with pytest.raises(RefusedError, match="is whole"):
        rebuild.refuse_intact(lost.journal, lost.wal, STREAM, copy)
    assert lost.lead().timeline == 2
    assert whole.exists(claim_path(STREAM, numbered(2, 2)))


def test_driver_paused_during_several_rebuilds_is_fenced() -> None:
    """INV-4: it looks up the timeline after its own; a killed attempt left only its marker."""
    lost = Lost()
    led, _ = opening.lead(lost.journal, STREAM, "test", 1, lambda: 1.0, lambda: next(numbers))
    lost.copy()
    for path in lost.journal.list(""):
        lost.journal.delete(path)
    killed = rebuild.steps(
        lost.journal,
        lost.wal,
        stream=STREAM,
        topic_ids=lost.topic_ids,
        owner="killed",
        wall_ms=9,
        now=lambda: 1.0,
        new_uid=lambda: next(numbers),
    )
    assert next(killed) == "marked"
    killed.close()
    led.check()
    assert lost.rebuild().state.timeline == 3
    with pytest.raises(FencedError, match="rebuilt"):
        led.check()
