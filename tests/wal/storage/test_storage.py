"""Appendable stores and local folders: what they promise beyond the contract of every store (test_storage_contract)."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.model.errors import OutOfSpaceError, StoreError, UsageError
from tests.support.stores.forgetful import ForgetfulStorage
from wal.storage import MemoryStorage, Storage, check_path, open_folders, open_storage, store_error
from wal.storage.local import LocalStorage

_names = itertools.count()


@pytest.fixture(params=["file", "memory", "forgetful"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "file":
        yield open_storage(f"file://{tmp_path}/not/yet/there")
    elif request.param == "memory":
        yield open_storage(f"memory://contract-{next(_names)}")
    else:
        yield ForgetfulStorage()


def test_appended_bytes_are_read_in_order_and_by_range(storage: Storage) -> None:
    file = storage.create("s/blocks/r/1.seg")
    file.append(b"abc")
    file.append(memoryview(b"defg"))
    file.append(bytearray(b""))
    file.sync()
    assert storage.read("s/blocks/r/1.seg") == b"abcdefg"
    assert storage.read("s/blocks/r/1.seg", 2, 3) == b"cde"
    assert storage.read("s/blocks/r/1.seg", 5, 100) == b"fg"
    assert storage.read("s/blocks/r/1.seg", 100, 5) == b""
    assert storage.read("s/blocks/r/1.seg", 3) == b"defg"
    assert storage.size("s/blocks/r/1.seg") == 7


def test_a_new_file_is_empty_and_there_before_anything_is_appended(storage: Storage) -> None:
    storage.create("a/b")
    assert storage.exists("a/b")
    assert storage.size("a/b") == 0
    assert storage.read("a/b") == b""


def test_a_name_is_created_once(storage: Storage) -> None:
    """INV-4: epochs and segments are fenced by creation only if absent."""
    storage.create("a/b").append(b"first")
    with pytest.raises(FileExistsError):
        storage.create("a/b")
    with pytest.raises(FileExistsError):
        storage.put_new("a/b", b"second")
    assert storage.read("a/b") == b"first"
    storage.put_new("a/c", b"whole")
    with pytest.raises(FileExistsError):
        storage.put_new("a/c", b"other")
    with pytest.raises(FileExistsError):
        storage.create("a/c")
    assert storage.read("a/c") == b"whole"


def test_replace_takes_the_place_of_what_was_there(storage: Storage) -> None:
    storage.replace("lease", b"one")
    storage.replace("lease", bytearray(b"two"))
    assert storage.read("lease") == b"two"
    assert storage.list("") == ["lease"]


def test_closed_file_refuses_appends(storage: Storage) -> None:
    file = storage.create("a")
    file.append(b"x")
    file.close()
    file.close()
    with pytest.raises(StoreError):
        file.append(b"y")
    with pytest.raises(StoreError):
        file.sync()
    assert storage.read("a") == b"x"


def test_only_one_of_many_threads_creates_a_name(storage: Storage) -> None:
    """INV-4."""
    won: list[int] = []

    def race(number: int) -> None:
        try:
            storage.put_new("epochs/1", b"%d" % number)
        except FileExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.read("epochs/1") == b"%d" % won[0]
    assert storage.list("epochs") == ["epochs/1"]


def test_stores_of_one_memory_name_share_one_space() -> None:
    name = f"memory://shared-{next(_names)}"
    open_storage(name).put_new("a", b"x")
    assert open_storage(name).read("a") == b"x"
    assert not open_storage(name + "-other").exists("a")


@pytest.mark.parametrize("url", ["ftp://n/x", "/plain/path", "file://host/x", "file:relative", "", "http://[::"])
def test_urls_of_other_stores_are_refused_by_name(url: str) -> None:
    with pytest.raises(UsageError, match="file:///"):
        open_storage(url)


def test_lack_of_space_is_distinguished_from_other_errors() -> None:
    assert isinstance(store_error(OSError(errno.ENOSPC, "x"), "w"), OutOfSpaceError)
    assert isinstance(store_error(OSError(errno.EDQUOT, "x"), "w"), OutOfSpaceError)
    assert not isinstance(store_error(OSError(errno.EIO, "x"), "w"), OutOfSpaceError)


def test_a_full_file_system_is_lack_of_space() -> None:
    full = LocalStorage("/dev/shm")
    assert full.free_bytes() is not None
    descriptor = os.open("/dev/full", os.O_WRONLY)
    from wal.storage.local import _LocalAppendFile

    file = _LocalAppendFile("/dev/full", descriptor)
    with pytest.raises(OutOfSpaceError):
        file.append(b"x")
    with pytest.raises(StoreError, match="earlier write or sync failed"):
        file.sync()
    file.close()


# ---- a local folder --------------------------------------------------------------------------------------------------


class _Calls:
    """Records the system calls that make a name or its bytes durable, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        for name in ("fsync", "fdatasync", "link", "rename", "unlink", "makedirs"):
            monkeypatch.setattr(os, name, self._recording(name, getattr(os, name)))

    def _recording(self, name: str, real):  # type: ignore[no-untyped-def]
        def call(target, *rest, **options):  # type: ignore[no-untyped-def]
            place = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else target
            self.log.append(f"{name} {os.path.basename(place).split('.')[0] or 'temporary'}")
            return real(target, *rest, **options)

        return call


def test_a_created_name_is_durable_with_all_its_new_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-1: an fsync of a file does not keep its name; folders are synced, from the top."""
    storage = LocalStorage(str(tmp_path / "root"))
    calls = _Calls(monkeypatch)
    storage.create("s/blocks/1")
    synced = [line for line in calls.log if line.startswith("fsync")]
    assert synced[-1] == "fsync blocks"
    assert [line for line in synced if line.split()[1] in ("root", "s")] == ["fsync root", "fsync s"]
    assert f"fsync {tmp_path.name}" in synced
    calls.log.clear()
    storage.create("s/blocks/2")
    assert calls.log == ["fsync blocks"]


def test_a_whole_object_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.put_new("s/first", b"")
    calls = _Calls(monkeypatch)
    storage.put_new("s/name", b"x")
    assert calls.log == ["fsync temporary", "link temporary", "unlink temporary", "fsync s"]
    calls.log.clear()
    storage.replace("s/name", b"y")
    assert calls.log == ["fsync temporary", "rename temporary", "fsync s"]
    calls.log.clear()
    storage.delete("s/name")
    storage.delete("s/name")
    assert calls.log == ["unlink name", "fsync s", "unlink name", "fsync s"]


def test_appended_bytes_are_synced_as_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(str(tmp_path))
    file = storage.create("a")
    calls = _Calls(monkeypatch)
    file.append(b"x")
    assert calls.log == []
    file.sync()
    assert calls.log == ["fdatasync a"]


def test_a_file_whose_sync_failed_is_never_synced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-1: after a failed sync the kernel may call lost pages clean, and the next sync would wrongly succeed."""
    file = LocalStorage(str(tmp_path)).create("a")
    file.append(b"x")
    synced = []

    def fail(descriptor: int) -> None:
        synced.append(descriptor)
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(os, "fdatasync", fail)
    for _ in range(3):
        with pytest.raises(StoreError):
            file.sync()
    with pytest.raises(StoreError):
        file.append(b"y")
    assert len(synced) == 1


def test_files_left_by_a_kill_are_never_listed_or_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(str(tmp_path))

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", die)
        patched.setattr(os, "unlink", lambda _: None)
        with pytest.raises(Killed):
            storage.put_new("s/name", b"half")
        patched.setattr(os, "rename", die)
        with pytest.raises(Killed):
            storage.replace("s/name", b"half")
    assert len(os.listdir(tmp_path / "s")) == 2
    assert storage.list("") == []
    assert storage.list("s") == []
    assert not storage.exists("s/name")
    storage.put_new("s/name", b"whole")
    assert storage.list("") == ["s/name"]


@pytest.mark.parametrize("method", ["put_new", "replace"])
def test_a_write_whose_temporary_file_is_removed_as_left_over_fails_and_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Removal of left-over files depends on a clock, which may be set ahead."""
    storage = LocalStorage(str(tmp_path))
    call = {"put_new": "link", "replace": "rename"}[method]
    real = getattr(os, call)

    def late(temporary: str, full: str) -> None:
        for path in storage.left_over("s", 4e9):
            storage.remove_left_over(path)
        real(temporary, full)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, late)
        with pytest.raises(StoreError):
            getattr(storage, method)("s/name", b"mine")
    assert os.listdir(tmp_path / "s") == []
    getattr(storage, method)("s/name", b"mine")
    assert storage.read("s/name") == b"mine"


def test_a_failed_put_leaves_neither_name_nor_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.put_new("s/other", b"")

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "injected")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OutOfSpaceError):
        storage.put_new("s/name", b"x")
    with pytest.raises(OutOfSpaceError):
        storage.replace("s/name", b"x")
    assert os.listdir(tmp_path / "s") == ["other"]


def failing_sync(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """The next sync of ``folder`` fails; what is returned then names each folder that is synced, in order."""
    real = os.fsync
    synced: list[str] = []
    failed = False

    def fsync(descriptor: int) -> None:
        nonlocal failed
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        if place == str(folder) and not failed:
            failed = True
            raise OSError(errno.EIO, "injected")
        real(descriptor)
        synced.append(place)

    monkeypatch.setattr(os, "fsync", fsync)
    return synced


def test_put_repeated_after_failed_folder_sync_finds_its_object_and_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-1: the name is there, and a power loss could take it until the folder is synced."""
    storage = LocalStorage(str(tmp_path))
    storage.put_new("s/other", b"")
    synced = failing_sync(monkeypatch, tmp_path / "s")
    with pytest.raises(StoreError):
        storage.put_new("s/name", b"mine")
    synced.clear()
    storage.put_new("s/name", b"mine")
    assert synced[-1] == str(tmp_path / "s")
    assert storage.list("s") == ["s/name", "s/other"]
    assert sorted(os.listdir(tmp_path / "s")) == ["name", "other"], "and no temporary file"


def test_name_found_taken_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-4: its creator may have been killed before it synced the folder, and a power loss must not remove a fence."""
    storage = LocalStorage(str(tmp_path))
    storage.put_new("s/name", b"theirs")
    synced = failing_sync(monkeypatch, tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        storage.put_new("s/name", b"mine")
    assert synced[-1] == str(tmp_path / "s")
    failing_sync(monkeypatch, tmp_path / "s")
    with pytest.raises(StoreError):
        storage.put_new("s/name", b"mine")


def test_create_with_failed_folder_sync_leaves_no_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.put_new("s/other", b"")
    failing_sync(monkeypatch, tmp_path / "s")
    with pytest.raises(StoreError):
        storage.create("s/name")
    assert storage.list("s") == ["s/other"]
    storage.create("s/name").close()


def test_folders_above_the_root_are_synced_even_if_they_existed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-1."""
    synced = failing_sync(monkeypatch, tmp_path)
    with pytest.raises(StoreError):
        LocalStorage(str(tmp_path / "a" / "b" / "root")).put_new("s/name", b"x")
    synced.clear()
    storage = LocalStorage(str(tmp_path / "a" / "b" / "root"))  # of a process that was started again, say
    storage.put_new("s/name", b"x")
    folders = [tmp_path, tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "root"]
    assert {str(folder) for folder in folders} <= set(synced)


def test_move_repeated_after_failed_sync_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = open_folders(f"file://{tmp_path}")
    for folder in ("work/a", "to/other", "work/b"):
        folders.make_folder(folder)
        folders.put(f"{folder}/part", b"x")
    synced = failing_sync(monkeypatch, tmp_path / "to")
    folders_made = open_folders(f"file://{tmp_path}")
    with pytest.raises(StoreError):
        folders.move_folder("work/a", "to/a")
    synced.clear()
    with pytest.raises(FileNotFoundError):
        folders_made.move_folder("work/a", "to/a")
    assert str(tmp_path / "to") in synced
    synced.clear()
    with pytest.raises(FileExistsError):
        folders.move_folder("work/b", "to/a")
    assert str(tmp_path / "to") in synced


def test_file_is_not_put_into_a_folder_that_another_process_moved_away(tmp_path: Path) -> None:
    """INV-4: a suspended driver would make the folder again, and move it in without the files that it had before."""
    folders = open_folders(f"file://{tmp_path}")
    folders.make_folder("work/a")
    folders.put("work/a/part", b"x")
    folders.move_folder("work/a", "work/b")
    with pytest.raises(FileNotFoundError):
        folders.put("work/a/part", b"x")
    with pytest.raises(FileNotFoundError):
        folders.sync_folder("work/a")
    assert folders.folders("work") == ["b"]


def test_folder_removed_as_empty_during_a_write_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, cleaning, real = LocalStorage(str(tmp_path)), LocalStorage(str(tmp_path)), os.open
    tries = 0

    def late(path: str, flags: int, *more: int) -> int:
        nonlocal tries
        if flags & os.O_CREAT and (tries := tries + 1) % 2:
            cleaning.remove_folder("s/epoch")
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", late)
    storage.put_new("s/epoch/1", b"x")
    cleaning.delete("s/epoch/1")
    storage.create("s/epoch/2").close()
    assert (tries, storage.list("")) == (4, ["s/epoch/2"])


def test_unreadable_folder_is_not_listed_as_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-5."""
    storage = LocalStorage(str(tmp_path))
    storage.put_new("s/inner/a", b"x")
    real = os.scandir

    def refuse(path: str):  # type: ignore[no-untyped-def]
        if str(path).endswith("inner"):
            raise PermissionError(errno.EACCES, "no")
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StoreError, match="can't be listed"):
        storage.list("s")


def test_unwritable_folder_is_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    storage = LocalStorage(str(tmp_path / "file" / "root"))
    with pytest.raises(StoreError):
        storage.create("a")
    with pytest.raises(StoreError):
        storage.put_new("a", b"")
    with pytest.raises(StoreError):
        storage.list("")


def test_file_with_a_folders_name_is_not_a_taken_name(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.put_new("s/a", b"x")
    with pytest.raises(StoreError):
        storage.create("s/a/b")
    with pytest.raises(StoreError):
        storage.put_new("s/a/b", b"")


def test_free_bytes_are_known_before_the_root_exists(tmp_path: Path) -> None:
    free = LocalStorage(str(tmp_path / "not" / "there")).free_bytes()
    assert free is not None
    assert free > 0
    assert MemoryStorage(f"free-{next(_names)}").free_bytes() is None


def test_constructing_a_storage_does_no_io(tmp_path: Path) -> None:
    open_storage(f"file://{tmp_path}/x")
    assert os.listdir(tmp_path) == []


def test_check_path_returns_what_it_allows() -> None:
    assert check_path("s/blocks/r-1_x/0001.seg") == "s/blocks/r-1_x/0001.seg"
