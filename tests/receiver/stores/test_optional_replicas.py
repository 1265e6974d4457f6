"""Replicas beside a WAL: which host has one when a block is reported, and that none holds up a block."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay.process.clock import ManualClock
from receiver import inputs as inp
from receiver.stores import wal_store
from receiver.stores.optional_replicas import REST_SECONDS, OptionalReplicas
from receiver.stores.store import StoreOptions
from receiver.stores.wal_store import WalStore
from tests.receiver.stores.test_replica_store import H2, H3, Others
from tests.receiver.stores.test_wal_store import EPOCH, PATIENCE_SECONDS, WRITING, ReceivedInputs, pending
from tests.support.stores.forgetful import ForgetfulStorage
from wal.blocks import read_stored
from wal.segments.writer import SegmentLimits


class Line:
    """A store whose blocks are put one after the other."""

    def __init__(self, store: WalStore, received: ReceivedInputs, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self._received = received
        self._sequence = 0

    def put(self) -> tuple[str, ...]:
        """Store a block; return the hosts that have its replica, as it is reported."""
        self._sequence += 1
        self.store.put(pending(self._sequence))
        event = self._received.next()
        assert isinstance(event, inp.BlockStored), event
        assert event.block.in_wal and event.block.local
        return event.block.other_hosts


@contextmanager
def opened(folder: Path, others: Others) -> Iterator[Line]:
    received, clock = ReceivedInputs(), ManualClock()
    store = WalStore(
        WRITING,
        StoreOptions(timeout_seconds=30.0),
        clock=clock,
        tell=received,
        storage=ForgetfulStorage(appendable=True),
        limits=SegmentLimits(size_bytes=1 << 30, age_seconds=1e9),
        check_timeline=False,
        local_directory=folder,
        local_quota_bytes=1 << 40,
        replicas=OptionalReplicas(others, clock),
    )
    store.open_epoch(EPOCH)
    with store:
        yield Line(store, received, clock)


def test_block_is_reported_with_the_host_that_has_its_replica(tmp_path: Path) -> None:
    others = Others()
    with opened(tmp_path, others) as line:
        assert line.put() == ()
        line.store.replicate_to(H2)
        assert line.put() == ("h2",)
        assert line.store.replica_host == "h2"
    ((host, block_id, frame),) = others.kept
    assert host == "h2" and read_stored(frame, "replica").meta.id == block_id


def test_lost_replica_host_delays_one_block_and_the_next_named_host_gets_the_replicas(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Heartbeats name the lost host. It is asked again after its rest if the driver knows no other."""
    others = Others()
    others.down = {"h2"}
    with opened(tmp_path, others) as line, caplog.at_level(logging.WARNING):
        line.store.replicate_to(H2)
        assert [line.put() for _ in range(3)] == [()] * 3
        assert line.store.refusing_hosts == ("h2",)
        assert others.asked.acquire(timeout=0) and not others.asked.acquire(timeout=0)
        line.store.replicate_to(H3)
        assert line.put() == ("h3",)
        line.store.replicate_to(H2)
        others.down.clear()
        assert line.put() == ()
        line.clock.advance(REST_SECONDS)
        assert line.put() == ("h2",)
        assert line.store.refusing_hosts == ()
    assert [record.getMessage() for record in caplog.records] == [
        "host h2 did not take a replica; blocks are reported without one for now: http://h2:1 is down"
    ]


def test_block_is_reported_without_a_replica_that_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6: nothing else is sent while that write hangs, so memory is bounded."""
    monkeypatch.setattr(wal_store, "REPLICA_SECONDS_MAX", 0.01)
    others = Others()
    others.let.clear()
    with opened(tmp_path, others) as line:
        line.store.replicate_to(H2)
        assert line.put() == ()
        assert others.asked.acquire(timeout=PATIENCE_SECONDS)
        line.clock.advance(REST_SECONDS)
        assert line.put() == ()
        assert not others.asked.acquire(timeout=0)
        assert line.store.refusing_hosts == ("h2",)
        others.let.set()
