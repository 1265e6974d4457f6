"""The log's writer: groups, rolling, poisoned segments, crashes."""

from __future__ import annotations

import errno
import itertools
import os
from functools import partial
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import Buffer

from forebay.model.errors import FencedError, OutOfSpaceError, StoreError
from forebay.process import failpoints
from tests.support.forgetful import Crash, ForgetfulStorage
from tests.support.segments import contents, durable, memory, name, writer
from wal.segments.frame import MAX_METADATA, Frame, FrameKind
from wal.segments.scan import Damage, SegmentScan, TornTail, read_frame, scan_segment
from wal.segments.writer import LogWriter, Pending
from wal.storage import AppendFile, store_error
from wal.storage.local import LocalStorage


def add(log: LogWriter, label: str, size: int = 20) -> Pending:
    pending = log.append(FrameKind.BLOCK, label.encode(), [label.encode(), bytes(size)])
    pending.tag = label
    return pending


def served(storage: ForgetfulStorage | LocalStorage, pending: Pending) -> bytes:
    assert pending.handle is not None
    frame = read_frame(storage, pending.handle)
    assert frame.payload.to_pybytes().rstrip(b"\0") == frame.metadata
    return frame.metadata


def test_one_sync_makes_a_whole_group_durable_and_gives_it_its_handles() -> None:
    storage = ForgetfulStorage()
    log = writer(storage)
    group = [add(log, f"b{n}") for n in range(5)]
    assert [pending.handle for pending in group] == [None] * 5
    assert log.unsynced() == 5
    syncs = storage.calls["sync"]
    assert log.sync() == group
    assert storage.calls["sync"] == syncs + 1
    assert log.unsynced() == 0
    storage.crash_host(Random(1))
    assert [served(storage, pending) for pending in group] == [b"b0", b"b1", b"b2", b"b3", b"b4"]
    assert [pending.tag for pending in group] == ["b0", "b1", "b2", "b3", "b4"]


def test_a_sync_without_frames_does_nothing() -> None:
    storage = ForgetfulStorage()
    log = writer(storage)
    assert log.sync() == []
    assert storage.steps == 0
    assert log.current_path is None


def test_a_new_segment_begins_by_size_and_names_are_dense() -> None:
    storage = memory()
    log = writer(storage, size_bytes=1000)
    for number in range(10):
        add(log, f"b{number}", 200)
        log.sync()
    paths = storage.list("s")
    assert paths == [name(sequence) for sequence in range(1, len(paths) + 1)]
    assert log.sealed == paths[:-1]
    assert log.current_path == paths[-1]
    assert log.next_sequence == len(paths) + 1
    assert all(storage.size(path) <= 1000 for path in paths)
    assert [metadata for metadata, _ in durable(storage)] == [b"b%d" % number for number in range(10)]


def test_a_new_segment_begins_by_age_at_the_next_append() -> None:
    storage = memory()
    now = 100.0
    log = writer(storage, age_seconds=5, now=lambda: now)
    add(log, "a")
    log.sync()
    now = 104.9
    add(log, "b")
    log.sync()
    assert len(storage.list("s")) == 1
    now = 105.0
    add(log, "c")
    log.sync()
    assert [len(contents(list(scan_segment(storage, path)))) for path in storage.list("s")] == [2, 1]


def test_changed_clock_only_changes_when_a_segment_ends() -> None:
    storage = memory()
    now = 1_000_000.0
    log = writer(storage, size_bytes=1000, age_seconds=5, now=lambda: now)
    labels: list[str] = []
    for jump in (0, 0, 2_000_000, 0, -2_000_000, 0, 0, 0, 0, 0, 0):
        now += jump
        labels.append(f"b{len(labels)}")
        add(log, labels[-1], 200)
        log.sync()
    assert [metadata.decode() for metadata, _ in durable(storage)] == labels
    assert all(storage.size(path) <= 1000 for path in storage.list("s"))


def test_group_is_in_one_segment_and_oversized_frame_in_its_own() -> None:
    storage = memory()
    log = writer(storage, size_bytes=1000)
    for number in range(10):
        add(log, f"b{number}", 400)
    log.sync()
    assert len(storage.list("s")) == 1
    big = add(log, "big", 50_000)
    log.sync()
    assert big.handle is not None
    assert big.handle.path == name(2)
    add(log, "next")
    log.sync()
    assert [len(contents(list(scan_segment(storage, path)))) for path in storage.list("s")] == [10, 1, 1]


def test_large_payloads_are_written_buffer_by_buffer_and_small_frames_in_one_call() -> None:
    storage = ForgetfulStorage()
    log = writer(storage)
    add(log, "small")
    appends = storage.calls["append"]
    assert appends == 2  # the segment's header, the frame
    large = log.append(FrameKind.BLOCK, b"large", [memoryview(bytes(200_000)), bytearray(200_000), b"x"])
    log.sync()
    assert storage.calls["append"] == appends + 5  # header and metadata, three buffers, padding
    assert large.handle is not None
    assert read_frame(storage, large.handle).payload.to_pybytes() == bytes(400_000) + b"x"


def test_oversized_frame_is_refused_and_changes_nothing() -> None:
    """INV-6."""
    storage = memory()
    log = writer(storage)
    add(log, "a")
    with pytest.raises(ValueError, match="metadata"):
        log.append(FrameKind.BLOCK, bytes(MAX_METADATA + 1), b"")
    add(log, "b")
    assert [pending.tag for pending in log.sync()] == ["a", "b"]


# ---- poisoned segments -----------------------------------------------------------------------------------------------


def test_a_segment_whose_sync_failed_is_never_synced_again_and_its_frames_are_rewritten() -> None:
    """INV-1: pages of a failed sync may be marked clean; only another file can make them durable."""
    storage = ForgetfulStorage()
    log = writer(storage)
    first = add(log, "first")
    log.sync()
    storage.fail("sync", 1)
    group = [add(log, "a"), add(log, "b")]
    assert log.sync() == group
    assert first.handle is not None
    assert first.handle.path == name(1)
    assert [pending.handle.path for pending in group if pending.handle] == [name(2), name(2)]
    assert log.sealed == [name(1)]
    add(log, "c")
    log.sync()
    assert log.current_path == name(2)
    storage.crash_host(Random(3))
    assert [served(storage, pending) for pending in (first, *group)] == [b"first", b"a", b"b"]
    assert contents(list(scan_segment(storage, name(1))))[0][0] == b"first"


@pytest.mark.parametrize("nth", [1, 2])
def test_a_failed_write_is_kept_and_rewritten_with_what_is_appended_after_it(nth: int) -> None:
    storage = ForgetfulStorage()
    log = writer(storage)
    storage.fail("append", nth)
    group = [add(log, "a"), add(log, "b"), add(log, "c")]
    assert log.current_path is None
    assert log.unsynced() == 3
    assert log.sync() == group
    assert [pending.handle.path for pending in group if pending.handle] == [name(2)] * 3
    storage.crash_host(Random(3))
    assert [served(storage, pending) for pending in group] == [b"a", b"b", b"c"]


def test_an_error_in_the_second_segment_too_is_raised_and_a_later_sync_tries_again() -> None:
    storage = ForgetfulStorage()
    log = writer(storage)
    group = [add(log, "a"), add(log, "b")]
    storage.fail("sync", 1)
    storage.fail("sync", 2)
    with pytest.raises(StoreError):
        log.sync()
    assert log.unsynced() == 2
    assert log.sync() == group
    assert log.current_path == name(3)
    assert log.sealed == [name(1), name(2)]
    storage.crash_host(Random(5))
    assert [served(storage, pending) for pending in group] == [b"a", b"b"]


def test_without_rewrite_an_error_ends_the_writer() -> None:
    """The journal: after a failed sync it is unknown what is durable, and the process ends."""
    for operation in ("append", "sync"):
        storage = ForgetfulStorage()
        log = writer(storage, rewrite=False)
        add(log, "a")
        log.sync()
        storage.fail(operation, 1)

        def group(log: LogWriter = log) -> None:
            add(log, "b")
            log.sync()

        with pytest.raises(StoreError, match="injected"):
            group()
        calls = dict(storage.calls)
        for attempt in (log.sync, partial(add, log, "c")):
            with pytest.raises(StoreError, match="ended after an error"):
                attempt()
        assert dict(storage.calls) == calls


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


def test_name_taken_by_another_writer_fences() -> None:
    """INV-4: only one process writes under an epoch."""
    storage = memory()
    storage.put_new(name(1), b"somebody else's")
    log = writer(storage)
    with pytest.raises(FencedError):
        add(log, "a")
    with pytest.raises(FencedError):
        log.sync()
    assert storage.read(name(1)) == b"somebody else's"


def test_name_left_by_failed_create_is_skipped() -> None:
    class HalfCreating(ForgetfulStorage):
        def create(self, path: str):  # type: ignore[no-untyped-def]
            file = super().create(path)
            if path == name(1):
                raise StoreError("the folder's sync failed")
            return file

    storage = HalfCreating()
    log = writer(storage)
    pending = add(log, "a")
    assert log.sync() == [pending]
    assert log.current_path == name(2)
    assert log.sealed == [name(1)]
    assert list(scan_segment(storage, name(1))) == []


def test_failed_create_without_a_file_reuses_its_sequence() -> None:
    """Names are dense within an epoch, so that recovery can probe for the next one."""
    storage = ForgetfulStorage()
    log = writer(storage)
    storage.fail("create", 1)
    pending = add(log, "a")
    assert log.sync() == [pending]
    assert storage.list("s") == [name(1)]


def test_closing_ends_the_writer_and_syncs_nothing() -> None:
    storage = ForgetfulStorage()
    log = writer(storage)
    add(log, "a")
    log.close()
    log.close()
    assert storage.calls["sync"] == 0
    assert log.sealed == [name(1)]
    with pytest.raises(StoreError):
        add(log, "b")


# ---- failpoints ------------------------------------------------------------------------------------------------------


@pytest.fixture
def armed(tmp_path: Path):  # type: ignore[no-untyped-def]
    directory = tmp_path / "failpoints"
    directory.mkdir()

    def arm(spec: str) -> Path:
        failpoints.arm(spec, str(directory))
        return directory

    yield arm
    failpoints.arm("")


@pytest.mark.parametrize("point", ["wal.mid-write", "wal.before-sync", "wal.after-sync"])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_each_failpoint_is_passed_and_an_error_there_poisons(armed, point: str, error: str) -> None:  # type: ignore[no-untyped-def]
    directory = armed(f"{point}=error:{error}@2")
    storage = memory()
    log = writer(storage, failpoints=True)
    add(log, "a")
    log.sync()
    pending = add(log, "b")
    if error == "ENOSPC" and point != "wal.mid-write":
        with pytest.raises(OutOfSpaceError):
            log.sync()
    assert log.sync() == [pending]
    assert (directory / f"{point}.hit").exists()
    assert pending.handle is not None
    assert pending.handle.path == name(2)


def test_half_of_a_frame_is_there_at_the_failpoint_within_a_write(armed) -> None:  # type: ignore[no-untyped-def]
    armed("wal.mid-write=error:EIO@2")
    storage = memory()
    log = writer(storage, failpoints=True)
    add(log, "a", 500)
    log.sync()
    add(log, "b", 500)
    found = list(scan_segment(storage, name(1)))
    assert isinstance(found[-1], TornTail)
    assert found[-1].length == (64 + 64 + 512) // 2


def test_failpoints_are_passed_only_where_asked_for(armed) -> None:  # type: ignore[no-untyped-def]
    directory = armed("wal.before-sync=error:EIO,wal.after-sync=error:EIO,wal.mid-write=error:EIO")
    log = writer(memory())
    add(log, "a")
    assert len(log.sync()) == 1
    assert list(directory.iterdir()) == []


# ---- crashes ---------------------------------------------------------------------------------------------------------


def _work(storage: ForgetfulStorage, promised: list[Pending], rewrite: bool) -> None:
    """A writer's life: groups of one to three frames, through several segments. ``promised``: what sync returned."""
    log = writer(storage, size_bytes=700, rewrite=rewrite)
    number = itertools.count()
    for group in (1, 3, 2, 1, 2):
        for _ in range(group):
            add(log, f"b{next(number)}", 150)
        promised += log.sync()
    log.close()


def _check(storage: ForgetfulStorage, promised: list[Pending]) -> None:
    """INV-1: everything promised is there, by handle and by scan; nothing found is anything but what was written, and
    any incomplete frame is after everything that was promised in its segment.
    """
    for pending in promised:
        assert served(storage, pending) == str(pending.tag).encode()
    found = []
    for path in storage.list("s"):
        ends = [p.handle.offset + p.handle.length for p in promised if p.handle and p.handle.path == path]
        for item in scan_segment(storage, path):
            if isinstance(item, Frame):
                if item.header.kind == FrameKind.BLOCK:
                    found.append(item.metadata)
            else:
                assert item.offset >= max(ends, default=0)
    labels = [f"b{number}".encode() for number in range(9)]
    assert set(found) <= set(labels)
    assert {str(pending.tag).encode() for pending in promised} <= set(found)


def _steps(rewrite: bool, fail_syncs: tuple[int, ...] = ()) -> int:
    storage = ForgetfulStorage()
    for nth in fail_syncs:
        storage.fail("sync", nth)
    _work(storage, [], rewrite)
    return storage.steps


@pytest.mark.parametrize("fail_syncs", [(), (2,), (3,), (1, 4)])
@pytest.mark.parametrize("zero_fill", [False, True])
def test_a_crash_before_any_step_keeps_everything_that_sync_returned(
    fail_syncs: tuple[int, ...], zero_fill: bool
) -> None:
    """INV-1, over every step of a writer's life, with and without syncs that fail; three fates of the cache for
    each.
    """
    steps = _steps(True, fail_syncs)
    assert steps > 30
    for step in range(1, steps + 1):
        for seed in range(3):
            storage = ForgetfulStorage()
            for nth in fail_syncs:
                storage.fail("sync", nth)
            storage.crash_at_step = step
            promised: list[Pending] = []
            with pytest.raises(Crash):
                _work(storage, promised, rewrite=True)
            storage.crash_host(Random(seed * 1000 + step), zero_fill=zero_fill)
            _check(storage, promised)


def test_a_kill_of_the_process_keeps_even_what_was_not_synced() -> None:
    for step in range(1, _steps(False) + 1):
        storage = ForgetfulStorage()
        storage.crash_at_step = step
        promised: list[Pending] = []
        with pytest.raises(Crash):
            _work(storage, promised, rewrite=False)
        storage.crash_process()
        _check(storage, promised)
        assert not any(isinstance(item, Damage) for path in storage.list("s") for item in scan_segment(storage, path))


@settings(derandomize=True, max_examples=150, deadline=None)
@given(data=st.data())
def test_no_synced_frame_is_lost_after_any_sequence_of_failures(data: st.DataObject) -> None:
    """INV-1 and rule 7: errors, lack of space that comes and goes, then a host that crashes."""
    storage = ForgetfulStorage(capacity_bytes=data.draw(st.integers(200, 6000)))
    log = writer(storage, size_bytes=700)
    promised: list[Pending] = []
    for number in range(data.draw(st.integers(1, 12))):
        for operation in ("append", "sync", "create"):
            if data.draw(st.integers(0, 5)) == 0:
                storage.fail(operation, data.draw(st.integers(1, 3)))
        add(log, f"b{number}", data.draw(st.sampled_from([0, 40, 300])))
        if data.draw(st.booleans()):
            try:
                promised += log.sync()
            except StoreError:
                assert storage.capacity_bytes is not None
                storage.capacity_bytes += data.draw(st.sampled_from([0, 2000]))
    storage.crash_host(Random(data.draw(st.integers(0, 9))), zero_fill=data.draw(st.booleans()))
    for pending in promised:
        assert served(storage, pending) == str(pending.tag).encode()
    tags = [str(pending.tag) for pending in promised]
    assert tags == [f"b{number}" for number in range(len(tags))]


def test_the_same_log_is_read_back_from_a_local_folder(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path / "wal"))
    log = writer(storage, size_bytes=5000)
    pendings = []
    for number in range(30):
        pendings.append(add(log, f"b{number}", 400))
        log.sync()
    assert [served(storage, pending) for pending in pendings] == [b"b%d" % number for number in range(30)]
    assert [metadata for metadata, _ in durable(storage)] == [b"b%d" % number for number in range(30)]


def test_a_failed_sync_of_a_local_file_moves_the_log_to_a_new_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(str(tmp_path / "wal"))
    log = writer(storage)
    pending = add(log, "a")
    real, synced = os.fdatasync, []

    def fail_once(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        synced.append(path.rsplit("/", 1)[1])
        if len(synced) == 1:
            raise OSError(errno.EIO, "injected")
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", fail_once)
    assert log.sync() == [pending]
    assert synced == ["00000001.seg", "00000002.seg"]
    assert served(storage, pending) == b"a"
