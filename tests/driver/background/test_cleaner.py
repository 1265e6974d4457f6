"""Clean-up: how many requests it costs, what a failure leaves, and what it must not do once another timeline uses the WAL."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from driver.background.cleaner import OBJECTS_AT_ONCE, REQUESTS_AT_ONCE, CleanedWal, Cleaner
from driver.background.snapshot_copies import SnapshotCopies
from driver.decision_loop.loop import DriverLoop
from driver.journal.history import HistoryWriter
from driver.journal.state import State
from driver.tracker import DeleteSegment
from driver.tracker.requests import CleanedUp
from forebay.model.errors import FencedError, StoreError
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
        self.groups: list[int] = []

    def ask(self, request: Any) -> Any:
        self.requests.append(request)
        return request.answer(self.state) if hasattr(request, "answer") else None

    def ask_all(self, requests: Sequence[Any]) -> list[Any]:
        self.groups.append(len(requests))
        return [self.ask(request) for request in requests]


class Cleaned:
    """A cleaner beside a WAL with one segment, over a journal with one completed batch."""

    def __init__(self) -> None:
        self.superseded = False
        self.is_superseded: Callable[[], bool] = lambda: self.superseded
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
            CleanedWal(self.wal, limits, copies, lambda: self.is_superseded()),
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


def intend(cleaned: Cleaned, number: int) -> list[str]:
    paths = [layout.block_segment(STREAM, "r1", 1, sequence) for sequence in range(1, number + 1)]
    for sequence, path in enumerate(paths, 1):
        if path != SEGMENT:
            cleaned.wal.put_new(path, b"")
        cleaned.cleaner.perform(DeleteSegment(sequence, path))
    return paths


def test_deletions_share_the_journals_writes() -> None:
    """On a store of whole objects a write of the journal for each segment would be slower than receivers make segments."""
    cleaned = Cleaned()
    intend(cleaned, 3 * OBJECTS_AT_ONCE)
    cleaned.cleaner.act()
    assert cleaned.wal.list("") == []
    assert cleaned.loop.groups == [OBJECTS_AT_ONCE] * 3
    assert cleaned.loop.requests == [CleanedUp(number) for number in range(1, 3 * OBJECTS_AT_ONCE + 1)]


def test_deletion_that_failed_is_repeated_and_those_before_it_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned = Cleaned()
    paths = intend(cleaned, 2 * REQUESTS_AT_ONCE)
    delete, broken = cleaned.wal.delete, paths[REQUESTS_AT_ONCE + 3]

    def fail_once(path: str) -> None:
        if path == broken:
            monkeypatch.undo()
            raise StoreError("the store is away")
        delete(path)

    monkeypatch.setattr(cleaned.wal, "delete", fail_once)
    with pytest.raises(StoreError, match="away"):
        cleaned.cleaner.act()
    reported = {request.number for request in cleaned.loop.requests}
    assert set(range(1, REQUESTS_AT_ONCE + 1)) <= reported
    assert not reported & {paths.index(path) + 1 for path in cleaned.wal.list("")}, "only what is deleted is reported"
    cleaned.cleaner.act()
    assert cleaned.wal.list("") == []
    assert sorted(request.number for request in cleaned.loop.requests) == list(range(1, 2 * REQUESTS_AT_ONCE + 1))


def test_rebuilt_journal_stops_the_deletions_that_are_left() -> None:
    """INV-4: the WAL's owner is checked before each group of deletions, not once for all."""
    cleaned = Cleaned()
    paths = intend(cleaned, 2 * REQUESTS_AT_ONCE)
    checks = itertools.count()
    cleaned.is_superseded = lambda: next(checks) == 1
    with pytest.raises(FencedError, match="rebuilt"):
        cleaned.cleaner.act()
    assert cleaned.wal.list("") == sorted(paths[REQUESTS_AT_ONCE:])
