"""Nothing grows with the number of batches (INV-6): state, index, tracker, journal, snapshots, snapshot copies, status, WAL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from driver.journal.log import writing as journal
from driver.journal.transitions import receivers
from recovery.audit import audit
from tests.support.processes.long_run import ROUND_BATCHES, STREAM, LongRun
from wal.storage import open_storage

#: between two looks: no multiple of what repeats, so that they meet clean-up and snapshots at different points
APART = 7 * ROUND_BATCHES + 3
LOOKS = 6


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens every hour or so in the product happens many times."""
    monkeypatch.setattr(journal, "SNAPSHOT_EVENTS", 500)
    monkeypatch.setattr(receivers, "UNBARRED_MAX", 2)
    monkeypatch.setattr(receivers, "ENDED_MAX", 2)
    monkeypatch.setattr(receivers, "PAST_INSTANCES", 2)


def largest(run: LongRun, of: Callable[[], dict[str, int]]) -> dict[str, int]:
    """The most of each at several looks."""
    most: dict[str, int] = {}
    for _ in range(LOOKS):
        run.run(APART)
        for name, size in of().items():
            most[name] = max(size, most.get(name, 0))
    return most


@pytest.mark.usefixtures("_often")
def test_nothing_grows_with_the_number_of_batches(tmp_path: Path) -> None:
    """Twenty minutes of one-second batches under a retention of a minute, with receivers that begin anew. What grew by one for
    each batch, round of clean-up or snapshot would be far beyond the bound. The history alone grows, evenly."""
    with LongRun(tmp_path, retention_seconds=60.0, receiver_batches=20).opened() as run:
        run.run(300)
        early = largest(run, run.sizes)
        begun, before = run.batch, run.history_bytes()
        late = largest(run, run.sizes)
        per_batch = (run.history_bytes() - before) / (run.batch - begun)
        assert before / begun == pytest.approx(per_batch, rel=0.1)
    assert {n: (early.get(n, 0), size) for n, size in late.items() if size > 1.3 * early.get(n, 0) + 5} == {}
    assert late["WAL files"] > 1
    assert late["state.released"] > 1
    report = audit(open_storage(f"file://{tmp_path}/journal"), STREAM)
    assert report.clean
    assert report.batches_completed == run.batch


@pytest.mark.usefixtures("_often")
def test_a_driver_that_opens_an_old_journal_finds_no_more_than_it_needs(tmp_path: Path) -> None:
    """Segments of older epochs go, also where no driver lives until its second snapshot."""
    for _ in range(6):
        with LongRun(tmp_path, retention_seconds=20.0).opened() as run:
            run.run(30)
            assert run.sizes()["journal files"] <= 2
