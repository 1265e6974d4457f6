"""The log over each kind of store: blocks after a crash, writers that are fenced, journals without one of their objects."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Collection
from typing import cast

import pytest

from driver.journal.events import ReceiverRegistered
from driver.journal.files import claim_path
from driver.journal.leadership.lease import LeaseKeeper
from driver.journal.log import opening
from driver.journal.log import reading as journal
from driver.journal.log.writing import Journal
from driver.journal.transitions import apply
from forebay.model.errors import CorruptionError, FencedError
from forebay.model.identifiers import numbered
from forebay.model.values import Handle
from tests.support.state.segments import durable, writer
from tests.support.stores.contract import Store
from tests.support.stores.unlisted import Unlisted
from wal.segments.frame import FrameKind
from wal.segments.scan import read_frame
from wal.segments.writer import LogWriter
from wal.storage import Storage


def test_blocks_written_are_read_back_by_handle_after_a_crash(store: Store) -> None:
    """INV-1."""
    log = writer(store.open())
    pending = []
    for group in range(3):
        pending += [
            log.append(FrameKind.BLOCK, b"m%d" % n, b"payload %d" % n * 999) for n in (2 * group, 2 * group + 1)
        ]
        log.sync()
    store.crash()
    storage = store.open()
    for number, frame in enumerate(pending):
        assert frame.handle is not None
        assert read_frame(storage, frame.handle).payload.to_pybytes() == b"payload %d" % number * 999
    assert [metadata for metadata, _ in durable(storage)] == [b"m%d" % n for n in range(6)]
    wrong = Handle(pending[0].handle.path, pending[0].handle.offset + 64, 128, 1)  # type: ignore[union-attr]
    with pytest.raises(CorruptionError):
        read_frame(storage, wrong)


def _write(log: LogWriter, metadata: bytes) -> None:
    log.append(FrameKind.BLOCK, metadata, b"x")
    log.sync()


def test_a_second_writer_of_the_same_epoch_is_fenced(store: Store) -> None:
    """INV-4."""
    first, second = writer(store.open()), writer(store.open(), first_uid=5)
    _write(first, b"a")
    with pytest.raises(FencedError):
        _write(second, b"b")
    assert [metadata for metadata, _ in durable(store.open())] == [b"a"]


def test_a_journal_goes_on_after_a_crash_and_an_outdated_driver_is_fenced(store: Store) -> None:
    """INV-4, INV-7."""
    uids = itertools.count(1)

    def lead(owner: str) -> Journal:
        opened, _ = opening.lead(store.open(), "s", owner, 0, lambda: 0.0, lambda: next(uids))
        return opened

    first = lead("one")
    registered = ReceiverRegistered(receiver_id="r1", host="h1", instance_id="i1", epoch=first.epoch)
    first.append([registered])
    first.sync()
    first.check()
    store.crash()
    found = journal.read(store.open(), "s")
    assert found.state is not None
    assert found.state.receivers.keys() == {"r1"}
    second = lead("two")
    with pytest.raises(FencedError):
        first.check()
    second.check()
    again = journal.read(store.open(), "s")
    assert again.epoch == second.epoch
    assert again.state is not None
    assert again.state.receivers.keys() == {"r1"}


def _journal_of_three_epochs(storage: Storage, snapshots: Collection[int]) -> journal.StoredJournal:
    """Epochs with one segment and with several; ``snapshots``: groups of events that one follows. The lease was ended."""
    uids = itertools.count(1)
    number = 0
    for groups in (1, 2, 7):
        keepers: list[LeaseKeeper] = []

        def keep(epoch: int, keepers: list[LeaseKeeper] = keepers) -> None:
            keepers.append(LeaseKeeper(storage, "s", epoch, owner=f"d{epoch}", url="", duration_seconds=600.0))
            keepers[0].start()

        led, state = opening.lead(storage, "s", "d", 0, lambda: 0.0, lambda: next(uids), segment_bytes=1, claimed=keep)
        keepers[0].follow(lambda led=led: led.confirmed)  # type: ignore[misc]
        for group in range(groups):
            number += 1
            registered = ReceiverRegistered(f"r{number}", "h1", "i1", numbered(1, number))
            apply(state, registered)
            led.append([registered])
            led.sync()
            led.check()
            if group in snapshots:
                led.snapshot()
                led.check()
                led.drop_superseded()
                led.await_deletion()
        led.close()
        keepers[0].stop()
    return journal.read(storage, "s")


@pytest.mark.parametrize("snapshots", [(), (1, 3)])
def test_journal_without_one_of_its_objects_is_refused_unless_it_is_whole(
    quick: Store, snapshots: tuple[int, ...]
) -> None:
    """INV-5: one removed, cut at several places, or left out of the listings, one at a time. Opening refuses, or has all."""
    storage = quick.open()
    # a look at a store behind a server needs dozens of requests, and the bytes of a cut object are the same there
    remote = not quick.url.startswith(("file:", "memory:"))
    expected = _journal_of_three_epochs(storage, snapshots)
    assert expected.state is not None and expected.state.epochs == 10
    outcomes = Counter[str]()

    def look(fault: str, path: str, seen: Storage) -> None:
        try:
            found = journal.read_beside_a_writer(seen, "s")
        except CorruptionError:
            outcomes[f"{fault} refused"] += 1
            if fault == "removed":
                claimed: list[int] = []
                with pytest.raises(CorruptionError):
                    opening.lead(seen, "s", "next", 0, lambda: 0.0, lambda: 1, claimed=claimed.append)
                storage.delete(claim_path("s", claimed[0]))  # so that the next look has as few epochs to ask for
        else:
            outcomes[f"{fault} whole"] += 1
            assert found.state == expected.state, f"{fault} {path}"

    paths = [path for path in storage.list("s") if "/epochs/" not in path]
    assert sum(path.endswith(".seg") for path in paths) >= 5
    for path in paths:
        look("unlisted", path, cast(Storage, Unlisted(storage, {path})))
        whole = storage.read(path)
        storage.delete(path)
        look("removed", path, storage)
        lengths = {len(whole) // 2} if remote else {0, 40, len(whole) // 2, len(whole) - 1}
        for length in sorted(lengths):
            storage.put_new(path, whole[:length])
            look("cut", path, storage)
            storage.delete(path)
        storage.put_new(path, whole)
    assert outcomes["unlisted refused"] == 0
    assert outcomes["removed refused"] >= 3
    assert outcomes["cut refused"] >= (3 if remote else 6)
    assert journal.read(storage, "s").state == expected.state
    for path in storage.list("s/epochs"):
        look("unlisted claim", path, cast(Storage, Unlisted(storage, {path})))
        claim = storage.read(path)
        storage.delete(path)
        led, state = opening.lead(storage, "s", "next", 0, lambda: 0.0, lambda: 1)
        led.close()
        assert state == expected.state, path
        with contextlib.suppress(FileExistsError):
            storage.put_new(path, claim)
