"""A journal that an older release wrote: the current code opens it and continues from its state, with any job."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

from driver.decisions.batch_order import following, window
from driver.journal import history
from driver.journal.log import opening
from driver.journal.log import reading as journal
from driver.tracker import Tracker
from driver.tracker.requests import Allocate, Archived, Complete, CompleteOutput, KeepWindow
from forebay.model.identifiers import numbered
from tests.support.state.tracked import STREAM, tracker_options
from wal.storage import open_storage

FOLDER = Path(__file__).parent / "v1-journal"


def test_journal_of_the_previous_release_continues_with_outputs_windows_and_concurrent_jobs(tmp_path: Path) -> None:
    """INV-2, INV-3: the unfinished batch comes first, with the blocks and packing it had; then what waited."""
    shutil.copytree(FOLDER, tmp_path / "old")
    storages = [open_storage(f"file://{tmp_path}/old/{name}") for name in ("journal", "wal")]
    uids = itertools.count(100)
    opened, state = opening.lead(storages[0], STREAM, "today", 5_000, lambda: 5.0, lambda: next(uids), wal=storages[1])
    tracker = Tracker(state, opened.epoch, tracker_options(max_queued_batches=6))
    first, unfinished, third = (numbered(1, number) for number in (1, 2, 3))
    assert [batch.batch_id for batch in history.read(storages[0], STREAM)] == [first]
    assert [batch.statistics for batch in history.read(storages[0], STREAM)] == [None], "unknown under that release"
    (batch,) = state.unfinished()
    assert batch.batch_id == unfinished
    assert batch.block_ids == ["r1-10000000001-3", "r1-10000000001-4"]
    assert (batch.outputs, state.window_batches, len(state.waiting)) == ((), 0, 2)

    tracker.decide(KeepWindow(2), 5.0, 5_000)
    assert tracker.decide(Allocate(5_000, 2), 5.0, 5_000).answer == third
    found = following(state, {(0, unfinished)})
    assert found is not None and found[0].batch_id == third
    assert [b.batch_id for b in window(state, state.batches[third], False)] == [unfinished], "the first one is archived"
    for request in (
        Complete(third, 5_100, 1),
        CompleteOutput(unfinished, "a", 5_200),
        Complete(unfinished, 5_300, 1),
        KeepWindow(0),
    ):
        tracker.decide(request, 5.0, 5_400)
    done = history.finished(state)
    assert [b.number for b in done] == [2, 3]
    tracker.decide(Archived(tuple(b.batch_id for b in done)), 5.0, 5_400)
    assert state.partitions["t/0"].completed == 35
    opened.snapshot()
    opened.sync()
    opened.close()
    read = journal.read(storages[0], STREAM).state
    assert read == state
