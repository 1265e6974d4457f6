"""The storing side: what is gathered for one write, and what is told while the WAL's store is away."""

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
from receiver.block_draft import BlockDraft, DraftRange, Piece
from receiver.block_store import BlockStore
from receiver.encoded_block import BlockWriting, encode
from tests.receiver.stage import P0
from tests.support.forgetful import ForgetfulStorage
from tests.support.rows import filler, source_batch
from wal.blocks.encryption import KeyRing
from wal.segments.writer import SegmentLimits

EPOCH = 1 << 40 | 1
PATIENCE_SECONDS = 60.0


WRITING = BlockWriting("s", "r1", "h1", False, "none")


def draft(sequence: int) -> BlockDraft:
    read = Columns(P0, 1, sequence, sequence, 1, 20, 5, -1, source_batch(filler(1, sequence)))
    ranges = (DraftRange(P0, 1, 1, sequence, sequence + 1, -1, "", None, (Piece(sequence, read),)),)
    return BlockDraft(EPOCH, sequence, ranges)


class Told:
    def __init__(self) -> None:
        self._inputs: queue.Queue[inp.Input] = queue.Queue()

    def __call__(self, event: inp.Input) -> None:
        self._inputs.put(event)

    def next(self) -> inp.Input:
        return self._inputs.get(timeout=PATIENCE_SECONDS)

    def empty(self) -> bool:
        return self._inputs.empty()

    def waiting(self) -> int:
        """How many were told and not looked at."""
        return self._inputs.qsize()


@contextmanager
def open_store(
    storage: ForgetfulStorage, told: Told, flush_seconds: float, gather_bytes: int, store_timeout_seconds: float = 30.0,
    clock: Clock | None = None,
) -> Iterator[BlockStore]:  # fmt: skip
    store = BlockStore(
        WRITING, storage, SegmentLimits(1 << 30, 1e9), None, 0, store_timeout_seconds, clock or SystemClock(), told,
        flush_seconds, gather_bytes,
    )  # fmt: skip
    store.open_epoch(EPOCH)
    with store:
        yield store


def paths_of(told: Told, count: int) -> list[str]:
    found = []
    for _ in range(count):
        event = told.next()
        assert isinstance(event, inp.BlockStored), event
        found.append(event.block.handle.path)
    return found


def test_blocks_within_one_flush_interval_share_one_object_up_to_the_bytes_for_it() -> None:
    """The first is written at once; what comes within the interval after that is gathered. INV-6: here the interval is far
    longer than the test, and the bytes end it."""
    block_bytes = encode(draft(1), WRITING, 0).payload.size
    storage, told = ForgetfulStorage(appendable=False), Told()
    with open_store(storage, told, flush_seconds=1000.0, gather_bytes=3 * block_bytes) as store:
        store.put(draft(0))
        paths = paths_of(told, 1)
        for sequence in range(1, 7):
            store.put(draft(sequence))
        paths += paths_of(told, 6)
    assert [paths.count(path) for path in storage.list("s")] == [1, 3, 3]


@pytest.mark.parametrize("keys", [None, KeyRing({"k": bytes(32)})], ids=["plain", "encrypted"])
def test_a_block_names_the_digest_of_its_payload_as_it_is_stored(keys: KeyRing | None) -> None:
    made = encode(draft(1), replace(WRITING, keys=keys), 0)
    assert made.meta.sha256 == hashlib.sha256(made.payload).digest()


class Slow(ForgetfulStorage):
    """Puts wait for the gate."""

    def __init__(self) -> None:
        super().__init__(appendable=False)
        self.begun, self.gate = threading.Event(), threading.Event()

    def put_new(self, path: str, data: object) -> None:
        self.begun.set()
        assert self.gate.wait(PATIENCE_SECONDS)
        super().put_new(path, data)  # type: ignore[arg-type]


class EncodingClock(SystemClock):
    """Counts the blocks whose encoding has begun: each asks once for the time."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)

    def wall_ms(self) -> int:
        if threading.current_thread().name == "store-encode":
            self.begun.release()
        return super().wall_ms()

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=PATIENCE_SECONDS)


def test_what_comes_during_a_write_is_encoded_and_is_the_next_one_up_to_the_bytes_for_it() -> None:
    """INV-6: when the fifth is begun the three before it are gathered, it waits, and the others are not even encoded."""
    block_bytes = encode(draft(1), WRITING, 0).payload.size
    storage, told, clock = Slow(), Told(), EncodingClock()
    with open_store(storage, told, flush_seconds=0.0, gather_bytes=3 * block_bytes, clock=clock) as store:
        store.put(draft(0))
        assert storage.begun.wait(PATIENCE_SECONDS)
        for sequence in range(1, 40):
            store.put(draft(sequence))
        clock.wait_for(5)
        storage.gate.set()
        paths = paths_of(told, 40)
    assert [paths.count(path) for path in storage.list("s")][:2] == [1, 3]


def test_closing_does_not_wait_for_the_interval() -> None:
    storage, told = ForgetfulStorage(appendable=False), Told()
    with open_store(storage, told, flush_seconds=1000.0, gather_bytes=1 << 30) as store:
        store.put(draft(0))
        paths_of(told, 1)
        store.put(draft(1))
    assert storage.calls["put_new"] == 1


class Away(ForgetfulStorage):
    """Puts fail so many times."""

    def __init__(self, failures: int) -> None:
        super().__init__(appendable=False)
        self._left = itertools.repeat(StoreError("HTTP 503, SlowDown"), failures)

    def put_new(self, path: str, data: object) -> None:
        if (error := next(self._left, None)) is not None:
            raise error
        super().put_new(path, data)  # type: ignore[arg-type]


def test_a_store_that_is_away_is_told_with_its_words_until_it_takes_blocks_again() -> None:
    """Rule 7."""
    storage, told = Away(3), Told()
    with open_store(storage, told, flush_seconds=0.0, gather_bytes=1) as store:
        store.put(draft(0))
        assert [told.next() for _ in range(3)] == [inp.StoreAway("HTTP 503, SlowDown")] * 3
        assert paths_of(told, 1) == storage.list("s")


def test_a_store_that_stays_away_has_failed_after_the_time_for_it() -> None:
    storage, told = Away(1_000_000), Told()
    with open_store(storage, told, flush_seconds=0.0, gather_bytes=1, store_timeout_seconds=0.2) as store:
        store.put(draft(0))
        while isinstance(event := told.next(), inp.StoreAway):
            pass
    assert isinstance(event, inp.StoreFailed)
    assert "HTTP 503, SlowDown" in event.reason


def test_a_store_that_has_failed_closes_while_the_encoding_waits_for_it() -> None:
    block_bytes = encode(draft(1), WRITING, 0).payload.size
    storage, told, clock = Away(1_000_000), Told(), EncodingClock()
    with open_store(
        storage, told, flush_seconds=0.0, gather_bytes=block_bytes, store_timeout_seconds=0.2, clock=clock
    ) as store:
        for sequence in range(6):
            store.put(draft(sequence))
        while isinstance(event := told.next(), inp.StoreAway):
            pass
        clock.wait_for(3)  # one failed, one gathered, one that finds no room
    assert isinstance(event, inp.StoreFailed)
