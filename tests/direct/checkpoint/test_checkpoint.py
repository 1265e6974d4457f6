"""The checkpoint of a direct stream: gaps, its audit, and checkpoints of older releases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from direct.checkpoint.checkpoint import Checkpoint
from direct.checkpoint.leadership import lead
from driver.background.cleaner import Cleaner
from driver.decisions.replay import RewindTo, plan
from driver.journal import history
from driver.journal.events import SpansAllocated, SpansSkipped
from driver.journal.state import BrokenInvariant, State
from driver.journal.transitions import apply
from driver.tracker.requests import AllocateSpans, BeginSpans
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.errors import RefusedError, UsageError
from forebay.model.identifiers import numbered
from forebay.process.clock import SystemClock
from recovery import audit
from recovery.audit import report
from tests.support.state.checkpoints import BATCH, begun
from tests.support.state.reads import ReadBy
from wal.storage import MemoryStorage, open_storage


def test_gap_must_begin_at_the_end_of_the_last_range() -> None:
    """INV-2."""
    state = begun()
    with pytest.raises(BrokenInvariant, match="does not begin where"):
        apply(state, SpansSkipped((OffsetRange("t", 0, 11, 15),), 2, "out-of-range"))
    apply(state, SpansSkipped((OffsetRange("t", 0, 10, 15),), 2, "out-of-range"))
    apply(state, SpansAllocated(BATCH, 1, 3, (OffsetRange("t", 0, 15, 20),)))
    assert state.next_offsets == {"t/0": 20}
    found = report(state, ())
    assert found.clean and [(g.from_offset, g.until_offset) for g in found.incarnations[0].gaps] == [(10, 15)]


def test_audit_finds_an_offset_in_two_batches_or_in_none() -> None:
    """INV-2, INV-3: from the ranges alone, without relying on earlier checks."""
    state = begun()
    for number in (1, 2, 3):
        apply(
            state, SpansAllocated(numbered(1, number), number, 3, (OffsetRange("t", 0, 10 * number, 10 * number + 10),))
        )
    assert report(state, ()).clean
    state.batches[numbered(1, 2)].spans = (OffsetRange("t", 0, 15, 25),)
    found = report(state, ()).findings
    assert [(f.kind, f.from_offset, f.until_offset) for f in found] == [("duplicate", 15, 20), ("missing", 25, 30)]


def test_checkpoint_of_an_older_release_continues() -> None:
    state = State(stream="s", timeline=1, created=True, next_offsets={"t/0": 10}, topic_ids={"t": "id"})
    apply(state, SpansAllocated(BATCH, 1, 3, (OffsetRange("t", 0, 10, 20),)))
    found = report(state, ())
    assert found.clean and (found.incarnations[0].start, found.incarnations[0].until) == (10, 20)
    assert state.is_direct


_LEAD = """
import sys, threading
from direct.checkpoint.leadership import lead
from forebay.process.clock import SystemClock
from wal.storage import open_storage
with lead(open_storage(sys.argv[1]), "s", 1, SystemClock(), print):
    print("led", flush=True)
    threading.Event().wait()
"""


def test_lease_shows_whether_a_stream_runs(tmp_path: Path) -> None:
    storage = open_storage(tmp_path.as_uri())
    checkpoint = Checkpoint(tmp_path.as_uri(), "s")
    with pytest.raises(UsageError, match="has no checkpoint of a direct stream named 's'"):
        checkpoint.state()
    with lead(storage, "s", 1, SystemClock(), lambda _: None):
        assert checkpoint.lease()[0] == "running"
    assert checkpoint.lease() == ("stopped", None)
    with subprocess.Popen(
        [sys.executable, "-c", _LEAD, tmp_path.as_uri()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        led = child.stdout.readline()
        child.kill()
    assert led == b"led\n"
    assert checkpoint.lease()[0] == "ended"


def test_audit_proves_finished_batches_after_they_moved_to_the_history() -> None:
    """INV-3: the state forgets them only when the history durably has them."""
    storage = MemoryStorage("direct-history")
    clock = SystemClock()
    from driver.tracker.requests import Complete

    with lead(storage, "s", 2, clock, lambda _: None) as led:
        led.loop.ask(BeginSpans({"t/0": 0}, {"t": "id"}, 1, "given"))
        for begin in (0, 10):
            batch_id = led.loop.ask(AllocateSpans((OffsetRange("t", 0, begin, begin + 10, "id"),), 2))
            assert batch_id is not None
            led.loop.ask(Complete(batch_id, 3, 1))
        writer = history.HistoryWriter(
            storage, "s", led.epoch, segment_bytes=1_000_000, now=lambda: 0.0, new_uid=lambda: 1
        )
        cleaner = Cleaner(
            led.loop, None, history_writer=writer, stream="s", clock=clock, pause_seconds=3600.0, failed=lambda _: None
        )
        cleaner.look()
        assert led.loop.ask(ReadBy(lambda state: (dict(state.batches), state.archived_number))) == ({}, 2)
        writer.close()
        state = led.loop.ask(ReadBy(lambda state: state))
        with pytest.raises(RefusedError, match="no completed batch is batch 99: the newest one has number 2"):
            plan(state, (), RewindTo(batch=99))
    assert [batch.spans for batch in history.read(storage, "s")] == [
        (OffsetRange("t", 0, 0, 10, "id"),),
        (OffsetRange("t", 0, 10, 20, "id"),),
    ]
    found = audit.audit(storage, "s")
    assert found.clean and (found.batches_completed, found.records_completed) == (2, 20)
