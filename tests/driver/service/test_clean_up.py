"""Segments that nothing needs are deleted, and no others, also with a faulty store or clock."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from driver import IngestContext
from driver.background.cleaner import Cleaner
from driver.decisions.clean_up import CleanSegment
from driver.service.composition import make_tracker
from forebay.model.errors import StoreError
from forebay.model.units import Duration
from forebay.settings.reading.load import from_values
from tests.forebay.settings.test_settings import good_values
from tests.support.processes.played import PlayedReceiver
from tests.support.state.intakes import Collecting, Configure, ready
from tests.support.state.jumping_clock import jumping_system_clock
from tests.support.state.tracked import STREAM, Tracked
from wal.decisions.retention import FrameFacts, SegmentFacts
from wal.storage.local import LocalStorage


def test_a_deletion_that_the_store_refuses_is_tried_again(
    settings: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-8: an intent is repeated until it is done, and clean-up does not end for it."""
    monkeypatch.setattr("driver.service.housekeeping.ROUND_SECONDS", 0.05)
    refusals: list[str] = []
    really = LocalStorage.delete

    def delete(self: LocalStorage, path: str) -> None:
        if path.endswith(".seg") and "/blocks/" in path and len(refusals) < 2:
            refusals.append(path)
            raise StoreError("the store is away")
        really(self, path)

    monkeypatch.setattr(LocalStorage, "delete", delete)
    s = settings()
    job = Collecting(20)
    with IngestContext(None, s) as intake:
        intake.foreach_batch(job)
        tp = ready(intake, s)
        receiver = PlayedReceiver(s, intake.url)
        first = receiver.take_in(tp, 10)
        receiver.take_in(tp, 10)
        for _ in range(1000):
            if not (tmp_path / "wal" / first.handle.path).exists():
                break
            threading.Event().wait(0.02)
    assert refusals == [first.handle.path] * 2
    assert not (tmp_path / "wal" / first.handle.path).exists()


def test_segments_that_nothing_needs_any_more_are_deleted(settings: Configure, tmp_path: Path) -> None:
    """INV-8, with a rewind horizon of nothing."""
    s = settings()
    job = Collecting(20)
    with IngestContext(None, s) as intake:
        intake.foreach_batch(job)
        tp = ready(intake, s)
        receiver = PlayedReceiver(s, intake.url)
        first = receiver.take_in(tp, 10)
        second = receiver.take_in(tp, 10)
        assert job.enough.wait(30)
        for _ in range(1000):
            if not (tmp_path / "wal" / first.handle.path).exists():
                break
            threading.Event().wait(0.02)
        assert not (tmp_path / "wal" / first.handle.path).exists()
        assert (tmp_path / "wal" / second.handle.path).exists(), "its writer may still append"


def test_a_wall_clock_that_jumps_ahead_deletes_nothing_that_retention_promises(
    settings: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that runs, and one that is started under the wrong clock, with and without batches of its own, more than once."""
    clock, rounds = jumping_system_clock(), threading.Semaphore(0)
    look = Cleaner.look

    def counted(cleaner: Cleaner) -> None:
        look(cleaner)
        rounds.release()

    monkeypatch.setattr("driver.context.SystemClock", lambda: clock)
    monkeypatch.setattr(Cleaner, "look", counted)
    s = settings()
    s = msgspec.structs.replace(
        s, wal=msgspec.structs.replace(s.wal, retention=Duration(3600), cleanup_interval=Duration(0.01))
    )
    kept: list[str] = []
    for jump_days in (0, 30, 0, 0):
        job = Collecting(20)
        with IngestContext(None, s) as intake:
            intake.foreach_batch(job)
            tp = ready(intake, s)
            receiver = PlayedReceiver(s, intake.url)
            kept.append(receiver.take_in(tp, 10).handle.path)
            receiver.take_in(tp, 10)
            assert job.enough.wait(30)
            clock.jump(jump_days * 86_400)
            for _ in range(10 + 5 * bool(jump_days)):
                assert rounds.acquire(timeout=30)
        assert [path for path in kept if not (tmp_path / "wal" / path).exists()] == []


@pytest.mark.parametrize(
    ("limits", "deleted"),
    [
        ({}, False),
        ({"retention_size": "1B"}, True),
        ({"retention_blocks": 1}, True),
        ({"retention_blocks": 1, "retention_free": "1B"}, True),
        ({"retention_blocks": 2, "retention_free": "1B"}, False),  # no round of clean-up has said how much is free
    ],
    ids=str,
)
def test_drivers_tracker_deletes_by_every_limit_of_the_settings(limits: dict[str, object], deleted: bool) -> None:
    """INV-8: a request without limits of its own is judged by all limits of ``[wal]``, as a round of clean-up is."""
    t = Tracked(partitions=1)
    epoch = t.register()
    token = t.claim(epoch).view.token
    paths = [f"{STREAM}/blocks/r1/{epoch:016x}/{number:08d}.seg" for number in (1, 2)]
    first, _ = (t.take_in(epoch, token, 10 * number, path=path) for number, path in enumerate(paths, 1))
    batch = t.batch()
    t.complete(batch)
    t.archive(batch)
    t.copy()
    wal = {"url": "file:///w", "retention": "30d", **limits}
    tracker = make_tracker(from_values(good_values(wal=wal)), t.state, t.tracker.driver_epoch)
    facts = SegmentFacts(paths[0], sealed=True, fenced=False, frames=(FrameFacts(first.id, first.meta.ranges),))
    decision = tracker.decide(CleanSegment(facts, "r1", epoch, t.now_ms), t.now_ms / 1000, t.now_ms)
    assert bool(decision.actions) == deleted
