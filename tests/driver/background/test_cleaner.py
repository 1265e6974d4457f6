"""Clean-up: what it must not do once another timeline uses the WAL."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest

from driver.background.cleaner import CleanedWal, Cleaner
from driver.background.snapshot_copies import SnapshotCopies
from driver.decision_loop.loop import DriverLoop
from driver.journal.history import HistoryWriter
from driver.journal.state import State
from driver.tracker import DeleteSegment
from driver.tracker.requests import CleanedUp
from forebay.model.errors import FencedError
from forebay.model.values import numbered
from forebay.process.clock import ManualClock
from tests.support.tracked import STREAM, Tracked
from wal.decisions.retention import Limits
from wal.segments import layout
from wal.storage import MemoryStorage

numbers = itertools.count(1)
SEGMENT = layout.block_segment(STREAM, "r1", 1, 1)


class Asked:
    """A loop that answers from ``state`` alone, and notes what it was asked."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.requests: list[Any] = []

    def ask(self, request: Any) -> Any:
        self.requests.append(request)
        return request.answer(self.state) if hasattr(request, "answer") else None


class Cleaned:
    """A cleaner beside a WAL with one segment, over a journal with one completed batch."""

    def __init__(self) -> None:
        self.superseded = False
        t = Tracked()
        epoch = t.register()
        t.take_in(epoch, t.claim(epoch).view.token, 10)
        t.complete(t.batch())
        self.loop = Asked(t.state)
        self.journal, self.wal = MemoryStorage(f"cleaned-{next(numbers)}"), MemoryStorage(f"cleaned-{next(numbers)}")
        self.wal.put_new(SEGMENT, b"")
        clock, limits = ManualClock(), Limits(0)
        copies = SnapshotCopies(
            self.loop.ask,
            self.wal,
            stream=STREAM,
            epoch=numbered(1, 1),
            clock=clock,
            interval_seconds=0.0,
            limits=limits,
            new_uid=lambda: 1,
        )
        writer = HistoryWriter(
            self.journal, STREAM, numbered(1, 1), segment_bytes=1_000, now=lambda: 1.0, new_uid=lambda: next(numbers)
        )
        self.cleaner = Cleaner(
            cast(DriverLoop, self.loop),
            CleanedWal(self.wal, limits, copies, lambda: self.superseded),
            history_writer=writer,
            stream=STREAM,
            clock=clock,
            pause_seconds=1.0,
            failed=lambda _: None,
        )


def test_intended_segment_is_deleted_and_the_deletion_is_reported() -> None:
    cleaned = Cleaned()
    cleaned.cleaner.perform(DeleteSegment(7, SEGMENT))
    cleaned.cleaner.act()
    assert not cleaned.wal.exists(SEGMENT)
    assert cleaned.loop.requests == [CleanedUp(7)]


def test_a_cleaner_whose_journal_was_rebuilt_deletes_no_segment() -> None:
    """INV-4, INV-8: the new timeline may need it again. The rebuild came between the intent and the deletion."""
    cleaned = Cleaned()
    cleaned.cleaner.perform(DeleteSegment(7, SEGMENT))
    cleaned.superseded = True
    with pytest.raises(FencedError, match="rebuilt"):
        cleaned.cleaner.act()
    assert cleaned.wal.exists(SEGMENT)
    assert cleaned.loop.requests == []


def test_a_cleaner_whose_journal_was_rebuilt_archives_and_copies_nothing() -> None:
    """INV-4: its batches may run again under the new timeline."""
    cleaned = Cleaned()
    cleaned.superseded = True
    with pytest.raises(FencedError, match="rebuilt"):
        cleaned.cleaner.look()
    assert cleaned.loop.requests == []
    assert cleaned.journal.list("") == []
    assert cleaned.wal.list("") == [SEGMENT]
