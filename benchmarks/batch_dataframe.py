"""A DataFrame aggregate over the blocks of 2,000,000 records, against the same aggregate by ``spark.read.parquet``.

Both run on one Spark session (``local[2]``) and group by key: number of records, bytes of values. Ours reads blocks through
Python and Arrow into the JVM. The JVM alone reads the same rows from Parquet (one file per block, Snappy, as pyarrow writes it),
and only the two columns that it needs. Both have run once before. Recorded without a threshold.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as f

from benchmarks.measured import Measured, alternate, ratio
from benchmarks.setup import Setup
from benchmarks.stored_blocks import StoredBlocks, store
from driver.batches.job.batch import Batch
from driver.spark.engine import SparkEngine
from wal.reading import BlockReference, ReadPlan, read_block

RECORDS = 2_000_000


def measure(setup: Setup) -> Iterator[Measured]:
    with setup.folder() as folder:
        blocks = store(folder, setup.records(RECORDS))
        parquet = _write_parquet(blocks, folder / "parquet")
        engine = SparkEngine(blocks.settings, dict)
        engine.start()
        try:
            if _ours(engine, blocks)[1] != _peer(engine, parquet)[1]:
                raise RuntimeError("the two aggregates differ")
            pairs = alternate(setup.runs, lambda: _ours(engine, blocks)[0], lambda: _peer(engine, parquet)[0])
        finally:
            engine.stop()
    yield ratio(
        "dataframe",
        "records/s",
        [(blocks.records / ours, blocks.records / peer) for ours, peer in pairs],
        "records/s",
        note=f"{blocks.records:,} records in {len(blocks.files)} blocks",
    )


def _write_parquet(blocks: StoredBlocks, directory: Path) -> str:
    directory.mkdir()
    plan = ReadPlan(wal_url=blocks.settings.wal.url, blocks_directory=blocks.settings.agent.blocks)
    for block in blocks.blocks:
        table = pa.Table.from_batches(read_block(BlockReference.of(block), plan).batches)
        pq.write_table(table, directory / f"{block.id}.parquet")
    return str(directory)


def _ours(engine: SparkEngine, blocks: StoredBlocks) -> tuple[float, Any]:
    found: list[Any] = []

    def job(batch: Batch) -> None:
        found.append(_aggregate(batch.df))

    begun = time.monotonic()
    engine.run(blocks.work, job)
    return time.monotonic() - begun, found[0]


def _peer(engine: SparkEngine, parquet: str) -> tuple[float, Any]:
    begun = time.monotonic()
    found = _aggregate(engine.session.read.parquet(parquet))
    return time.monotonic() - begun, found


def _aggregate(rows: Any) -> Any:
    sums = rows.groupBy("key").agg(f.count("*").alias("records"), f.sum(f.length("value")).alias("bytes"))
    return sorted(sums.collect(), key=lambda row: bytes(row.key))
