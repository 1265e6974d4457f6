"""The store without a WAL: which copies exist before a block counts as stored, and what the store waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forebay.messages import ReplicaHost
from forebay.model.errors import StoreError, UnreachableError
from forebay.model.values import BlockMeta
from forebay.process.clock import SystemClock
from receiver import inputs as inp
from receiver.stores import replica_store
from receiver.stores.replica_store import LOCAL_SPACE, REPLICA_HOST, ReplicaStore
from receiver.stores.replication import ReplicaSender
from receiver.stores.store import StoreOptions
from tests.receiver.stores.test_wal_store import EPOCH, PATIENCE_SECONDS, WRITING, ReceivedInputs, pending
from wal.blocks import local_path, read_local, read_stored
from wal.blocks.local_writing import write_local_frame

H2, H3 = ReplicaHost(host="h2", url="http://h2:1"), ReplicaHost(host="h3", url="http://h3:1")


class Others:
    """Agents that store a copy when the test permits it; ``down``: hosts that refuse."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, str, bytes]] = []
        self.asked = threading.Semaphore(0)
        self.let = threading.Event()
        self.let.set()
        self.down: set[str] = set()

    def send(self, second: ReplicaHost, meta: BlockMeta, frame: Sequence[Any]) -> None:
        self.asked.release()
        assert self.let.wait(PATIENCE_SECONDS)
        if second.host in self.down:
            raise UnreachableError(f"{second.url} is down")
        self.kept.append((second.host, meta.id, b"".join(frame)))

    def close(self) -> None: ...


@contextmanager
def opened(
    folder: Path,
    received: ReceivedInputs,
    sender: ReplicaSender | None = None,
    quota_bytes: int = 1 << 40,
    timeout: float = 30.0,
) -> Iterator[ReplicaStore]:
    store = ReplicaStore(
        WRITING,
        StoreOptions(timeout_seconds=timeout),
        clock=SystemClock(),
        tell=received,
        directory=folder,
        quota_bytes=quota_bytes,
        sender=sender,
    )
    store.open_epoch(EPOCH)
    with store:
        yield store


def path_of(folder: Path, sequence: int) -> Path:
    return local_path(folder, "s", f"r1-{EPOCH:x}-{sequence}")


def test_with_one_copy_block_is_stored_when_synced_on_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-1: file and name are synced before. The handle names no WAL."""
    synced: list[str] = []
    fsync = write_local_frame.__globals__["os"].fsync
    monkeypatch.setattr("os.fsync", lambda fd: (synced.append(Path(f"/proc/self/fd/{fd}").readlink().name), fsync(fd)))
    received = ReceivedInputs()
    with opened(tmp_path, received) as store:
        store.put(pending(1))
        event = received.next()
    assert isinstance(event, inp.BlockStored)
    path = path_of(tmp_path, 1)
    assert synced[:2] == [f".{path.name}.tmp", "s"]
    stored = read_local(path)
    assert (event.block.hosts, event.block.in_wal) == (("h1",), False)
    assert event.block.handle.checksum == stored.checksum
    assert stored.meta == event.block.meta


def test_no_block_is_stored_before_its_copy_on_this_host(tmp_path: Path) -> None:
    """INV-1. Writing and reporting are in different threads."""
    existed: list[bool] = []

    class Looking(ReceivedInputs):
        def __call__(self, event: inp.Input) -> None:
            if isinstance(event, inp.BlockStored):
                existed.append(path_of(tmp_path, event.sequence).exists())
            super().__call__(event)

    received = Looking()
    with opened(tmp_path, received) as store:
        for sequence in range(1, 31):
            store.put(pending(sequence))
            assert isinstance(received.next(), inp.BlockStored)
    assert existed == [True] * 30


def test_with_two_copies_block_is_not_stored_before_its_replica(tmp_path: Path) -> None:
    received, others = ReceivedInputs(), Others()
    others.let.clear()
    with opened(tmp_path, received, others) as store:
        store.replicate_to(H2)
        store.put(pending(1))
        assert others.asked.acquire(timeout=PATIENCE_SECONDS)
        assert received.empty()
        others.let.set()
        event = received.next()
        assert store.replica_host == "h2"
    assert isinstance(event, inp.BlockStored)
    assert event.block.hosts == ("h1", "h2")
    ((host, block_id, frame),) = others.kept
    assert (host, block_id) == ("h2", event.block.id)
    assert read_stored(frame, "second").checksum == read_local(path_of(tmp_path, 1)).checksum


def test_block_waits_for_a_replica_host_and_reports_it(tmp_path: Path) -> None:
    """The store never falls back to one copy. It goes on when the driver names a host."""
    received, others = ReceivedInputs(), Others()
    with opened(tmp_path, received, others) as store:
        store.put(pending(1))
        event = received.next()
        assert isinstance(event, inp.OutOfSpace)
        assert event.lacking == REPLICA_HOST
        store.replicate_to(H2)
        while not isinstance(event, inp.BlockStored):
            event = received.next()
    assert event.block.hosts == ("h1", "h2")


def test_receiver_that_ends_without_replica_host_has_not_stored_the_block(tmp_path: Path) -> None:
    """INV-1 holds while the process ends too."""
    received, others = ReceivedInputs(), Others()
    with opened(tmp_path, received, others) as store:
        store.put(pending(1))
        assert isinstance(received.next(), inp.OutOfSpace)
    while not received.empty():
        assert isinstance(received.next(), inp.OutOfSpace)


def test_refusing_host_is_reported_and_next_named_host_is_used(tmp_path: Path) -> None:
    """The report names the host that has the replica, not the one that was tried first."""
    received, others = ReceivedInputs(), Others()
    others.down = {"h2"}
    with opened(tmp_path, received, others) as store:
        store.replicate_to(H2)
        store.put(pending(1))
        event = received.next()
        assert isinstance(event, inp.OutOfSpace)
        assert "h2" in event.reason
        assert store.refusing_hosts == ("h2",)
        store.replicate_to(H3)
        while not isinstance(event, inp.BlockStored):
            event = received.next()
    assert event.block.hosts == ("h1", "h3")


def test_store_waits_for_room_in_the_block_directory(tmp_path: Path) -> None:
    received = ReceivedInputs()
    with opened(tmp_path, received, quota_bytes=10) as store:
        store.put(pending(1))
        event = received.next()
        assert isinstance(event, inp.OutOfSpace)
        assert event.lacking == LOCAL_SPACE
    assert not path_of(tmp_path, 1).exists()


def test_next_attempt_finds_room_that_other_processes_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_store, "RETRY_SECONDS_MAX", 0.2)
    received = ReceivedInputs()
    other = local_path(tmp_path, "s", "r2-1-1")
    other.parent.mkdir()
    other.write_bytes(bytes(1 << 20))
    with opened(tmp_path, received, quota_bytes=1 << 20) as store:
        store.put(pending(1))
        assert isinstance(received.next(), inp.OutOfSpace)
        other.unlink()
        before = received.waiting()
        events = [received.next()]
        while not isinstance(events[-1], inp.BlockStored):
            events.append(received.next())
    assert len(events) <= before + 2, "an attempt may have been in progress when the room was freed"


def test_failing_disk_is_retried_and_ends_the_receiver_after_store_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync the block is written to a new file; the same file is never synced again (as in the WAL)."""
    received = ReceivedInputs()
    fails = threading.Event()
    fails.set()
    write = write_local_frame

    def failing(*arguments: object, **more: object) -> Path:
        if fails.is_set():
            raise StoreError("input/output error")
        return write(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(replica_store, "write_local_frame", failing)
    with opened(tmp_path, received) as store:
        store.put(pending(1))
        event = received.next()
        assert isinstance(event, inp.StoreAway)
        fails.clear()
        while not isinstance(event, inp.BlockStored):
            event = received.next()
    fails.set()
    with opened(tmp_path, received, timeout=0.0) as store:
        store.put(pending(2))
        assert isinstance(received.next(), inp.StoreFailed)
