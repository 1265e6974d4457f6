"""The log's writer on a store of whole objects: one object per sync, the same bytes until they are stored."""

from __future__ import annotations

import weakref
from random import Random

import numpy as np
import pytest

from forebay.model.errors import FencedError, OutOfSpaceError, StoreError
from tests.support.state.segments import contents, durable, name, writer
from tests.support.stores.forgetful import Crash, ForgetfulStorage
from wal.segments.frame import Frame, FrameKind
from wal.segments.scan import read_frame, scan_segment, segment_header
from wal.segments.writer import LogWriter, Pending


def objects() -> ForgetfulStorage:
    return ForgetfulStorage(appendable=False)


def add(log: LogWriter, label: str) -> Pending:
    return log.append(FrameKind.BLOCK, label.encode(), [label.encode(), b"!"])


def labels(storage: ForgetfulStorage) -> list[bytes]:
    return [metadata for metadata, _ in durable(storage)]


def test_each_sync_is_one_object_with_all_that_was_appended() -> None:
    storage = objects()
    log = writer(storage)
    first = [add(log, "a"), add(log, "b")]
    assert storage.steps == 0
    assert log.unsynced() == 2
    assert log.sync() == first
    second = [add(log, "c")]
    assert log.sync() == second
    assert log.sync() == []
    assert storage.calls["put_new"] == 2
    assert storage.list("s") == [name(1), name(2)] == log.sealed
    assert contents(list(scan_segment(storage, name(1)))) == [(b"a", b"a!"), (b"b", b"b!")]
    header = next(scan_segment(storage, name(2)))
    assert isinstance(header, Frame)
    found = segment_header(header)
    assert found is not None
    assert (found.path, found.sequence, found.writer) == (name(2), 2, "r")
    for pending in (*first, *second):
        assert pending.handle is not None
        assert read_frame(storage, pending.handle).payload.to_pybytes() == pending_label(storage, pending) + b"!"


def pending_label(storage: ForgetfulStorage, pending: Pending) -> bytes:
    assert pending.handle is not None
    return read_frame(storage, pending.handle).metadata


@pytest.mark.parametrize("lands", ["never", "now", "late"])
def test_after_an_error_the_same_bytes_are_put_under_the_same_name(lands: str) -> None:
    """A late attempt stores the writer's own object, and frames appended since go into the next one."""
    storage = objects()
    log = writer(storage)
    first = add(log, "a")
    storage.fail("put_new", 1, lands=lands)
    with pytest.raises(StoreError):
        log.sync()
    assert first.handle is None
    second = add(log, "b")
    assert log.unsynced() == 2
    if storage.late:
        storage.land(0)
    assert log.sync() == [first, second]
    assert first.handle is not None and first.handle.path == name(1)
    assert second.handle is not None and second.handle.path == name(2)
    assert labels(storage) == [b"a", b"b"]
    assert storage.list("s") == [name(1), name(2)]


def test_an_object_that_is_built_holds_the_only_copy_of_its_payloads() -> None:
    """INV-6: while a store does not answer, payloads are kept once, and the same bytes are sent again."""
    storage = objects()
    log = writer(storage)
    payload = np.frombuffer(b"x" * 1000, np.uint8).copy()
    held = weakref.ref(payload)
    log.append(FrameKind.BLOCK, b"a", payload)
    storage.fail("put_new", 1)
    with pytest.raises(StoreError):
        log.sync()
    del payload
    assert held() is None
    log.sync()
    assert durable(storage) == [(b"a", b"x" * 1000)]


def test_late_attempt_after_its_retry_changes_nothing() -> None:
    storage = objects()
    log = writer(storage)
    add(log, "a")
    storage.fail("put_new", 1, lands="late")
    with pytest.raises(StoreError):
        log.sync()
    log.sync()
    before = storage.read(name(1))
    storage.land(0)
    assert storage.read(name(1)) == before


def test_next_sync_returns_what_became_durable_before_a_failure() -> None:
    storage = objects()
    log = writer(storage)
    first = add(log, "a")
    storage.fail("put_new", 1)
    with pytest.raises(StoreError):
        log.sync()
    second = add(log, "b")
    storage.fail("put_new", 2)
    with pytest.raises(StoreError):
        log.sync()
    assert first.handle is not None
    assert log.unsynced() == 1
    assert log.sync() == [first, second]


def test_name_taken_by_another_writer_fences() -> None:
    """INV-4: only one process writes under an epoch. The segment's uid distinguishes the same frames of two writers."""
    storage = objects()
    one, other = writer(storage), writer(storage, first_uid=77)
    add(one, "a")
    add(other, "a")
    one.sync()
    first = storage.read(name(1))
    for _ in range(2):
        with pytest.raises(FencedError):
            other.sync()
    assert storage.read(name(1)) == first


@pytest.mark.parametrize("damage", ["bit of the header", "bit of a frame", "end", "no segment"])
def test_own_object_that_is_damaged_is_not_taken_for_another_writers(damage: str) -> None:
    """The answer to its put was lost. Nothing shows that another process writes, so the store is at fault, and is asked again."""
    storage = objects()
    log = writer(storage)
    pending = add(log, "a")
    storage.fail("put_new", 1, lands="now")
    with pytest.raises(StoreError):
        log.sync()
    whole = storage.read(name(1))
    at = {"bit of the header": 9, "bit of a frame": len(whole) - 20}.get(damage)
    flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] if at is not None else b"no segment"
    storage.replace(name(1), whole[:-7] if damage == "end" else flipped)
    with pytest.raises(StoreError, match="damaged, or was not read whole"):
        log.sync()
    storage.replace(name(1), whole)
    assert log.sync() == [pending]


def test_lack_of_space_keeps_the_frames() -> None:
    storage = objects()
    log = writer(storage, rewrite=False)
    pending = add(log, "a")
    storage.fail("put_new", 1, OutOfSpaceError("full"))
    with pytest.raises(OutOfSpaceError):
        log.sync()
    assert log.sync() == [pending]


def test_without_rewriting_an_error_ends_the_writer() -> None:
    storage = objects()
    log = writer(storage, rewrite=False)
    add(log, "a")
    storage.fail("put_new", 1)
    with pytest.raises(StoreError):
        log.sync()
    with pytest.raises(StoreError, match="ended after an error"):
        log.sync()


@pytest.mark.parametrize("at", range(1, 8))
def test_a_kill_anywhere_leaves_whole_objects_and_keeps_what_was_synced(at: int) -> None:
    """INV-1, INV-4: no partly written object is ever visible, even when a pending request is carried out late."""
    storage = objects()
    log = writer(storage)
    acknowledged: list[bytes] = []
    storage.crash_at_step = at
    try:
        for label in ("a", "b"):
            add(log, label)
            log.sync()
            acknowledged.append(label.encode())
    except Crash:
        pass
    storage.crash_host(Random(at))
    assert labels(storage)[: len(acknowledged)] == acknowledged
    while storage.late:
        storage.land(0)
    found = labels(storage)
    assert found == [b"a", b"b"][: len(found)]
    assert len(found) >= len(acknowledged)
