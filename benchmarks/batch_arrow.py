"""``batch.arrow`` over the blocks of 2,000,000 records, against a plain pyarrow loop over the same files.

Ours: a job on a real Spark session (``local[2]``) aggregates in Python tasks by ``batch.arrow.mapPartitions``: the time
of the whole job, Spark's scheduling included, with every checksum, offset and id checked. Peer: two processes that wait for
work map the same local copies into memory and run the same aggregate over them, with no check at all. The aggregate (records
and bytes for each of 1,000 keys) is computed by pyarrow, one thread per process. Both have run once before.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from benchmarks.measured import Measured, Threshold, alternate, ratio
from benchmarks.setup import Setup
from benchmarks.stored_blocks import PROCESSES, StoredBlocks, Totals, merged, plain_totals, store, totals
from driver.batch import Batch
from driver.spark_engine import SparkEngine

RECORDS = 2_000_000


def measure(setup: Setup) -> Iterator[Measured]:
    with setup.folder() as folder:
        blocks = store(folder, setup.records(RECORDS))
        # started before Spark: its workers must not inherit connections to the JVM
        with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
            engine = SparkEngine(blocks.settings, dict)
            engine.start()
            try:
                assert _ours(engine, blocks)[1] == _peer(pool, blocks)[1], "the two aggregates differ"
                pairs = alternate(setup.runs, lambda: _ours(engine, blocks)[0], lambda: _peer(pool, blocks)[0])
            finally:
                engine.stop()
    yield ratio(
        "arrow",
        "records/s",
        [(blocks.records / ours, blocks.records / peer) for ours, peer in pairs],
        "records/s",
        Threshold(0.5, at_least=True),
        f"{blocks.records:,} records in {len(blocks.files)} blocks",
    )


def _ours(engine: SparkEngine, blocks: StoredBlocks) -> tuple[float, Totals]:
    found: list[Totals] = []
    aggregate, combine = totals, merged

    def task(batches: Iterable[pa.RecordBatch]) -> list[Totals]:
        return [aggregate(batches)]

    def job(batch: Batch) -> None:
        found.append(combine(batch.arrow.mapPartitions(task).collect()))

    begun = time.monotonic()
    engine.run(blocks.work, job)
    return time.monotonic() - begun, found[0]


def _peer(pool: Any, blocks: StoredBlocks) -> tuple[float, Totals]:
    begun = time.monotonic()
    half = -(-len(blocks.files) // PROCESSES)
    parts = [part for at in range(PROCESSES) if (part := blocks.files[at * half : (at + 1) * half])]
    found = merged(pool.map(plain_totals, parts))
    return time.monotonic() - begun, found
