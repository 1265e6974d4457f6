"""Rows of a Spark DataFrame for an output: as record batches in the driver's process, or as Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Observation
from pyspark.sql.functions import count, lit

from driver.batches.tasks.reading import packed


def record_batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Return the rows in order, as columns, with one Spark partition in memory at a time. Spark runs one job for each
    partition."""
    for row in frame.mapInArrow(packed, "stream binary").toLocalIterator():
        with pa.ipc.open_stream(row[0]) as reader:
            yield from reader


def write_parquet(frame: DataFrame, url: str, partition_by: Sequence[str]) -> int:
    """Write Parquet files in Spark tasks into the folder ``url``, which may exist; return the number of rows."""
    counted = Observation()
    writer: Any = frame.observe(counted, count(lit(1)).alias("rows")).write
    (writer.partitionBy(*partition_by) if partition_by else writer).mode("append").parquet(url)
    return int(counted.get.get("rows", 0))
