"""A store without space: frames stay until it has room, and no attempt leaves a segment behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest
from typing_extensions import Buffer

from forebay.model.errors import OutOfSpaceError
from tests.support.state.segments import add, contents, durable, name, served, writer
from tests.support.stores.forgetful import Crash, ForgetfulStorage
from wal.segments.scan import SegmentScan
from wal.storage import AppendFile, store_error
from wal.storage.local import LocalStorage


@pytest.mark.parametrize("rewrite", [False, True])
def test_lack_of_space_keeps_the_frames_and_a_later_sync_writes_them_to_a_new_segment(rewrite: bool) -> None:
    """The journal's writer waits too, and does not fail."""
    storage = ForgetfulStorage(capacity_bytes=1000)
    log = writer(storage, rewrite=rewrite)
    first = add(log, "first", 200)
    log.sync()
    group = [add(log, "a", 300), add(log, "b", 300)]
    for _ in range(5):
        with pytest.raises(OutOfSpaceError):
            log.sync()
    assert log.unsynced() == 2
    assert storage.list("s") == [name(1)]  # waiting costs no files
    storage.capacity_bytes = 10_000
    assert log.sync() == group
    assert [served(storage, pending) for pending in (first, *group)] == [b"first", b"a", b"b"]
    assert log.current_path == name(2)


def test_lack_of_space_at_a_sync_poisons_as_any_error_does() -> None:
    storage = ForgetfulStorage()
    log = writer(storage, rewrite=False)
    pending = add(log, "a")
    storage.fail("sync", 1, OutOfSpaceError("delayed allocation"))
    with pytest.raises(OutOfSpaceError):
        log.sync()
    assert log.sync() == [pending]
    assert log.current_path == name(1), "nothing of the first one was durable: its name is used again"
    storage.crash_host(Random(1))
    assert served(storage, pending) == b"a"


class Quota(LocalStorage):
    """A local folder under a quota, which the file system's free space does not show: no more than ``left`` bytes are written."""

    def __init__(self, root: str, left: int) -> None:
        super().__init__(root)
        self.left = left

    def create(self, path: str) -> AppendFile:
        file = super().create(path)
        real = file.append

        def append(data: Buffer) -> None:
            size = memoryview(data).nbytes
            if size > self.left:
                real(bytes(data)[: self.left])
                self.left = 0
                raise store_error(OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), path)
            real(data)
            self.left -= size

        file.append = append  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("rewrite", [False, True])
@pytest.mark.parametrize("left", [0, 100, 700])
def test_failed_attempts_under_a_quota_leave_no_segment_behind(tmp_path: Path, rewrite: bool, left: int) -> None:
    """INV-6. A quota shows only in writing: the store's free space does not include it."""
    storage = Quota(str(tmp_path), 10_000)
    log = writer(storage, rewrite=rewrite, size_bytes=1)
    first = [add(log, "a"), add(log, "b")]
    log.sync()
    storage.left = left
    group = [add(log, "c", 300), add(log, "d", 300)]
    add(log, "e", 300)
    for _ in range(20):
        with pytest.raises(OutOfSpaceError):
            log.sync()
        assert storage.list("s") == [name(1)]
        storage.left = left
    assert log.unsynced() == 3
    storage.left = 10_000
    done = log.sync()
    assert [pending.tag for pending in done] == ["c", "d", "e"]
    assert storage.list("s") == [name(1), name(2)]
    assert log.sealed == [name(1)]
    assert [served(storage, pending) for pending in (*first, *group)] == [b"a", b"b", b"c", b"d"]


def test_segment_with_durable_frame_stays_after_lack_of_space(tmp_path: Path) -> None:
    """INV-1."""
    storage = Quota(str(tmp_path), 10_000)
    log = writer(storage)
    first = add(log, "a")
    log.sync()
    storage.left = 50
    add(log, "b")
    for _ in range(3):
        with pytest.raises(OutOfSpaceError):
            log.sync()
    assert served(storage, first) == b"a"
    storage.left = 10_000
    log.sync()
    assert storage.list("s") == [name(1), name(2)]
    assert [metadata for metadata, _ in durable(storage)] == [b"a", b"b"]


def test_segment_that_cant_be_deleted_is_deleted_by_the_next_attempt() -> None:
    storage = ForgetfulStorage()
    log = writer(storage)
    storage.fail("append", 1, OutOfSpaceError("quota"))
    storage.fail("delete", 1)
    pending = add(log, "a")
    assert storage.list("s") == [name(1)]
    assert log.sync() == [pending]
    assert storage.list("s") == [name(1)]
    assert served(storage, pending) == b"a"


def test_killed_at_any_step_of_a_write_without_room_what_was_durable_is_there() -> None:
    """INV-1: deleting a segment without a durable frame loses nothing else."""
    for step in range(1, 200):
        storage = ForgetfulStorage(capacity_bytes=1500)
        log = writer(storage, size_bytes=1)
        first = [add(log, "a"), add(log, "b")]
        log.sync()
        storage.crash_at_step = storage.steps + step
        try:
            add(log, "c", 2000)
            with pytest.raises(OutOfSpaceError):
                log.sync()
            storage.capacity_bytes = 10_000
            log.sync()
        except Crash:
            storage.crash_host(Random(step))
            assert [served(storage, pending) for pending in first] == [b"a", b"b"]
            continue
        assert step > 5
        return
    pytest.fail("it never ended")


def test_follower_yields_frames_of_recreated_segment_once(tmp_path: Path) -> None:
    """A follower sees what is written before its sync: after lack of space the frames are written again at the same places."""
    storage = Quota(str(tmp_path), 700)
    log = writer(storage)
    scan = SegmentScan(storage, name(1))
    add(log, "a", 200)
    found = list(scan.more(False))
    assert [metadata for metadata, _ in contents(found)] == [b"a"]
    add(log, "b", 200)
    add(log, "c", 200)
    storage.left = 10_000
    log.sync()
    found += scan.more(False)
    assert [metadata for metadata, _ in contents(found)] == [b"a", b"b", b"c"]
