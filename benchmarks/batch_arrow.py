"""``batch.arrow`` over the blocks of 2,000,000 records, against a plain pyarrow loop over the same files.

Ours: a job on a real Spark session (``local[2]``) aggregates in Python tasks by ``batch.arrow.mapPartitions``. The time is that
of the whole job, including Spark's scheduling; every checksum, offset and id is checked. Peer: two processes that are already
running map the same local copies into memory and run the same aggregate without any check. Both have run once before.

The aggregate is computed by pyarrow with one thread per process: for each of 1,000 keys its records, the bytes of their values,
and the number of values that contain "00". A second line, without a threshold, is the same without looking into values. There
the peer never reads most of the files, and ours is mostly Spark's own time for a job, which a third line shows.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from benchmarks.measured import Measured, Threshold, alternate, figure, ratio
from benchmarks.setup import Setup
from benchmarks.stored_blocks import PROCESSES, StoredBlocks, Totals, merged, plain_totals, store, totals
from driver.batches.job.batch import Batch
from driver.spark.engine import SparkEngine

RECORDS = 2_000_000


def measure(setup: Setup) -> Iterator[Measured]:
    with setup.folder() as folder:
        blocks = store(folder, setup.records(RECORDS))
        # started before Spark: its workers must not inherit connections to the JVM
        with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
            engine = SparkEngine(blocks.settings, dict)
            engine.start()
            try:
                yield _measured(setup, engine, pool, blocks, True, "records/s", Threshold(0.5, at_least=True))
                yield _measured(setup, engine, pool, blocks, False, "records/s, values unread", None)
                empty = [_empty_job(engine) * 1000 for _ in range(setup.runs)]
                yield figure("arrow", "Spark's job over no records", empty, "ms")
            finally:
                engine.stop()


def _measured(
    setup: Setup,
    engine: SparkEngine,
    pool: Any,
    blocks: StoredBlocks,
    look_inside: bool,
    what: str,
    wanted: Threshold | None,
) -> Measured:

    def ours() -> tuple[float, Totals]:
        return _ours(engine, blocks, look_inside)

    def peer() -> tuple[float, Totals]:
        return _peer(pool, blocks, look_inside)

    if ours()[1] != peer()[1]:
        raise RuntimeError("the two aggregates differ")
    pairs = alternate(setup.runs, lambda: blocks.records / ours()[0], lambda: blocks.records / peer()[0])
    return ratio("arrow", what, pairs, "records/s", wanted, f"{blocks.records:,} records in {len(blocks.files)} blocks")


def _ours(engine: SparkEngine, blocks: StoredBlocks, look_inside: bool) -> tuple[float, Totals]:
    found: list[Totals] = []
    aggregate = totals

    def task(batches: Iterable[pa.RecordBatch]) -> list[Totals]:
        return [aggregate(batches, look_inside)]

    def job(batch: Batch) -> None:
        found.append(merged(batch.arrow.mapPartitions(task).collect()))

    begun = time.monotonic()
    engine.run(blocks.work, job)
    return time.monotonic() - begun, found[0]


def _empty_job(engine: SparkEngine) -> float:
    begun = time.monotonic()
    context = engine.session.sparkContext
    context.parallelize(range(PROCESSES), PROCESSES).mapPartitions(list).collect()
    return time.monotonic() - begun


def _peer(pool: Any, blocks: StoredBlocks, look_inside: bool) -> tuple[float, Totals]:
    begun = time.monotonic()
    half = -(-len(blocks.files) // PROCESSES)
    parts = [part for at in range(PROCESSES) if (part := blocks.files[at * half : (at + 1) * half])]
    found = merged(pool.starmap(plain_totals, [(part, look_inside) for part in parts]))
    return time.monotonic() - begun, found
