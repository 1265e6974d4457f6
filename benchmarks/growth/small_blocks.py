"""Blocks per batch, 1 to 100,000, with the same 400,000 records of 200 bytes: from allocation to the last task's row.

A tracker that has accepted the blocks allocates and packs them; then a job on a real Spark session (``local[2]``) reads all of
them by ``batch.arrow`` from the local copies, and sums up records and bytes. In a batch of 100,000 blocks each has 4 records.

The last figure is of a job with one task, which aggregates as in the benchmark ``arrow``: 1,000 blocks of 80 kB, against the same
bytes in 10 blocks.
"""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median

import pyarrow as pa

from benchmarks.journal_opening import TOKEN
from benchmarks.measured import Measured, Threshold, figure, ratio
from benchmarks.setup import PARTITIONS, Setup
from benchmarks.sheets import Lines, Sheet, line, spread
from benchmarks.stored_blocks import PROCESSES, STREAM, TOPIC, StoredBlocks, Totals, store, totals
from driver.batches.job.batch import Batch
from driver.batches.job.work import BatchWork
from driver.journal import events as ev
from driver.journal.state import State
from driver.journal.transitions import apply
from driver.spark.engine import SparkEngine
from driver.tracker import Tracker
from driver.tracker.requests import Allocate
from forebay.model.identifiers import numbered
from tests.support.state.tracked import tracker_options
from wal.reading import BlockReference

RECORDS = 400_000
BLOCKS = (1, 10, 100, 1_000, 10_000, 100_000)
FEW, MANY = 10, 1_000
#: making and reading a batch of more blocks takes minutes
RUN_ONCE_ABOVE = 10_000


def measure(setup: Setup) -> Iterator[Measured]:
    records = setup.records(RECORDS)
    counts = [count for count in BLOCKS if count * PARTITIONS <= records]
    allocated: dict[int, list[float]] = {}
    ended: dict[int, list[float]] = {}
    with setup.folder() as folder:
        engine = SparkEngine(_stored(folder, records, 1).settings, dict)
        engine.start()
        try:
            for count in counts:
                stored = _stored(folder, records, count)
                if count <= RUN_ONCE_ABOVE:
                    _run(engine, stored)  # the first one starts workers, or warms the page cache
                runs = [_run(engine, stored) for _ in range(setup.runs if count <= RUN_ONCE_ABOVE else 1)]
                allocated[count], ended[count] = [run[0] for run in runs], [run[1] for run in runs]
            many, few = (_in_one_task(engine, folder, records, count, setup.runs) for count in (MANY, FEW))
        finally:
            engine.stop()
    setup.keep(_sheet(allocated, ended))
    last = counts[-1]
    yield figure("growth-blocks", "allocation of the batch with the most blocks", allocated[last], "s")
    per_block = [(most - median(ended[FEW])) / last * 1e6 for most in ended[last]]
    yield figure("growth-blocks", "each further block, to the last task's row", per_block, "µs")
    pairs = list(zip(many, few, strict=True))
    most = Threshold(1.5, at_least=False)
    yield ratio("growth-blocks", f"a task over {MANY:,} blocks / the same bytes in {FEW}", pairs, "s", most)


def _run(engine: SparkEngine, stored: StoredBlocks) -> tuple[float, float]:
    """Return the seconds of the allocation, and from its begin to the last task's row."""
    tracker = _tracker(stored)
    gc.collect()
    begun = time.monotonic()
    decision = tracker.decide(Allocate(1_000, PROCESSES), 1.0, 1_000)
    allocated = time.monotonic() - begun
    (made,) = (event for event in decision.events if isinstance(event, ev.BatchAllocated))
    by_id = {block.id: BlockReference.of(block) for block in stored.blocks}
    work = BatchWork(
        made.batch_id, 1, 1_000, False, tuple(tuple(by_id[name] for name in task) for task in made.tasks)
    )  # fmt: skip
    found: list[tuple[int, int]] = []
    engine.run(work, lambda batch: found.extend(_read(batch)))
    seconds = time.monotonic() - begun
    if sum(rows for rows, _ in found) != stored.records:
        raise RuntimeError(f"the tasks read {found}, of {stored.records} records")
    return allocated, seconds


def _read(batch: Batch) -> list[tuple[int, int]]:
    return list(batch.arrow.mapPartitions(_sums).collect())


def _sums(batches: Iterable[pa.RecordBatch]) -> list[tuple[int, int]]:
    rows = size = 0
    for batch in batches:
        rows += batch.num_rows
        size += batch.nbytes
    return [(rows, size)]


def _tracker(stored: StoredBlocks) -> Tracker:
    """Return a tracker that has accepted the blocks."""
    epoch = numbered(1, 1)
    state = State(stream=STREAM, timeline=1)
    starts = tuple(ev.IncarnationStart(TOPIC, number, 0) for number in range(PARTITIONS))
    events: list[ev.Event] = [
        ev.StreamCreated(starts, 0, "earliest"),
        ev.ReceiverRegistered("r1", "bench", "1", epoch),
        *(ev.ClaimGiven(TOPIC, number, "r1", epoch, TOKEN + number) for number in range(PARTITIONS)),
        *(ev.BlockAdded(block) for block in stored.blocks),
    ]
    for event in events:
        apply(state, event)
    return Tracker(state, epoch, tracker_options())


def _in_one_task(engine: SparkEngine, folder: Path, records: int, count: int, runs: int) -> list[float]:
    """Return the seconds of a job whose only task aggregates the records, which are in ``count`` blocks."""
    stored = _stored(folder, records, count)
    work = BatchWork(numbered(1, 1), 1, 1_000, False, (tuple(BlockReference.of(block) for block in stored.blocks),))
    aggregate = totals

    def task(batches: Iterable[pa.RecordBatch]) -> list[Totals]:
        return [aggregate(batches, True)]

    def once() -> float:
        found: list[Totals] = []
        begun = time.monotonic()
        engine.run(work, lambda batch: found.extend(batch.arrow.mapPartitions(task).collect()))
        seconds = time.monotonic() - begun
        if sum(rows for _, rows, _, _ in found[0]) != stored.records:
            raise RuntimeError(f"the task read other records than the {stored.records} of {count} blocks")
        return seconds

    once()
    return [once() for _ in range(runs)]


def _stored(folder: Path, records: int, count: int) -> StoredBlocks:
    """Store the records in ``count`` blocks, in the folder that the engine knows, instead of what is there."""
    shutil.rmtree(folder)
    folder.mkdir()
    stored = store(folder, records, max(PARTITIONS, records // count))
    os.sync()  # otherwise the kernel writes the local copies, which are not synced, beside the first runs
    return stored


def _sheet(allocated: dict[int, list[float]], ended: dict[int, list[float]]) -> Sheet:
    rows = tuple(
        (f"{count:,}", spread([one * 1000 for one in allocated[count]]), spread([one * 1000 for one in ended[count]]))
        for count in ended
    )
    whole = line("to the last task's row", ended.items())
    plots = (Lines("blocks in the batch", "seconds", (line("allocation", allocated.items()), whole), y_log=True),)
    head = ("blocks in the batch", "allocation, ms", "allocation to the last task's row, ms")
    return Sheet("growth-blocks", "Blocks per batch", head, rows, plots)
