"""Appends past the page cache: the same bytes as through it, in an order that a power loss can't turn into damage."""

from __future__ import annotations

import errno
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.model.errors import OutOfSpaceError, StoreError
from wal.segments.frame import Frame, FrameKind
from wal.segments.scan import TornTail, scan_segment
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import MemoryStorage, past_cache
from wal.storage.direct_writes import BLOCK_BYTES, CHUNK_BYTES, LARGE_BYTES_MIN
from wal.storage.local import LocalStorage

_SIZES = (0, 1, 64, BLOCK_BYTES - 1, BLOCK_BYTES, LARGE_BYTES_MIN - 1, LARGE_BYTES_MIN, CHUNK_BYTES, CHUNK_BYTES + 65)


class _Writes:
    """The writes and syncs of files, in order. ``direct``: (offset, length) of each direct write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, write: Callable[[int, Any], int] = os.write) -> None:
        self.direct: list[tuple[int, int]] = []
        self.unsynced = 0  # bytes through the cache since the last sync
        self.exposed: list[int] = []  # of these, how many there were at each direct write
        real_sync = os.fdatasync

        def written(descriptor: int, data: Any) -> int:
            if _is_direct(descriptor):
                self.direct.append((os.fstat(descriptor).st_size, memoryview(data).nbytes))
                self.exposed.append(self.unsynced)
                return write(descriptor, data)
            self.unsynced += memoryview(data).nbytes
            return _real_write(descriptor, data)

        def synced(descriptor: int) -> None:
            self.unsynced = 0
            real_sync(descriptor)

        monkeypatch.setattr(os, "write", written)
        monkeypatch.setattr(os, "fdatasync", synced)


_real_write = os.write


def _is_direct(descriptor: int) -> bool:
    flags = next(line for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines() if "flags" in line)
    return bool(int(flags.split()[1], 8) & os.O_DIRECT)


def _refused(*_: Any) -> int:
    raise OSError(errno.EINVAL, "injected")


def _half(descriptor: int, data: Any) -> int:
    return _real_write(descriptor, memoryview(data)[: max(BLOCK_BYTES, len(data) // 2 // BLOCK_BYTES * BLOCK_BYTES)])


def _appended(storage: LocalStorage, seed: int) -> bytes:
    random_ = random.Random(seed)
    file = storage.create("a")
    whole = b""
    for _ in range(random_.randrange(2, 12)):
        data = random_.randbytes(random_.choice(_SIZES))
        file.append(data)
        whole += data
        if random_.random() < 0.4:
            file.sync()
            assert storage.read("a") == whole
    file.sync()
    file.close()
    return whole


@pytest.mark.parametrize("write", [_real_write, _half, _refused], ids=["direct", "partial", "refused"])
def test_appends_past_the_cache_have_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[int, Any], int]
) -> None:
    writes = _Writes(monkeypatch, write)
    for seed in range(25):
        storage = LocalStorage(str(tmp_path / str(seed))).past_cache()
        assert _appended(storage, seed) == storage.read("a")
    assert writes.direct, "no append was large enough"
    assert all(not offset % BLOCK_BYTES and not length % BLOCK_BYTES for offset, length in writes.direct)


def test_bytes_before_a_direct_write_are_synced_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-1: otherwise a power loss could keep the end of a group without its beginning, which a reader takes for damage."""
    writes = _Writes(monkeypatch)
    for seed in range(25):
        _appended(LocalStorage(str(tmp_path / str(seed))).past_cache(), seed)
    assert len(writes.exposed) > 25
    assert not any(writes.exposed)


def test_file_systems_without_direct_writes_get_the_bytes_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def without(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "injected")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", without)
    writes = _Writes(monkeypatch)
    for seed in range(10):
        storage = LocalStorage(str(tmp_path / str(seed))).past_cache()
        assert _appended(storage, seed) == storage.read("a")
    assert not writes.direct


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, OutOfSpaceError), (errno.EIO, StoreError)])
def test_failed_direct_write_ends_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[StoreError]
) -> None:
    def fail(*_: Any) -> int:
        raise OSError(code, "injected")

    _Writes(monkeypatch, fail)
    file = LocalStorage(str(tmp_path)).past_cache().create("a")
    with pytest.raises(error, match="can't be written"):
        file.append(bytes(2 * CHUNK_BYTES))
    with pytest.raises(StoreError, match="earlier write or sync failed"):
        file.sync()
    file.close()


def test_blocks_of_a_log_are_whole_and_small_groups_stay_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = _Writes(monkeypatch)
    storage = past_cache(LocalStorage(str(tmp_path)))
    log = LogWriter(
        storage, lambda sequence: f"s/{sequence}", identity=SegmentIdentity("s", "r", 1, 1),
        limits=SegmentLimits(size_bytes=1 << 30, age_seconds=1e9), now=lambda: 0.0, new_uid=lambda: 7,
    )  # fmt: skip
    payloads = []
    for large in (False, True, True, False):
        size = 3 * CHUNK_BYTES + 77 if large else 1_000
        before = len(writes.direct)
        payloads.append([os.urandom(size // 2), os.urandom(size - size // 2)])
        pending = log.append(FrameKind.BLOCK, b"\x80", payloads[-1])
        log.sync()
        assert pending.handle is not None
        assert bool(len(writes.direct) - before) is large
    log.close()
    _, *frames = scan_segment(storage, "s/1")
    assert [frame.payload.to_pybytes() for frame in frames if isinstance(frame, Frame)] == list(map(b"".join, payloads))


def test_kill_after_any_write_leaves_whole_frames_and_at_most_a_torn_tail(tmp_path: Path) -> None:
    """INV-1: a synced frame is whole, and what was not synced is never damage."""
    writes = 1
    while not _killed_after(writes, tmp_path / str(writes)):
        synced = (tmp_path / str(writes) / "synced").stat().st_size
        found = list(scan_segment(LocalStorage(str(tmp_path / str(writes))), "s/1"))
        assert all(isinstance(item, (Frame, TornTail)) for item in found), (writes, found)
        assert sum(isinstance(item, Frame) for item in found) > synced, writes
        writes += 1
    assert writes > 10


def _killed_after(writes: int, folder: Path) -> bool:
    """Write two groups in a process that is killed after this many writes. Return whether the process ended by itself."""
    storage = LocalStorage(str(folder)).past_cache()
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    try:
        log = LogWriter(
            storage, lambda sequence: f"s/{sequence}", identity=SegmentIdentity("s", "r", 1, 1),
            limits=SegmentLimits(size_bytes=1 << 30, age_seconds=1e9), now=lambda: 0.0, new_uid=lambda: 7,
        )  # fmt: skip
        log.append(FrameKind.BLOCK, b"\x80", b"first")
        log.sync()
        synced = os.open(folder / "synced", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        left = writes

        def write(descriptor: int, data: Any) -> int:
            nonlocal left
            written = _real_write(descriptor, data)
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return written

        os.write = write
        _real_write(synced, b".")
        for _ in range(2):
            log.append(FrameKind.BLOCK, b"\x80", [bytes(2 * CHUNK_BYTES), bytes(3_000)])
            log.append(FrameKind.BLOCK, b"\x80", bytes(LARGE_BYTES_MIN))
            log.sync()
            _real_write(synced, b"..")
        os._exit(0)
    finally:
        os._exit(1)


def test_a_store_without_a_page_cache_is_left_as_it_is() -> None:
    store = MemoryStorage("direct-writes")
    assert past_cache(store) is store
