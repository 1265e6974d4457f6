"""The power fails at every step of the write path: what was reported as durable is there afterwards (INV-1).

The store loses data that was not synced (tests/support/stores/forgetful.py), with appendable files and with whole objects. The
log writer alone is tested in tests/wal/segments. Here are the receiver's store with its threads, and the driver's journal, from
its opening to its snapshots and the deletion of what they supersede.
"""

from __future__ import annotations

import itertools
import queue
import threading
from random import Random

import pytest

from driver.journal import events as ev
from driver.journal.log import opening
from driver.journal.log import reading as journal
from driver.journal.state import State
from driver.journal.transitions import apply
from forebay.model.values import Block
from forebay.process.clock import SystemClock
from receiver import inputs as inp
from receiver.stores.store import StoreOptions
from receiver.stores.wal_store import WalStore
from tests.driver.journal.log.test_journal import some_events
from tests.receiver.stores.test_wal_store import EPOCH, PATIENCE_SECONDS, WRITING, pending
from tests.support.state.tracked import STREAM
from tests.support.stores.forgetful import Crash, ForgetfulStorage
from wal.blocks import block_of_frame
from wal.segments.scan import read_frame
from wal.segments.writer import SegmentLimits

KINDS = pytest.mark.parametrize("appendable", [True, False], ids=["appendable", "objects"])
BLOCKS = 6


def land_all(storage: ForgetfulStorage) -> None:
    """What was under way to the store when its sender died arrives."""
    while storage.late:
        storage.land(0)


# ---- the receiver's store --------------------------------------------------------------------------------------------


def stored_before_the_crash(
    storage: ForgetfulStorage, monkeypatch: pytest.MonkeyPatch, step: int | None
) -> tuple[list[Block], bool]:
    """Return what was reported to the receiver as durable until the power failed, and whether it failed."""
    reported: queue.Queue[inp.Input | None] = queue.Queue()
    storage.crash_at_step = step

    def ended(arguments: threading.ExceptHookArgs) -> None:
        assert arguments.exc_type is Crash, arguments
        reported.put(None)

    monkeypatch.setattr(threading, "excepthook", ended)
    store = WalStore(
        WRITING,
        StoreOptions(timeout_seconds=30.0),
        clock=SystemClock(),
        tell=reported.put,
        storage=storage,
        limits=SegmentLimits(size_bytes=2000, age_seconds=1e9),
        check_timeline=False,
    )
    store.open_epoch(EPOCH)
    blocks: list[Block] = []
    with store:
        for sequence in range(BLOCKS):
            store.put(pending(sequence))
        while len(blocks) < BLOCKS:
            event = reported.get(timeout=PATIENCE_SECONDS)
            if event is None:
                return blocks, True
            assert isinstance(event, inp.BlockStored), event
            blocks.append(event.block)
    return blocks, False


@KINDS
def test_every_block_reported_as_stored_outlives_a_power_loss_at_any_step(
    monkeypatch: pytest.MonkeyPatch, appendable: bool
) -> None:
    reported_counts = set()
    for step in itertools.count(1):
        storage = ForgetfulStorage(appendable=appendable)
        blocks, crashed = stored_before_the_crash(storage, monkeypatch, step)
        storage.crash_host(Random(step), zero_fill=bool(step % 2))
        land_all(storage)
        for block in blocks:
            frame = read_frame(storage, block.handle)
            assert block_of_frame(frame, block.handle.path).meta == block.meta, f"step {step}"
        reported_counts.add(len(blocks))
        if not crashed:
            break
    assert reported_counts == set(range(BLOCKS + 1)), "the steps between all blocks were gone through"


# ---- the driver's journal --------------------------------------------------------------------------------------------


def work(storage: ForgetfulStorage, answered: list[ev.Event]) -> None:
    """Two drivers after each other: each answers, writes a snapshot, answers, and drops what that makes superfluous.
    ``answered``: events whose effects were reported to a process."""
    events = some_events()
    third = len(events) // 3
    uids = itertools.count(1)
    for part in (events[:third], events[third:]):
        led, state = opening.lead(storage, STREAM, "test", 1_000, lambda: 1.0, lambda: next(uids), segment_bytes=1500)
        half = len(part) // 2
        for group in (part[:half], part[half:]):
            for event in group:
                apply(state, event)
                led.append([event])
                led.sync()
                led.check()
                answered.append(event)
            led.snapshot()
            led.check()
            led.drop_superseded()
            led.await_deletion()
        led.close()


def states() -> list[State]:
    """The state after each number of events."""
    found = []
    events = some_events()
    for count in range(len(events) + 1):
        state = State(stream=STREAM, timeline=1)
        for event in events[:count]:
            apply(state, event)
        found.append(state)
    return found


@KINDS
def test_every_answered_event_is_in_the_journal_after_a_power_loss_at_any_step(appendable: bool) -> None:
    """INV-1, INV-7, and INV-4: the next driver leads, whatever its predecessor's opening left behind."""
    after = states()
    for step in itertools.count(1):
        storage = ForgetfulStorage(appendable=appendable)
        storage.crash_at_step = step
        answered: list[ev.Event] = []
        crashed = False
        try:
            work(storage, answered)
        except Crash:
            crashed = True
        storage.crash_host(Random(step))
        if step % 2:
            land_all(storage)
        _, state = opening.lead(storage, STREAM, "test", 1_000, lambda: 1.0, lambda: 99)
        land_all(storage)
        assert journal.read(storage, STREAM).state == state, f"step {step}"
        # one event was perhaps durable when the power failed, and not yet answered
        assert state in after[len(answered) : len(answered) + 2], f"step {step}: {len(answered)} events were answered"
        if not crashed:
            break
    assert step > 50
