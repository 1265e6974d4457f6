"""Queries over made-up records that load what the first batch needs: Python workers, Java's classes, generated code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


class Query(NamedTuple):
    """One of the queries. ``awaited``: whether batches wait for it."""

    run: Callable[[], object]
    awaited: bool = False


class Warming:
    """Runs queries until a batch comes. Thread-safe.

    A batch that comes meanwhile waits for the first run of the awaited queries: beside them, both would take longer, and the time
    of the batch would say nothing about later ones. It waits for no other query, and no further one begins.
    """

    def __init__(self) -> None:
        self._runs = False
        self._wanted = threading.Event()  # a batch has come
        self._stopped = threading.Event()
        self._ready = threading.Event()  # the awaited queries have run

    def run(self, make: Callable[[], Sequence[Query]], rounds_max: int = ROUNDS_MAX) -> int:
        """Run the queries that ``make`` returns, up to ``rounds_max`` times. Return the number of whole rounds. Raises what
        ``make`` or a query raises. Batches wait from the call on, since making the queries takes time too."""
        self._runs = True
        try:
            made = make()
            for rounds in range(rounds_max):
                for place, query in enumerate(made):
                    needed = query.awaited and rounds == 0
                    if self._stopped.is_set() or (self._wanted.is_set() and not needed):
                        return rounds
                    query.run()
                    if not any(later.awaited for later in made[place + 1 :]):
                        self._ready.set()
            return rounds_max
        finally:
            self._ready.set()

    def await_ready(self) -> bool:
        """Return when a batch may begin, and whether it had to wait. No batch waits if no query runs."""
        self._wanted.set()
        if not self._runs or self._ready.is_set():
            return False
        return self._ready.wait()

    def stop(self) -> None:
        """Begin no further query, and let waiting batches go on."""
        self._stopped.set()
        self._ready.set()


def queries(session: SparkSession, plan: ReadPlan, counts: Any) -> list[Query]:
    """Return queries as jobs make them, along the way of a batch with no blocks, one task per core: an aggregate over a small
    batch, one over a large batch, files if tasks run on this machine, rows as columns, an RDD. Call this in the thread that runs
    them.

    ``plan``, ``counts``: as a batch's tasks have them.
    """
    context = session.sparkContext
    context.setJobGroup(_GROUP, _DESCRIPTION, interruptOnCancel=True)  # of this thread alone
    tasks: tuple[tuple[Any, ...], ...] = ((),) * max(1, int(context.defaultParallelism))
    partitions = TaskPartitions(session, tasks, ())

    def numbers(tasks: Iterable[bytes]) -> Iterator[int]:
        return (TaskBlocks.decode(task).number for task in tasks)

    def small() -> None:
        frame_of(session, list(sample_block().rows(plan.headers)), plan.headers).groupBy("topic").count().collect()

    def large() -> None:
        _frame(partitions, plan, counts).groupBy("topic").count().collect()

    def files() -> None:
        # a URL, since Hadoop's default file system may be another one
        folder = (Path(context._temp_dir or "").resolve() / _GROUP).as_uri()
        _frame(partitions, plan, counts).groupBy("topic").count().write.mode("overwrite").parquet(folder)

    def columns() -> None:
        frame = _frame(partitions, plan, counts)
        frame.selectExpr("CAST(value AS STRING) AS value", "partition", "offset", "timestamp").toArrow()

    def rdd() -> None:
        partitions.rdd().mapPartitions(numbers).count()

    there = [] if far(context) else [Query(files)]
    return [Query(small, awaited=True), Query(large, awaited=True), *there, Query(columns), Query(rdd)]


def _frame(partitions: TaskPartitions, plan: ReadPlan, counts: Any) -> DataFrame:
    sample, headers = sample_block(), plan.headers

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for task in tasks_in(batches):
            yield from read_in_task(task.references, plan, counts.add)
            yield from sample.rows(headers)

    return partitions.frame().mapInArrow(read, spark_schema(headers))
