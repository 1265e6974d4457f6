"""Queries over made-up records that load what the first batch needs: Python workers, Java's classes, generated code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from driver.batches.tasks.reading import TaskBlocks, read_in_task, tasks_in
from driver.batches.tasks.sample import sample_block
from driver.spark.blocks import TaskPartitions
from driver.spark.executors import far
from driver.spark.small import frame_of
from pyspark_forebay.schema import spark_schema
from wal.reading import ReadPlan

#: how often the queries run at most; later ones compile what runs often
ROUNDS_MAX = 3
_GROUP, _DESCRIPTION = "forebay-warming", "Forebay warms Spark up with made-up records"


def warm(
    session: SparkSession, plan: ReadPlan, counts: Any, wanted: Callable[[], bool], rounds_max: int = ROUNDS_MAX
) -> int:
    """Run the queries, one task per core, along the way of a batch with no blocks. Return the number of rounds.

    ``plan``, ``counts``: as a batch's tasks have them. ``wanted``: asked before each query; False ends the rounds.
    """
    context = session.sparkContext
    context.setJobGroup(_GROUP, _DESCRIPTION, interruptOnCancel=True)  # of this thread alone
    # a URL, since Hadoop's default file system may be another one
    folder = None if far(context) else (Path(context._temp_dir or "").resolve() / _GROUP).as_uri()
    tasks: tuple[tuple[Any, ...], ...] = ((),) * max(1, int(context.defaultParallelism))
    partitions = TaskPartitions(session, tasks, ())
    rounds = 0
    while rounds < rounds_max:
        for query in _queries(session, partitions, plan, counts, folder):
            if not wanted():
                return rounds
            query()
        rounds += 1
    return rounds


def _queries(
    session: SparkSession, partitions: TaskPartitions, plan: ReadPlan, counts: Any, folder: str | None
) -> Iterator[Callable[[], object]]:
    """Yield queries as jobs make them: an aggregate, one over a small batch, rows as columns, an RDD, and if tasks run on this
    machine, files."""

    def numbers(tasks: Iterable[bytes]) -> Iterator[int]:
        return (TaskBlocks.decode(task).number for task in tasks)

    def small() -> None:
        frame_of(session, list(sample_block().rows(plan.headers)), plan.headers).groupBy("topic").count().collect()

    frame = _frame(partitions, plan, counts)
    yield frame.groupBy("topic").count().collect
    yield small
    if folder is not None:
        yield partial(frame.groupBy("topic").count().write.mode("overwrite").parquet, folder)
    yield frame.selectExpr("CAST(value AS STRING) AS value", "partition", "offset", "timestamp").toArrow
    yield partitions.rdd().mapPartitions(numbers).count


def _frame(partitions: TaskPartitions, plan: ReadPlan, counts: Any) -> DataFrame:
    sample, headers = sample_block(), plan.headers

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for task in tasks_in(batches):
            yield from read_in_task(task.references, plan, counts.add)
            yield from sample.rows(headers)

    return partitions.frame().mapInArrow(read, spark_schema(headers))
