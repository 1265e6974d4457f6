"""The rows of one batch as DataFrames, RDDs and columns, read in Spark tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from driver.batches.job.keyed_state import KeyedState, StateOptions
from driver.batches.job.work import BatchWork
from driver.batches.local_engine import LocalRows, open_state
from driver.batches.tasks.decoding import DeadLetterPlan, Decoder, decode_in_task
from driver.batches.tasks.reading import KafkaRecord, TaskBlocks, read_in_task, records, tasks_in
from driver.spark.blocks import TaskPartitions, executors, hosts_of
from driver.spark.shards import SparkShards
from driver.spark.small import SmallBatches
from forebay.model.errors import UsageError
from pyspark_forebay.schema import spark_schema
from wal.reading import ReadPlan


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


class SparkRows:
    """The rows of one batch, as ``driver.batches.job.batch.Rows``. ``small``: makes the DataFrames of small batches."""

    def __init__(
        self,
        session: SparkSession,
        work: BatchWork,
        *,
        plan_of: Callable[[BatchWork], ReadPlan],
        counts: Any,
        letters_of: Callable[[BatchWork], DeadLetterPlan],
        small: SmallBatches,
    ) -> None:
        self._session = session
        self._work = work
        self._plan_of = plan_of
        self._plan = plan_of(work)
        self._counts = counts
        self._letters_of = letters_of
        self._small = small

    def over(self, work: BatchWork) -> SparkRows:
        return SparkRows(
            self._session,
            work,
            plan_of=self._plan_of,
            counts=self._counts,
            letters_of=self._letters_of,
            small=self._small,
        )

    def read(self) -> Iterator[pa.RecordBatch]:
        return self._here().read()

    def read_decoded(self, decoder: Decoder) -> Iterator[pa.RecordBatch]:
        return self._here().read_decoded(decoder)

    def _here(self) -> LocalRows:
        return LocalRows(self._work, plan_of=self._plan_of, count=self._counts.add, letters_of=self._letters_of)

    def arrow_schema(self, schema: Any) -> pa.Schema:
        return arrow_schema(schema)

    def state(self, options: StateOptions) -> KeyedState:
        return open_state(self._work, self._plan, options, SparkShards(self._session))

    def decode(self, decoder: Decoder) -> Any:
        place, plan, counts = self._letters_of(self._work), self._plan, self._counts

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for task in tasks_in(batches):
                yield from decode_in_task(task.references, task.number, plan, counts.add, decoder, place)

        return self._partitions.frame().mapInArrow(read, from_arrow_schema(decoder.schema))

    def arrow(self) -> Any:
        plan, counts = self._plan, self._counts

        def read(tasks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
            for task in tasks:
                yield from read_in_task(TaskBlocks.decode(task).references, plan, counts.add)

        return self._partitions.rdd().mapPartitions(read)

    def rdd(self) -> Any:
        def convert(batches: Iterable[pa.RecordBatch]) -> Iterator[KafkaRecord]:
            return records(batches)

        return self.arrow().mapPartitions(convert)

    def df(self) -> Any:
        plan, counts = self._plan, self._counts
        small = self._small.frame(self._session, self._work.tasks, plan, counts.add)
        if small is not None:
            return small

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for task in tasks_in(batches):
                yield from read_in_task(task.references, plan, counts.add)

        return self._partitions.frame().mapInArrow(read, spark_schema(self._work.headers))

    @cached_property
    def _partitions(self) -> TaskPartitions:
        agents = self._plan.agent_urls
        hosts = hosts_of(executors(self._session.sparkContext)).intersection(agents) if agents else frozenset[str]()
        return TaskPartitions(self._session, self._work.tasks, hosts)
