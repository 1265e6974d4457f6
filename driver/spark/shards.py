"""The shards of a keyed state in Spark's tasks: a DataFrame is split by the key's shard, and each task writes its shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import IntegerType, StructField, StructType

from driver.batches.job.keyed_state import LocalShards
from forebay.process.worker_process import freeze_modules
from wal.keyed.schema import DELETED, StateSchema
from wal.keyed.shard import Shards, ShardWritten, StatePlan, UpdateFunction
from wal.keyed.tasks import SHARD, ShardReader, numbered, with_keys

#: writes the rows of one shard
_Writer = Callable[[Shards, int, pa.Table], "ShardWritten | None"]


class SparkShards(LocalShards):
    """Works on the shards in Spark's tasks if the rows are a DataFrame, otherwise in this process."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def write(self, plan: StatePlan, rows: Any, deleted: Any) -> Sequence[ShardWritten]:
        if not isinstance(rows, DataFrame) and not isinstance(deleted, DataFrame):
            return super().write(plan, rows, deleted)
        schema = plan.schema
        marked = self._frame(rows, schema, schema.columns, "the rows").withColumn(DELETED, lit(False))
        if deleted is not None:
            keys = self._frame(deleted, schema, schema.keys, "the keys to delete").withColumn(DELETED, lit(True))
            marked = marked.unionByName(keys, allowMissingColumns=True)

        def write(shards: Shards, shard: int, table: pa.Table) -> ShardWritten:
            is_deleted = table.column(DELETED)
            kept = schema.conform(table.filter(pc.invert(is_deleted)), schema.columns, "the rows")
            return shards.write(
                shard, kept, schema.conform(table.filter(is_deleted), schema.keys, "the keys to delete")
            )

        return self._run(plan, marked, write)

    def update(self, plan: StatePlan, rows: Any, function: UpdateFunction) -> Sequence[ShardWritten]:
        if not isinstance(rows, DataFrame):
            return super().update(plan, rows, function)
        schema = plan.schema

        def update(shards: Shards, shard: int, table: pa.Table) -> ShardWritten | None:
            return shards.update(shard, with_keys(table, schema), function)

        return self._run(plan, rows, update)

    def frame(self, plan: StatePlan, reader: ShardReader) -> DataFrame:
        def read(ranges: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            freeze_modules()
            shards = plan.open()
            for batch in ranges:
                for shard in batch.column(0).to_pylist():
                    assert shard is not None
                    yield from reader(shards, shard).to_batches()

        count = len(plan.shards)
        numbers = self._session.range(0, count, 1, count)
        return numbers.mapInArrow(read, from_arrow_schema(plan.schema.columns))

    def _frame(self, rows: Any, schema: StateSchema, wanted: pa.Schema, what: str) -> DataFrame:
        """Return ``rows`` as a DataFrame of the columns ``wanted``."""
        if isinstance(rows, DataFrame):
            return rows.select(*(col(f"`{name}`") for name in wanted.names))
        return self._session.createDataFrame(
            schema.conform(rows, wanted, what)
        )  # Spark knows no dictionaries and views

    def _run(self, plan: StatePlan, frame: DataFrame, writer: _Writer) -> list[ShardWritten]:
        """Split ``frame`` by shard, and call ``writer`` in tasks for each shard that has rows."""
        columns = StructType([*frame.schema.fields, StructField(SHARD, IntegerType())])
        schema, count = plan.schema, len(plan.shards)
        split = frame.mapInArrow(lambda batches: numbered(batches, schema, count), columns)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            freeze_modules()
            parts = list(batches)
            if not parts:
                return
            table, shards = pa.Table.from_batches(parts), plan.open()
            numbers = table.column(SHARD)
            for shard in pc.unique(numbers).to_pylist():
                assert shard is not None
                written = writer(
                    shards, shard, table.filter(pc.equal(numbers, pa.scalar(shard, pa.int32()))).drop_columns([SHARD])
                )
                if written is not None:
                    yield pa.record_batch({"written": pa.array([msgspec.msgpack.encode(written)], pa.binary())})

        rows = split.repartition(count, SHARD).mapInArrow(write, "written binary").collect()
        return [msgspec.msgpack.decode(bytes(row[0]), type=ShardWritten) for row in rows]
