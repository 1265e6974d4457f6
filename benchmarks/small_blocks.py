"""Processor time of reading 1,000 blocks of 80 kB, against the same 400,000 records in 10 blocks, without Spark.

Both read the local copies as a task does, with all checks, and use no row. A second line compares with the same 1,000 blocks
whose record batches Arrow joins, as if they could not be joined by their buffers. Time on the clock says little while other
programs use the processors; the benchmark ``growth-blocks`` measures it, with Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

from benchmarks.measured import Measured, ratio
from benchmarks.setup import Setup
from benchmarks.stored_blocks import StoredBlocks, store
from forebay.model.block_runs import decoding
from forebay.process.garbage import freeze_present
from wal.reading import BlockReference, ReadPlan, read_blocks

RECORDS = 400_000
FEW, MANY = 10, 1_000
#: reads of one sample: the clock of processor time is coarse
TIMES = 5


def measure(setup: Setup) -> Iterator[Measured]:
    records = setup.records(RECORDS)
    with setup.folder() as few_folder, setup.folder() as many_folder:
        few, many = store(few_folder, records, records // FEW), store(many_folder, records, max(4, records // MANY))
        by_arrow: Any = mock.patch.object(decoding, "_form", return_value=None)
        _seconds(few), _seconds(many)
        freeze_present()  # as Spark's workers do
        runs = []
        for _ in range(setup.runs):
            joined, large = _seconds(many), _seconds(few)
            with by_arrow:
                runs.append((joined, large, _seconds(many)))
    note = f"{len(many.blocks):,} and {len(few.blocks):,} blocks"
    pairs = [(joined, large) for joined, large, _ in runs]
    yield ratio("small-blocks", "reading many blocks / the same bytes in few, processor time", pairs, "s", note=note)
    pairs = [(joined, arrow) for joined, _, arrow in runs]
    yield ratio("small-blocks", "reading many blocks / the same joined by Arrow, processor time", pairs, "s")


def _seconds(stored: StoredBlocks) -> float:
    """Return the processor time of one read of all blocks."""
    references = [BlockReference.of(block) for block in stored.blocks]
    plan = ReadPlan(wal_url=stored.settings.wal.url, blocks_directory=stored.settings.agent.blocks)
    begun = time.process_time()
    for _ in range(TIMES):
        rows = sum(batch.num_rows for read in read_blocks(references, plan) for batch in read.batches)
        if rows != stored.records:
            raise RuntimeError(f"{rows} of {stored.records} records were read")
    return (time.process_time() - begun) / TIMES
