"""Errors of the operating system in a host's block directory: one file stops nothing else, and the agent is started again."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.supervision.verdicts import VERDICTS, ExitVerdict, how_it_ended
from executor_agent.store import COUNT_SECONDS, BlockStore
from executor_agent.tidying import TEMPORARY_AGE_MS_MAX
from forebay.model.errors import OutOfSpaceError, StoreError, UsageError
from forebay.process.clock import ManualClock
from tests.support.state.rows import block, filler
from wal.blocks import LocalRoom, cached_path, used_bytes
from wal.blocks.local_writing import write_local

START_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> BlockStore:
    return BlockStore(tmp_path / "blocks", quota_bytes=1_000_000, clock=clock)


def write(store: BlockStore, sequence: int = 1) -> Path:
    return write_local(store.directory, *block({("a", 0): filler(50)}, sequence=sequence))


def failing(error: int, real: Callable[..., Any], *parts: str) -> Callable[..., Any]:
    """Return a function that raises ``error`` for a path that contains one of ``parts``, and else does what ``real`` does."""

    def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
        if any(part in os.fspath(getattr(path, "path", path)) for part in parts):
            raise OSError(error, os.strerror(error), os.fspath(path))
        return real(path, *arguments, **options)

    return call


def test_copy_that_cannot_be_read_at_start_stays_and_is_not_called_damaged(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-5: its readers verify it, and have other copies. The other files are examined."""
    unreadable, damaged = write(store, 1), write(store, 2)
    os.truncate(damaged, 100)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", failing(errno.EIO, Path.open, unreadable.name))
        lines = sorted(store.open())
    assert len(lines) == 2
    assert str(unreadable) in lines[0] and os.strerror(errno.EIO) in lines[0]
    assert lines[1].startswith(f"renamed {damaged} to ")
    assert store.usage().damaged == ("s/r1-10000000001-2",)
    os.close(store.read("s", "r1-10000000001-1"))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_damaged_copy_that_cannot_be_set_aside_stays_and_the_agent_starts(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    path = write(store)
    os.truncate(path, 100)
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", failing(error, os.link, path.name))
        (line,) = store.open()
    assert str(path) in line and os.strerror(error) in line and "cannot be set aside" in line
    assert path.stat().st_size == 100
    assert (store.usage().blocks, store.usage().damaged) == (1, ())
    assert store.open()[0].startswith("renamed")


def test_leftovers_that_cannot_be_deleted_are_named_and_everything_else_goes_on(
    store: BlockStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left = write(store).with_name(".r1-1-9.block.tmp")
    left.write_bytes(bytes(1000))
    empty = write(store, 2)
    os.truncate(empty, 0)
    os.utime(left, (START_MS / 1000, START_MS / 1000))
    clock.advance(TEMPORARY_AGE_MS_MAX / 1000 + 1)
    monkeypatch.setattr(Path, "unlink", failing(errno.EPERM, Path.unlink, left.name, empty.name))
    monkeypatch.setattr(os, "unlink", failing(errno.EPERM, os.unlink, left.name, empty.name))
    lines = store.open()
    assert len(lines) == 2 and all(os.strerror(errno.EPERM) in line for line in lines)
    assert str(left) in "".join(lines) and str(empty) in "".join(lines)
    for _ in range(3):
        assert store.usage().used_bytes == write(store).stat().st_size + 1000
        clock.advance(COUNT_SECONDS)
    assert len([said for said in caplog.messages if str(left) in said]) == 1, "the directory is counted often"


def test_folder_whose_name_no_stream_can_have_is_not_opened(
    store: BlockStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root of a filesystem has a folder ``lost+found``, which only root can list. The receivers' room is counted too."""
    size = write(store).stat().st_size
    for name in ("lost+found", ".Trash-0"):
        (store.directory / name).mkdir()
        (store.directory / name / "r1-1-1.block").write_bytes(b"x")
    monkeypatch.setattr(os, "scandir", failing(errno.EACCES, os.scandir, "lost+found", ".Trash-0"))
    assert store.open() == []
    assert (store.usage().blocks, store.usage().used_bytes) == (1, size)
    LocalRoom(store.directory, 10 * size).take(size)


def test_one_file_without_a_readable_status_does_not_end_heartbeats_or_local_copies(
    store: BlockStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = write(store, 1), write(store, 2)
    real = os.scandir

    class Entry:
        def __init__(self, entry: os.DirEntry[str]) -> None:
            self.name, self.path, self._entry = entry.name, entry.path, entry

        def is_dir(self, *, follow_symlinks: bool) -> bool:
            return self._entry.is_dir(follow_symlinks=follow_symlinks)

        def is_file(self, *, follow_symlinks: bool) -> bool:
            self.stat(follow_symlinks=follow_symlinks)  # as on a filesystem whose listings have no types
            return self._entry.is_file(follow_symlinks=follow_symlinks)

        def stat(self, *, follow_symlinks: bool) -> os.stat_result:
            if self.name == bad.name:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return self._entry.stat(follow_symlinks=follow_symlinks)

    @contextlib.contextmanager
    def scandir(path: Any) -> Iterator[Iterator[Entry]]:
        with real(path) as entries:
            yield map(Entry, entries)

    monkeypatch.setattr(os, "scandir", scandir)
    size = good.stat().st_size
    for _ in range(2):
        assert (store.usage().blocks, store.usage().used_bytes) == (1, size)
        clock.advance(COUNT_SECONDS)
    assert len([said for said in caplog.messages if str(bad) in said]) == 1
    assert used_bytes(store.directory) == size


@pytest.mark.parametrize("error", [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR])
@pytest.mark.parametrize("call", ["mkdir", "open", "scandir"])
def test_directory_that_a_person_must_correct_is_wrong_use(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch, call: str, error: int
) -> None:
    broken(store, monkeypatch, call, error)
    with pytest.raises(UsageError, match=rf"agent\.blocks: cannot .*{os.strerror(error)}; make it writable"):
        store.open()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ESTALE])
@pytest.mark.parametrize("call", ["mkdir", "open", "scandir"])
def test_directory_that_may_work_again_is_an_error_after_which_the_agent_is_started_again(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch, call: str, error: int
) -> None:
    """A supervisor restarts no process that found wrong settings."""
    broken(store, monkeypatch, call, error)
    with pytest.raises(StoreError, match=rf"agent\.blocks: cannot .*{re.escape(str(store.directory))}") as failed:
        store.open()
    assert os.strerror(error) in str(failed.value)
    assert VERDICTS[how_it_ended(failed.value.exit_code)][0] is ExitVerdict.RESTART


def broken(store: BlockStore, monkeypatch: pytest.MonkeyPatch, call: str, error: int) -> None:
    """Let one call on the directory fail."""
    if call != "mkdir":
        write(store)
    target: Any = Path if call == "mkdir" else os
    real = getattr(target, call)
    monkeypatch.setattr(target, call, failing(error, real, str(store.directory)))


def test_oldest_copy_that_cannot_be_deleted_leaves_room_for_the_next_one(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-6: otherwise every heartbeat and every received copy would fail on it."""
    store = BlockStore(tmp_path / "blocks", quota_bytes=1_000_000, clock=clock)
    copies = []
    for number in (1, 2, 3):
        copies.append(cached_path(store.directory, "s", f"r1-10000000001-{number}"))
        write(store, number).rename(copies[-1])
        os.utime(copies[-1], (number, number))
    size = copies[0].stat().st_size
    monkeypatch.setattr(Path, "unlink", failing(errno.EPERM, Path.unlink, copies[0].name))
    lowered = BlockStore(store.directory, quota_bytes=2 * size, clock=clock)
    usage = lowered.usage()
    assert (usage.copies, usage.short_bytes) == (("s/r1-10000000001-1", "s/r1-10000000001-3"), 0)
    lowered.receive("s", "r1-1-9", size).close()
    assert [path.exists() for path in copies] == [True, False, False]
    with pytest.raises(OutOfSpaceError):
        lowered.receive("s", "r1-1-9", 2 * size)
    assert len([said for said in caplog.messages if str(copies[0]) in said]) == 1
