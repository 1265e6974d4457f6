"""Barriers: after a barrier no object of a fenced writer can appear, and every reader sees an empty segment."""

from __future__ import annotations

import itertools

import pytest

from driver.journal.state import ADOPTER
from forebay.model.errors import FencedError, StoreError
from recovery.examination import examine
from tests.support.state.segments import name, writer
from tests.support.stores.forgetful import Crash, ForgetfulStorage
from wal.decisions.retention import SegmentFacts, segment_facts
from wal.segments.barrier import BARRIER_KEPT_MS, bar, barrier_made_ms
from wal.segments.follow import StreamFollower
from wal.segments.frame import Frame, FrameKind
from wal.segments.layout import BlockPlace, parse_block
from wal.segments.scan import scan_segment
from wal.segments.writer import LogWriter

MADE_MS = 5_000


def objects() -> ForgetfulStorage:
    return ForgetfulStorage(appendable=False)


def place(sequence: int) -> BlockPlace:
    found = parse_block(name(sequence))
    assert found is not None
    return found


def make(storage: ForgetfulStorage, first: int = 1) -> BlockPlace:
    uids = itertools.count(77)
    return bar(storage, place(first), lambda: MADE_MS, lambda: next(uids))


def add(log: LogWriter, label: str) -> None:
    log.append(FrameKind.BLOCK, label.encode(), label.encode())


def barriers(storage: ForgetfulStorage) -> list[str]:
    return [path for path in storage.list("s") if isinstance(first := next(scan_segment(storage, path)), Frame)
            and barrier_made_ms(first, path) is not None]  # fmt: skip


@pytest.mark.parametrize("landed", [0, 2])
def test_object_of_fenced_writer_cant_appear_after_the_barrier(landed: int) -> None:
    """INV-2, INV-4: for every number of objects that it had stored."""
    storage = objects()
    log = writer(storage)
    for number in range(landed):
        add(log, str(number))
        log.sync()
    add(log, "late")
    storage.fail("sync", 1, lands="late")
    with pytest.raises(StoreError):
        log.sync()
    assert make(storage) == place(landed + 1)
    assert storage.land(0) == ""
    with pytest.raises(FencedError, match="exists already"):
        log.sync()
    assert storage.list("s") == [name(n + 1) for n in range(landed + 1)]


def test_object_that_appears_before_the_barrier_stays_and_the_barrier_follows_it() -> None:
    storage = objects()
    log = writer(storage)
    add(log, "late")
    storage.fail("sync", 1, lands="now")
    with pytest.raises(StoreError):
        log.sync()
    assert make(storage) == place(2)
    assert barriers(storage) == [name(2)]


def test_barrier_after_deleted_segments_begins_at_the_given_place() -> None:
    """Names of deleted segments are free again: a barrier under one of them would have no effect."""
    storage = objects()
    log = writer(storage)
    for label in "abc":
        add(log, label)
        log.sync()
    for sequence in (1, 2, 3):
        storage.delete(name(sequence))
    assert make(storage, first=4) == place(4)


@pytest.mark.parametrize("lands", ["never", "now", "late"])
def test_unanswered_barrier_is_made_once(lands: str) -> None:
    storage = objects()
    storage.fail("put_new", 1, lands=lands)
    with pytest.raises(StoreError):
        make(storage)
    assert make(storage) == place(1)
    if storage.late:
        storage.land(0)
    assert make(storage) == place(1)
    assert barriers(storage) == storage.list("s") == [name(1)]


def test_barrier_of_the_adopters_own_epoch_is_recognised() -> None:
    """A driver that was killed while it adopted leaves an epoch that gets a barrier like a receiver's."""
    storage, first = objects(), place(1)._replace(receiver=ADOPTER)
    made = {bar(storage, first, lambda: MADE_MS, lambda: 77) for _ in range(2)}
    assert made == {first}, "found, not made a second time"
    assert barriers(storage) == storage.list("s")


@pytest.mark.parametrize("at", range(1, 5))
def test_barrier_is_made_once_after_a_kill_at_any_step(at: int) -> None:
    storage = objects()
    add(log := writer(storage), "a")
    log.sync()
    storage.crash_at_step = storage.steps + at
    try:
        make(storage)
    except Crash:
        storage.crash_process()
    for _ in range(2):
        assert make(storage) == place(2)
    assert barriers(storage) == [name(2)]


def test_every_reader_sees_an_empty_segment() -> None:
    storage = objects()
    add(log := writer(storage), "a")
    log.sync()
    make(storage)
    (header,) = scan_segment(storage, name(2))
    assert isinstance(header, Frame) and header.header.kind == FrameKind.SEGMENT
    (whole,) = [segment for segment in examine(None, storage, "s").segments if segment.path == name(2)]
    assert (whole.frames, whole.verdicts, whole.copies, whole.swapped) == (1, (), (), False)
    assert [path for path, _ in StreamFollower(storage, "s").look()] == [name(1), name(1), name(2)]


def test_only_a_barrier_names_how_long_it_is_kept() -> None:
    storage = objects()
    add(log := writer(storage), "not a block's metadata")
    log.sync()
    make(storage)

    def facts(sequence: int) -> SegmentFacts:
        return segment_facts(name(sequence), scan_segment(storage, name(sequence)), sealed=True, fenced=True)

    assert facts(1).bars_until_ms == 0
    assert facts(2).bars_until_ms == MADE_MS + BARRIER_KEPT_MS
