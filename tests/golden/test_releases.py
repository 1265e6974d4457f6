"""Journal and WAL of earlier releases that were killed in the middle of a batch: this release reads them and continues.

``make test-variety`` runs the releases themselves (tests/variety/test_releases.py).
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from driver.journal import history
from driver.journal.log import opening
from forebay.model.payload import decode_block
from forebay.model.values import Block
from recovery.audit import audit
from tests.support.run.releases import RELEASES, Release
from wal.blocks import block_of_frame
from wal.segments.scan import read_frame
from wal.storage import Storage, open_storage

STREAM = "stream"
#: what tests/golden/make_release.py produced
RECORDS, PARTITIONS = 600, 4


def offsets_read(wal: Storage, block: Block) -> dict[int, list[int]]:
    """Return the partition and offsets of each record of the block in the WAL. Each record has the value that was produced."""
    found: dict[int, list[int]] = {}
    stored = block_of_frame(read_frame(wal, block.handle), block.handle.path)
    assert stored.meta == block.meta
    for range_, batches in decode_block(stored.payload, stored.meta, verify_digests=True):
        for row in (row for batch in batches for row in batch.to_pylist()):
            assert row["value"].split()[0] == b"%d" % (row["offset"] * PARTITIONS + range_.partition)
            found.setdefault(range_.partition, []).append(row["offset"])
    return found


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_journal_and_wal_of_earlier_release_are_continued_and_every_record_is_there(
    release: Release, tmp_path: Path
) -> None:
    """INV-2, INV-3: the batch that was running has its blocks, and each record is in one batch, or waits."""
    shutil.copytree(release.golden, tmp_path / "old")
    storage, wal = (open_storage(f"file://{tmp_path}/old/{name}") for name in ("journal", "wal"))
    uids = itertools.count(100)
    opened, state = opening.lead(storage, STREAM, "today", 0, lambda: 4e9, lambda: next(uids), wal=wal)
    running, *_ = state.unfinished()
    assert running.block_ids
    assert all(state.partitions[f"t/{number}"].position == RECORDS // PARTITIONS for number in range(PARTITIONS))
    offsets: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    finished = (*history.finished(state, windows=False), *history.read(storage, STREAM))
    for batch in {batch.batch_id: batch for batch in finished}.values():
        for range_ in batch.ranges:
            offsets[range_.partition] += range(range_.from_offset, range_.until_offset)
    assert any(offsets.values()), "the first batch was completed"
    batched = [block_id for batch in state.unfinished() for block_id in batch.block_ids]
    for block_id in (*batched, *state.waiting):
        for partition, read in offsets_read(wal, state.blocks[block_id]).items():
            offsets[partition] += read
    assert all(sorted(own) == list(range(RECORDS // PARTITIONS)) for own in offsets.values()), offsets
    opened.close()
    report = audit(storage, STREAM)
    assert report.clean, report.findings
