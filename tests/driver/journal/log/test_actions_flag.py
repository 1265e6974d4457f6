"""What an operator's pause and a skipped batch leave in the journal can't be read by a release that would ignore it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec
import pytest

from driver.background.snapshot_copies import SnapshotCopies
from driver.journal import events as ev
from driver.journal import history
from driver.journal.files import HistoryMeta, SnapshotMeta
from driver.journal.history import FinishedBatch, HistoryWriter
from driver.journal.log import opening, reading
from driver.journal.log.encoding import TOGETHER, EncodedState
from driver.journal.state import State
from driver.journal.transitions import apply
from forebay.model.errors import NewerVersionError
from forebay.model.identifiers import numbered
from forebay.process.clock import SystemClock
from tests.support.state.tracked import STREAM, Tracked
from wal.decisions.retention import RetentionLimits
from wal.segments import encoding, frame
from wal.segments.encoding import encode_frame
from wal.segments.frame import FLAG_ACTIONS, FLAG_ENCRYPTED, FrameKind, decode_frame
from wal.segments.scan import scan_segment
from wal.storage import MemoryStorage

uids = itertools.count(1)


def encode(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


@contextmanager
def old_release() -> Iterator[None]:
    """Read and write frames as a release that knows only the flag of encrypted blocks."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (frame, encoding):
            patch.setattr(module, "FLAGS", {FrameKind.BLOCK: FLAG_ENCRYPTED})
        yield


def write(storage: MemoryStorage, *events: ev.Event) -> State:
    """Journal ``events`` under a new driver; return its state."""
    led, state = opening.lead(storage, STREAM, "test", 1_000, lambda: 1.0, lambda: next(uids))
    for event in events:
        apply(state, event)
    if events:
        led.append(events)
        led.sync()
    led.close()
    return state


def stored(storage: MemoryStorage) -> State:
    """Return the journal's state, without leading it."""
    state = reading.read(storage, STREAM).state
    assert state is not None
    return state


def taken() -> tuple[list[ev.Event], int]:
    """The events of a stream with one batch, and its id."""
    t = Tracked()
    epoch = t.register()
    t.take_in(epoch, t.claim(epoch).view.token, 10)
    batch_id = t.batch()
    return t.events, batch_id


def test_flag_follows_the_metadata_of_snapshots_and_histories_alone() -> None:
    def flags(kind: FrameKind, metadata: bytes) -> int:
        parts = encode_frame(kind, uid=0, offset=0, index=0, metadata=metadata, payload=b"x")
        return decode_frame(b"".join(map(bytes, parts)), "p", 0).header.flags

    assert flags(FrameKind.SNAPSHOT, encode(SnapshotMeta(next=1, epoch=1, actions=True))) == FLAG_ACTIONS
    assert flags(FrameKind.HISTORY, encode(HistoryMeta(actions=True))) == FLAG_ACTIONS
    assert flags(FrameKind.SNAPSHOT, encode(SnapshotMeta(next=1, epoch=1))) == 0
    assert flags(FrameKind.HISTORY, b"") == 0
    assert flags(FrameKind.EVENTS, encode({"actions": True})) == 0
    assert flags(FrameKind.BLOCK, encode({"actions": True})) == 0
    assert "actions" not in msgspec.msgpack.decode(encode(SnapshotMeta(next=1, epoch=1))), "as older releases write it"


def test_old_release_refuses_the_journal_while_the_batches_are_paused() -> None:
    storage = MemoryStorage("memory://paused")
    events, _ = taken()
    write(storage, *events, ev.PauseChanged(True, 1, "ann: test"))
    assert write(storage).pause is not None  # its first snapshot has the pause
    with old_release():
        for refused in (stored, write):
            with pytest.raises(NewerVersionError, match="flags 0x0002"):
                refused(storage)
    write(storage, ev.PauseChanged(False, 2, "ann: test"))
    write(storage)
    with old_release():
        assert stored(storage).pause is None


def test_old_release_refuses_the_journal_while_it_has_a_skipped_batch() -> None:
    storage = MemoryStorage("memory://skipped")
    events, batch_id = taken()
    write(storage, *events, ev.BatchSkipped(batch_id, 1, 1, "ann: test"))
    write(storage, ev.BatchesArchived((batch_id,)))
    with old_release(), pytest.raises(NewerVersionError, match="flags 0x0002"):
        reading.read(storage, STREAM)
    write(storage)  # the batch is in the history, so the snapshot has none
    with old_release():
        assert not stored(storage).batches


def test_old_release_refuses_a_history_with_a_skipped_batch() -> None:
    storage = MemoryStorage("memory://history")
    done = FinishedBatch(
        batch_id=numbered(1, 1), number=1, time_ms=1, completed_ms=2, attempts=1, records=0, ranges=(), tasks=()
    )
    skipped = msgspec.structs.replace(done, batch_id=numbered(1, 2), number=2, skipped="ann: test")
    writer = HistoryWriter(storage, STREAM, 1, segment_bytes=1_000_000, now=lambda: 1.0, new_uid=lambda: next(uids))
    writer.append((done,))
    assert list(history.read(storage, STREAM)) == [done]
    writer.append((skipped,))
    assert list(history.read(storage, STREAM)) == [done, skipped]
    with old_release():
        read = history.read(storage, STREAM)
        assert next(read) == done
        with pytest.raises(NewerVersionError, match="flags 0x0002"):
            next(read)


def test_snapshot_copy_has_the_flag_and_the_state_as_it_was_in_the_decision_loop() -> None:
    """The blocks are encoded later, in parts, while the decision loop goes on."""
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    for number in range(1, TOGETHER + 3):
        t.take_in(epoch, token, number)
    before = msgspec.msgpack.decode(encode(t.state))
    wal = MemoryStorage("memory://copy")
    copies = SnapshotCopies(
        cast(Any, None), wal, stream=STREAM, epoch=numbered(1, 1), clock=SystemClock(), interval_seconds=0.0,
        limits=RetentionLimits(retention_ms=0), new_uid=lambda: next(uids),
    )  # fmt: skip
    plain = EncodedState.of(t.state)
    apply(t.state, ev.PauseChanged(True, 1, "ann: test"))
    paused = EncodedState.of(t.state)
    t.take_in(epoch, token, TOGETHER + 10)
    assert msgspec.msgpack.decode(b"".join(plain.payload())) == before
    *_, last = scan_segment(wal, copies.write(plain))
    assert isinstance(last, frame.Frame)
    assert last.header.flags == 0
    assert msgspec.msgpack.decode(last.payload, type=State).events == plain.next
    *_, last = scan_segment(wal, copies.write(paused))
    assert isinstance(last, frame.Frame)
    assert last.header.flags == FLAG_ACTIONS
