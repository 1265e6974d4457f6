"""Processor time of reading 1,000 blocks of 80 kB, against the same 400,000 records in 10 blocks, without Spark.

Both read the local copies as a task does, with all checks, and use no row. A second line compares with the same 1,000 blocks
whose record batches Arrow joins, as if they could not be joined by their buffers. A third line is a task of a query over an
intake, against the same blocks that are read one by one, as blocks with unwanted records are.

Time on the clock says little while other programs use the processors; the benchmark ``growth-blocks`` measures it, with Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import pyarrow as pa

from benchmarks.measured import Measured, ratio
from benchmarks.setup import Setup
from benchmarks.stored_blocks import StoredBlocks, store
from forebay.model.block_runs import decoding
from forebay.process.garbage import freeze_present
from pyspark_forebay.intake.planning import BlockPart, IntakeTask
from pyspark_forebay.intake.reading import read_part, read_task
from pyspark_forebay.options.source import read_options
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
        _seconds(few, _together), _seconds(many, _together)
        freeze_present()  # as Spark's workers do
        runs = []
        for _ in range(setup.runs):
            joined, large = _seconds(many, _together), _seconds(few, _together)
            with by_arrow:
                arrow = _seconds(many, _together)
            runs.append((joined, large, arrow, _seconds(many, _by_query), _seconds(many, _one_by_one)))
    note = f"{len(many.blocks):,} and {len(few.blocks):,} blocks"
    for what, (place, peer), about in (
        ("reading many blocks / the same bytes in few", (0, 1), note),
        ("reading many blocks / the same joined by Arrow", (0, 2), ""),
        ("a query over an intake: many blocks / the same one by one", (3, 4), ""),
    ):
        pairs = [(found[place], found[peer]) for found in runs]
        yield ratio("small-blocks", f"{what}, processor time", pairs, "s", note=about)


_Read = Callable[[tuple[BlockReference, ...], ReadPlan], Iterable[pa.RecordBatch]]


def _together(references: tuple[BlockReference, ...], plan: ReadPlan) -> Iterable[pa.RecordBatch]:
    return (batch for read in read_blocks(references, plan) for batch in read.batches)


def _by_query(references: tuple[BlockReference, ...], plan: ReadPlan) -> Iterable[pa.RecordBatch]:
    options = read_options({"tracker": "http://127.0.0.1:1"}, streaming=False)
    return read_task(options, IntakeTask(plan, tuple(map(BlockPart, references))))


def _one_by_one(references: tuple[BlockReference, ...], plan: ReadPlan) -> Iterable[pa.RecordBatch]:
    return (batch for reference in references for batch in read_part(BlockPart(reference), plan, headers=False))


def _seconds(stored: StoredBlocks, read: _Read) -> float:
    """Return the processor time of one read of all blocks."""
    references = tuple(map(BlockReference.of, stored.blocks))
    plan = ReadPlan(wal_url=stored.settings.wal.url, blocks_directory=stored.settings.agent.blocks)
    begun = time.process_time()
    for _ in range(TIMES):
        rows = sum(batch.num_rows for batch in read(references, plan))
        if rows != stored.records:
            raise RuntimeError(f"{rows} of {stored.records} records were read")
    return (time.process_time() - begun) / TIMES
