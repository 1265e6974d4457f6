"""Clean-up: how many requests it costs, what a failure leaves, and what it must not do once another timeline uses the WAL."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from driver.background import cleaner
from driver.background.cleaner import (
    FRAMES_AT_ONCE,
    OBJECTS_AT_ONCE,
    REQUESTS_AT_ONCE,
    CleanedWal,
    Cleaner,
    ReadDueSegments,
    ReadLeaving,
)
from driver.background.snapshot_copies import SnapshotCopies
from driver.decision_loop.loop import DriverLoop
from driver.decisions.clean_up import CleanSegment
from driver.journal import history
from driver.journal.history import HistoryWriter
from driver.journal.state import State
from driver.tracker import DeleteSegment
from driver.tracker.requests import Archived, CleanedUp, Copied, Read
from forebay.model.errors import FencedError, StoreError
from forebay.model.identifiers import numbered
from forebay.process.clock import ManualClock
from tests.support.state.tracked import STREAM, Tracked
from wal.decisions.retention import FrameFacts, RetentionLimits, SegmentFacts
from wal.segments import layout
from wal.segments.scan import scan_segment
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
        if isinstance(request, Copied):
            return ()
        return request.read(self.state) if isinstance(request, Read) else None

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
        clock, limits = ManualClock(), RetentionLimits(retention_ms=0)
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


def test_the_log_has_one_line_for_the_deleted_segments_of_an_epoch(caplog: pytest.LogCaptureFixture) -> None:
    """On an object store there are several each second."""
    cleaned = Cleaned()
    names = [
        layout.block_segment(STREAM, receiver, 1, number) for receiver, number in (("r1", 2), ("r1", 4), ("r2", 1))
    ]
    for number, name in enumerate(names):
        cleaned.wal.put_new(name, b"")
        cleaned.cleaner.perform(DeleteSegment(number, name))
    with caplog.at_level("INFO"):
        cleaned.cleaner.act()
    assert [" ".join(record.getMessage().split()[:6]) for record in caplog.records] == [
        f"deleted WAL segments {names[0]} to 00000004.seg",
        f"deleted WAL segment {names[2]}: no batch,",
    ]
    assert cleaned.wal.list("") == [SEGMENT]


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


def test_history_has_a_batch_before_the_journal_may_forget_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-5: a driver that is killed between the two leaves the batch in both, never in neither."""
    cleaned = Cleaned()
    ask = cleaned.loop.ask
    archived: list[tuple[int, ...]] = []

    def noting(request: Any) -> Any:
        if isinstance(request, Archived):
            archived.append(request.batch_ids)
            assert tuple(batch.batch_id for batch in history.read(cleaned.journal, STREAM)) == request.batch_ids
        return ask(request)

    monkeypatch.setattr(cleaned.loop, "ask", noting)
    cleaned.cleaner.look()
    assert archived == [tuple(cleaned.loop.state.batches)]


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


def fail_deletes(cleaned: Cleaned, monkeypatch: pytest.MonkeyPatch, *broken: str) -> None:
    delete = cleaned.wal.delete

    def fail(path: str) -> None:
        if path in broken:
            raise StoreError(f"{path} is held")
        delete(path)

    monkeypatch.setattr(cleaned.wal, "delete", fail)


def test_segment_that_cannot_be_deleted_keeps_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-8: the others are deleted and reported in the same round, and it is repeated by the next one."""
    cleaned = Cleaned()
    paths = intend(cleaned, 2 * REQUESTS_AT_ONCE)
    fail_deletes(cleaned, monkeypatch, paths[0], paths[REQUESTS_AT_ONCE + 3])
    for _ in range(2):
        with pytest.raises(StoreError, match="held"):
            cleaned.cleaner.act()
        assert cleaned.wal.list("") == [paths[0], paths[REQUESTS_AT_ONCE + 3]]
        reported = [request.number for request in cleaned.loop.requests]
        assert reported == [n for n in range(1, 2 * REQUESTS_AT_ONCE + 1) if n not in (1, REQUESTS_AT_ONCE + 4)]
    monkeypatch.undo()
    cleaned.cleaner.act()
    assert cleaned.wal.list("") == []
    assert len(cleaned.loop.requests) == 2 * REQUESTS_AT_ONCE


def test_round_goes_on_while_a_segment_cannot_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the journal would grow with each batch: nothing would move to the history."""
    cleaned = Cleaned()
    intend(cleaned, 1)
    fail_deletes(cleaned, monkeypatch, SEGMENT)
    asked: list[Any] = []
    ended = threading.Event()

    def ask(request: Any) -> Any:
        asked.append(request)
        if isinstance(request, ReadLeaving) and sum(isinstance(item, ReadLeaving) for item in asked) == 2:
            ended.set()
        return type(cleaned.loop).ask(cleaned.loop, request)

    monkeypatch.setattr(cleaned.loop, "ask", ask)
    cleaned.cleaner._pause_seconds = 0.01
    cleaned.cleaner.start()
    assert ended.wait(30)
    cleaned.cleaner.stop()
    assert cleaned.wal.exists(SEGMENT)


def test_segment_that_cannot_be_read_keeps_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned = Cleaned()
    for sequence in range(2, 5):
        cleaned.wal.put_new(layout.block_segment(STREAM, "r1", 1, sequence), b"")
    broken = layout.block_segment(STREAM, "r1", 1, 2)
    scan = scan_segment

    def fail(storage: Any, path: str, *, payloads: bool) -> Any:
        if path == broken:
            raise StoreError(f"{path} can't be read")
        return scan(storage, path, payloads=payloads)

    monkeypatch.setattr(cleaner, "scan_segment", fail)
    with pytest.raises(StoreError, match="can't be read"):
        cleaned.cleaner.look()
    examined = {request.facts.path for request in cleaned.loop.requests if isinstance(request, CleanSegment)}
    assert examined == {SEGMENT, *(layout.block_segment(STREAM, "r1", 1, sequence) for sequence in (3, 4))}


def test_segments_that_are_due_are_examined_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision on one passes those that are due before it: in another order, many decisions would take seconds."""
    cleaned = Cleaned()
    paths = [SEGMENT]
    for sequence in range(2, 6):
        paths.append(layout.block_segment(STREAM, "r1", 1, sequence))
        cleaned.wal.put_new(paths[-1], b"")
    due = tuple(paths[place] for place in (3, 1, 4, 0))
    ask = type(cleaned.loop).ask

    def answered(request: Any) -> Any:
        answer = ask(cleaned.loop, request)
        return (due, answer[1]) if isinstance(request, ReadDueSegments) else answer

    monkeypatch.setattr(cleaned.loop, "ask", answered)
    cleaned.cleaner.look()
    examined = [request.facts.path for request in cleaned.loop.requests if isinstance(request, CleanSegment)]
    assert examined == [*due, paths[2]]


def test_segments_with_many_frames_are_decided_in_small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: receivers wait for an answer meanwhile."""
    cleaned = Cleaned()
    for sequence in range(2, 9):
        cleaned.wal.put_new(layout.block_segment(STREAM, "r1", 1, sequence), b"")
    many = (FrameFacts("r1-1-1", ()),) * (FRAMES_AT_ONCE // 2)
    monkeypatch.setattr(cleaner, "segment_facts", lambda path, _, **flags: SegmentFacts(path, True, False, many, (), 0))
    cleaned.cleaner.look()
    assert [size for size in cleaned.loop.groups if size] == [2, 2, 2, 2]


def test_rebuilt_journal_stops_the_deletions_that_are_left() -> None:
    """INV-4: the WAL's owner is checked before each group of deletions, not once for all."""
    cleaned = Cleaned()
    paths = intend(cleaned, 2 * REQUESTS_AT_ONCE)
    checks = itertools.count()
    cleaned.is_superseded = lambda: next(checks) == 1
    with pytest.raises(FencedError, match="rebuilt"):
        cleaned.cleaner.act()
    assert cleaned.wal.list("") == sorted(paths[REQUESTS_AT_ONCE:])
