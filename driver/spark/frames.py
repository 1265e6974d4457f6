"""Rows of a Spark DataFrame on their way to an output, in the driver's process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Observation
from pyspark.sql.functions import count, lit

from driver.batches.tasks import packed


def record_batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """The rows in order, as columns all the way; one Spark partition in memory at a time. Spark runs a job for each."""
    for row in frame.mapInArrow(packed, "stream binary").toLocalIterator():
        with pa.ipc.open_stream(row[0]) as reader:
            yield from reader


def write_parquet(frame: DataFrame, url: str, partition_by: Sequence[str]) -> int:
    """Writes a folder of Parquet files by Spark's tasks; how many rows. ``url`` must not be there yet."""
    counted = Observation()
    writer: Any = frame.observe(counted, count(lit(1)).alias("rows")).write
    (writer.partitionBy(*partition_by) if partition_by else writer).parquet(url)
    return int(counted.get.get("rows", 0))
