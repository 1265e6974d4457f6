"""A segment whose write or sync failed takes no more, and its frames are written to a new one."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from random import Random

import pytest

from forebay.model.errors import StoreError
from tests.support.state.segments import add, contents, name, served, writer
from tests.support.stores.forgetful import ForgetfulStorage
from wal.segments.scan import scan_segment
from wal.segments.writer import LogWriter
from wal.storage.local import LocalStorage


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
