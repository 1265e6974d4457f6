"""The storing side without a WAL: what lies where before a block is told to be stored, and what is waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay.messages import ReplicaHost
from forebay.model.errors import StoreError, UnreachableError
from forebay.model.values import BlockMeta
from forebay.process.clock import SystemClock
from receiver import copy_store
from receiver import inputs as inp
from receiver.copy_store import LOCAL_SPACE, REPLICA_HOST, CopyStore, ReplicaStore
from tests.receiver.test_block_store import EPOCH, PATIENCE_SECONDS, WRITING, Told, draft
from wal.blocks import local_path, read_local, read_stored

H2, H3 = ReplicaHost(host="h2", url="http://h2:1"), ReplicaHost(host="h3", url="http://h3:1")


class Others:
    """Agents that take a copy when they are let; ``down``: hosts that refuse."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, str, bytes]] = []
        self.asked = threading.Semaphore(0)
        self.let = threading.Event()
        self.let.set()
        self.down: set[str] = set()

    def send(self, second: ReplicaHost, meta: BlockMeta, frame: bytes) -> None:
        self.asked.release()
        assert self.let.wait(PATIENCE_SECONDS)
        if second.host in self.down:
            raise UnreachableError(f"{second.url} is down")
        self.kept.append((second.host, meta.id, frame))

    def close(self) -> None: ...


@contextmanager
def opened(
    folder: Path, told: Told, others: ReplicaStore | None = None, quota_bytes: int = 1 << 40, timeout: float = 30.0
) -> Iterator[CopyStore]:
    store = CopyStore(WRITING, folder, quota_bytes, others, timeout, SystemClock(), told)
    store.open_epoch(EPOCH)
    with store:
        yield store


def path_of(folder: Path, sequence: int) -> Path:
    return local_path(folder, "s", f"r1-{EPOCH:x}-{sequence}")


def test_with_one_copy_a_block_is_stored_when_it_is_synced_on_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-1: file and name were synced before; the handle is that of the copies, in no WAL."""
    synced: list[str] = []
    fsync = copy_store.write_local_frame.__globals__["os"].fsync
    monkeypatch.setattr("os.fsync", lambda fd: (synced.append(Path(f"/proc/self/fd/{fd}").readlink().name), fsync(fd)))
    told = Told()
    with opened(tmp_path, told) as store:
        store.put(draft(1))
        event = told.next()
    assert isinstance(event, inp.BlockStored)
    path = path_of(tmp_path, 1)
    assert synced[:2] == [f".{path.name}.tmp", "s"]
    stored = read_local(path)
    assert (event.block.hosts, event.block.in_wal) == (("h1",), False)
    assert event.block.handle.checksum == stored.checksum
    assert stored.meta == event.block.meta


def test_with_two_copies_a_block_is_not_told_before_the_second_one_is_kept(tmp_path: Path) -> None:
    told, others = Told(), Others()
    others.let.clear()
    with opened(tmp_path, told, others) as store:
        store.copy_to(H2)
        store.put(draft(1))
        assert others.asked.acquire(timeout=PATIENCE_SECONDS)
        assert told.empty()
        others.let.set()
        event = told.next()
        assert store.replica_host == "h2"
    assert isinstance(event, inp.BlockStored)
    assert event.block.hosts == ("h1", "h2")
    ((host, block_id, frame),) = others.kept
    assert (host, block_id) == ("h2", event.block.id)
    assert read_stored(frame, "second").checksum == read_local(path_of(tmp_path, 1)).checksum


def test_without_a_second_host_a_block_waits_and_says_so(tmp_path: Path) -> None:
    """Never a silent downgrade: it goes on when a host is named."""
    told, others = Told(), Others()
    with opened(tmp_path, told, others) as store:
        store.put(draft(1))
        event = told.next()
        assert isinstance(event, inp.OutOfSpace)
        assert event.lacking == REPLICA_HOST
        store.copy_to(H2)
        while not isinstance(event, inp.BlockStored):
            event = told.next()
    assert event.block.hosts == ("h1", "h2")


def test_a_receiver_that_ends_without_a_second_host_has_not_stored_the_block(tmp_path: Path) -> None:
    """INV-1: not even on its way out."""
    told, others = Told(), Others()
    with opened(tmp_path, told, others) as store:
        store.put(draft(1))
        assert isinstance(told.next(), inp.OutOfSpace)
    while not told.empty():
        assert isinstance(told.next(), inp.OutOfSpace)


def test_a_host_that_takes_no_copies_is_told_to_the_driver_and_the_next_one_it_names_is_taken(tmp_path: Path) -> None:
    """The block lies where its report says, not where it was tried first."""
    told, others = Told(), Others()
    others.down = {"h2"}
    with opened(tmp_path, told, others) as store:
        store.copy_to(H2)
        store.put(draft(1))
        event = told.next()
        assert isinstance(event, inp.OutOfSpace)
        assert "h2" in event.reason
        assert store.refusing_hosts == ("h2",)
        store.copy_to(H3)
        while not isinstance(event, inp.BlockStored):
            event = told.next()
    assert event.block.hosts == ("h1", "h3")


def test_a_block_directory_without_room_is_waited_for(tmp_path: Path) -> None:
    told = Told()
    with opened(tmp_path, told, quota_bytes=10) as store:
        store.put(draft(1))
        event = told.next()
        assert isinstance(event, inp.OutOfSpace)
        assert event.lacking == LOCAL_SPACE
    assert not path_of(tmp_path, 1).exists()


def test_room_that_others_made_is_found_by_the_next_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_store, "RETRY_SECONDS_MAX", 0.2)
    told = Told()
    other = local_path(tmp_path, "s", "r2-1-1")
    other.parent.mkdir()
    other.write_bytes(bytes(1 << 20))
    with opened(tmp_path, told, quota_bytes=1 << 20) as store:
        store.put(draft(1))
        assert isinstance(told.next(), inp.OutOfSpace)
        other.unlink()
        before = told.waiting()
        events = [told.next()]
        while not isinstance(events[-1], inp.BlockStored):
            events.append(told.next())
    assert len(events) <= before + 2, "an attempt may have been under way when it was freed"


def test_a_disk_that_fails_is_tried_again_and_ends_the_receiver_when_it_goes_on_failing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed to sync is written again into another file, never synced twice (as the WAL does)."""
    told = Told()
    fails = threading.Event()
    fails.set()
    write = copy_store.write_local_frame

    def failing(*arguments: object, **more: object) -> Path:
        if fails.is_set():
            raise StoreError("input/output error")
        return write(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(copy_store, "write_local_frame", failing)
    with opened(tmp_path, told) as store:
        store.put(draft(1))
        event = told.next()
        assert isinstance(event, inp.StoreAway)
        fails.clear()
        while not isinstance(event, inp.BlockStored):
            event = told.next()
    fails.set()
    with opened(tmp_path, told, timeout=0.0) as store:
        store.put(draft(2))
        assert isinstance(told.next(), inp.StoreFailed)
