"""Failpoints, crashes and kills of a writer: what a sync returned is read back."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.model.errors import OutOfSpaceError, StoreError
from forebay.process import failpoints
from tests.support.state.segments import add, durable, memory, name, served, writer
from tests.support.stores.forgetful import Crash, ForgetfulStorage
from wal.segments.frame import Frame, FrameKind
from wal.segments.scan import Damage, TornTail, scan_segment
from wal.segments.writer import Pending
from wal.storage.local import LocalStorage


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


def _work(storage: ForgetfulStorage, promised: list[Pending], rewrite: bool) -> None:
    """A writer's life cycle: groups of one to three frames, through several segments. ``promised``: what sync returned."""
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
    """INV-1, over every step of a writer's life cycle, with and without syncs that fail; three fates of the cache for
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
