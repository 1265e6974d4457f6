"""Rows of a Spark DataFrame for an output: as record batches in the driver's process, or as Parquet files. Schemas of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Observation
from pyspark.sql.functions import count, lit
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from driver.batches.tasks import packed
from forebay.model.errors import UsageError


def record_batches(frame: DataFrame) -> Iterator[pa.RecordBatch]:
    """Return the rows in order, as columns, with one Spark partition in memory at a time. Spark runs one job for each
    partition."""
    for row in frame.mapInArrow(packed, "stream binary").toLocalIterator():
        with pa.ipc.open_stream(row[0]) as reader:
            yield from reader


def write_parquet(frame: DataFrame, url: str, partition_by: Sequence[str]) -> int:
    """Write a folder of Parquet files in Spark tasks; return the number of rows. ``url`` must not exist yet."""
    counted = Observation()
    writer: Any = frame.observe(counted, count(lit(1)).alias("rows")).write
    (writer.partitionBy(*partition_by) if partition_by else writer).parquet(url)
    return int(counted.get.get("rows", 0))


def arrow_schema(schema: Any) -> pa.Schema:
    """Return the schema as ``Rows.arrow_schema``; Spark's schemas are accepted too."""
    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, str):
        try:
            schema = StructType.fromDDL(schema)
        except Exception as error:
            raise UsageError(f"the schema {schema!r} can't be read: {error}") from None
    if not isinstance(schema, StructType):
        raise UsageError(
            f"the schema must be a pyarrow.Schema, a StructType or a DDL string, not {type(schema).__name__}"
        )
    return to_arrow_schema(schema)
