"""Segments that nothing needs are deleted, and no others, also with a faulty store or clock."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from driver import IngestContext
from driver.background.cleaner import Cleaner
from forebay.model.errors import StoreError
from forebay.model.units import Duration
from tests.support.intakes import Collecting, Configure, ready
from tests.support.jumping_clock import jumping_system_clock
from tests.support.played import PlayedReceiver
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
