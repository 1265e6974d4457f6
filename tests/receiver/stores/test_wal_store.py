"""The store with a WAL: which blocks share a write, and what is reported while the WAL's store fails."""

from __future__ import annotations

import hashlib
import itertools
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from forebay.model.columns import Columns
from forebay.model.errors import StoreError
from forebay.process.clock import Clock, SystemClock
from receiver import inputs as inp
from receiver.blocks.encoded_block import EncodingOptions, encode
from receiver.blocks.pending_block import PendingBlock, PendingRange, Piece
from receiver.stores.store import StoreOptions
from receiver.stores.wal_store import WalStore
from tests.receiver.stage import P0
from tests.support.state.rows import filler, source_batch
from tests.support.stores.forgetful import ForgetfulStorage
from wal.blocks.encryption import KeyRing
from wal.segments.layout import timeline_marker
from wal.segments.writer import SegmentLimits

EPOCH = 1 << 40 | 1
PATIENCE_SECONDS = 60.0


WRITING = EncodingOptions(stream="s", receiver_id="r1", host="h1", headers=False, compression="none")


def pending(sequence: int) -> PendingBlock:
    read = Columns(P0, 1, sequence, sequence, 1, 20, 5, -1, source_batch(filler(1, sequence)))
    part = PendingRange(
        tp=P0,
        incarnation=1,
        token=1,
        from_offset=sequence,
        until_offset=sequence + 1,
        leader_epoch=-1,
        topic_id="",
        preceding_gap=None,
        pieces=(Piece(sequence, read),),
    )
    return PendingBlock(EPOCH, sequence, (part,))


class ReceivedInputs:
    def __init__(self) -> None:
        self._inputs: queue.Queue[inp.Input] = queue.Queue()

    def __call__(self, event: inp.Input) -> None:
        self._inputs.put(event)

    def next(self) -> inp.Input:
        return self._inputs.get(timeout=PATIENCE_SECONDS)

    def empty(self) -> bool:
        return self._inputs.empty()

    def waiting(self) -> int:
        """Return how many inputs wait to be read."""
        return self._inputs.qsize()


@contextmanager
def open_store(
    storage: ForgetfulStorage, received: ReceivedInputs, flush_seconds: float, gather_bytes: int,
    store_timeout_seconds: float = 30.0, clock: Clock | None = None, check_timeline: bool = False,
) -> Iterator[WalStore]:  # fmt: skip
    store = WalStore(
        WRITING,
        StoreOptions(timeout_seconds=store_timeout_seconds, flush_seconds=flush_seconds, gather_bytes=gather_bytes),
        clock=clock or SystemClock(),
        tell=received,
        storage=storage,
        limits=SegmentLimits(size_bytes=1 << 30, age_seconds=1e9),
        check_timeline=check_timeline,
    )
    store.open_epoch(EPOCH)
    with store:
        yield store


def paths_of(received: ReceivedInputs, count: int) -> list[str]:
    found = []
    for _ in range(count):
        event = received.next()
        assert isinstance(event, inp.BlockStored), event
        found.append(event.block.handle.path)
    return found


def test_blocks_within_one_flush_interval_share_one_object_up_to_gather_bytes() -> None:
    """The first block is written immediately; those within the interval after it are gathered.

    INV-6: here the interval is far longer than the test, so ``gather_bytes`` ends it.
    """
    block_bytes = encode(pending(1), WRITING, 0).payload.length
    storage, received = ForgetfulStorage(appendable=False), ReceivedInputs()
    with open_store(storage, received, flush_seconds=1000.0, gather_bytes=3 * block_bytes) as store:
        store.put(pending(0))
        paths = paths_of(received, 1)
        for sequence in range(1, 7):
            store.put(pending(sequence))
        paths += paths_of(received, 6)
    assert [paths.count(path) for path in storage.list("s")] == [1, 3, 3]


@pytest.mark.parametrize("keys", [None, KeyRing({"k": bytes(32)})], ids=["plain", "encrypted"])
def test_block_names_the_digest_of_its_stored_payload(keys: KeyRing | None) -> None:
    made = encode(pending(1), replace(WRITING, keys=keys), 0)
    assert made.meta.sha256 == hashlib.sha256(b"".join(made.payload)).digest()


class Slow(ForgetfulStorage):
    """A store where puts wait for the gate."""

    def __init__(self) -> None:
        super().__init__(appendable=False)
        self.begun, self.gate = threading.Event(), threading.Event()

    def put_new(self, path: str, data: object) -> None:
        self.begun.set()
        assert self.gate.wait(PATIENCE_SECONDS)
        super().put_new(path, data)  # type: ignore[arg-type]


class EncodingClock(SystemClock):
    """Counts the blocks whose encoding has begun: each reads the clock once."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)

    def wall_ms(self) -> int:
        if threading.current_thread().name == "store-encode":
            self.begun.release()
        return super().wall_ms()

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=PATIENCE_SECONDS)


def test_blocks_during_a_write_share_the_next_one_up_to_gather_bytes() -> None:
    """INV-6: three blocks are gathered and the fifth waits, so the others are not encoded."""
    block_bytes = encode(pending(1), WRITING, 0).payload.length
    storage, received, clock = Slow(), ReceivedInputs(), EncodingClock()
    with open_store(storage, received, flush_seconds=0.0, gather_bytes=3 * block_bytes, clock=clock) as store:
        store.put(pending(0))
        assert storage.begun.wait(PATIENCE_SECONDS)
        for sequence in range(1, 40):
            store.put(pending(sequence))
        clock.wait_for(5)
        storage.gate.set()
        paths = paths_of(received, 40)
    assert [paths.count(path) for path in storage.list("s")][:2] == [1, 3]


def test_closing_does_not_wait_for_the_interval() -> None:
    storage, received = ForgetfulStorage(appendable=False), ReceivedInputs()
    with open_store(storage, received, flush_seconds=1000.0, gather_bytes=1 << 30) as store:
        store.put(pending(0))
        paths_of(received, 1)
        store.put(pending(1))
    assert storage.calls["put_new"] == 1


class Away(ForgetfulStorage):
    """A store where a number of puts fail."""

    def __init__(self, failures: int) -> None:
        super().__init__(appendable=False)
        self._left = itertools.repeat(StoreError("HTTP 503, SlowDown"), failures)

    def put_new(self, path: str, data: object) -> None:
        if (error := next(self._left, None)) is not None:
            raise error
        super().put_new(path, data)  # type: ignore[arg-type]


def test_failing_store_is_reported_with_its_error_until_it_takes_blocks() -> None:
    """Rule 7."""
    storage, received = Away(3), ReceivedInputs()
    with open_store(storage, received, flush_seconds=0.0, gather_bytes=1) as store:
        store.put(pending(0))
        assert [received.next() for _ in range(3)] == [inp.StoreAway("HTTP 503, SlowDown")] * 3
        assert paths_of(received, 1) == storage.list("s")


def test_store_that_keeps_failing_has_failed_after_its_timeout() -> None:
    storage, received = Away(1_000_000), ReceivedInputs()
    with open_store(storage, received, flush_seconds=0.0, gather_bytes=1, store_timeout_seconds=0.2) as store:
        store.put(pending(0))
        while isinstance(event := received.next(), inp.StoreAway):
            pass
    assert isinstance(event, inp.StoreFailed)
    assert "HTTP 503, SlowDown" in event.reason


def test_a_store_that_has_failed_closes_while_the_encoding_waits_for_it() -> None:
    block_bytes = encode(pending(1), WRITING, 0).payload.length
    storage, received, clock = Away(1_000_000), ReceivedInputs(), EncodingClock()
    with open_store(
        storage, received, flush_seconds=0.0, gather_bytes=block_bytes, store_timeout_seconds=0.2, clock=clock
    ) as store:
        for sequence in range(6):
            store.put(pending(sequence))
        while isinstance(event := received.next(), inp.StoreAway):
            pass
        clock.wait_for(3)  # one that failed, one that is gathered, one that finds no room
    assert isinstance(event, inp.StoreFailed)


def test_nothing_is_written_to_a_folder_that_is_not_the_streams_wal() -> None:
    """INV-1: a WAL that is not mounted would be created on the host's own disk, and be lost with the host."""
    storage, received = ForgetfulStorage(appendable=True), ReceivedInputs()
    with open_store(storage, received, flush_seconds=0.0, gather_bytes=1, check_timeline=True) as store:
        store.put(pending(1))
        event = received.next()
        assert isinstance(event, inp.StoreAway)
        assert "the WAL is not mounted on this host, or wal.url here is not the driver's" in event.reason
        assert not storage.list("s/blocks")
        storage.put_new(timeline_marker("s", 1), b"claim")
        while not isinstance(event, inp.BlockStored):
            assert isinstance(event, inp.StoreAway)
            event = received.next()


def test_receiver_ends_if_the_wal_is_not_mounted_for_the_store_timeout() -> None:
    received = ReceivedInputs()
    with open_store(
        ForgetfulStorage(appendable=True), received, 0.0, 1, store_timeout_seconds=0.3, check_timeline=True
    ) as store:
        store.put(pending(1))
        while isinstance(event := received.next(), inp.StoreAway):
            pass
    assert isinstance(event, inp.StoreFailed)
    assert f"has no file {timeline_marker('s', 1)}" in event.reason
