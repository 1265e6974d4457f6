"""A small batch as a DataFrame whose tasks run no Python: the driver reads the blocks and passes their columns to Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.serializers import ArrowStreamSerializer

from driver.batches.tasks.reading import Count, read_task
from forebay.model.arrow_columns import one_batch
from forebay.model.errors import UnreadableBlockError
from forebay.model.records import DATAFRAME_SCHEMA
from pyspark_forebay.schema import spark_schema
from wal.reading import BlockReference, ReadPlan, Tier, TierCounts

#: a batch of more blocks is read by tasks, since the driver reads them one after the other
BLOCKS_MAX = 200
#: how long the driver waits for an agent; afterwards tasks read the batch
AGENT_SECONDS = 0.5
#: a task with more bytes reads them itself, since Spark sends no task above ``spark.rpc.message.maxSize`` (128 MiB)
TASK_BYTES_MAX = 64 << 20
#: number of DataFrames whose blocks tasks read after the driver could not read those of one
FRAMES_LEFT_TO_TASKS = 100
#: above this size Spark turns columns into rows in the tasks. Below it the driver does so, and divides the rows anew
_ROWS_IN_DRIVER = "spark.sql.execution.arrow.localRelationThreshold"
#: between setting the option and setting it back
_OPTION_LOCK = threading.Lock()

Tasks = Sequence[Sequence[BlockReference]]


class SmallBatches:
    """Makes DataFrames of batches whose decoded blocks have up to ``limit_bytes``. Thread-safe.

    A Python worker costs a task about as much time as Spark's own work on a few thousand records. The driver reads what this
    machine or an agent has; it never asks a remote store, whose requests the tasks make in parallel.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._left_to_tasks = 0
        self._lock = threading.Lock()

    def frame(self, session: SparkSession, tasks: Tasks, plan: ReadPlan, count: Count) -> DataFrame | None:
        """Return the rows of ``tasks`` with one Spark partition for each task. None if the batch is not small, or if the driver
        can't read it: then tasks have to, whose errors count.

        On their way to the JVM the rows are in a file, so the driver reads encrypted blocks only if Spark encrypts its files.

        ``count``: called with the tier counts.
        """
        context: Any = session.sparkContext
        if plan.key_file is not None and not context._encryption_enabled:
            return None
        if not self._takes(tasks):
            return None
        total = TierCounts()

        def add(counts: TierCounts) -> None:
            nonlocal total
            total += counts

        try:
            parts = self._read(tasks, plan, add)
        except UnreadableBlockError:
            with self._lock:
                self._left_to_tasks = FRAMES_LEFT_TO_TASKS
            return None
        if parts is None:
            return None
        count(total)
        return frame_of(session, parts, plan.headers)

    def _takes(self, tasks: Tasks) -> bool:
        if not tasks or sum(map(len, tasks)) > BLOCKS_MAX:
            return False
        sizes = [sum(reference.decoded_bytes for reference in task) for task in tasks]
        if sum(sizes) > self._limit_bytes or max(sizes) > TASK_BYTES_MAX:
            return False
        with self._lock:
            if self._left_to_tasks:
                self._left_to_tasks -= 1
                return False
        return True

    def _read(self, tasks: Tasks, plan: ReadPlan, count: Count) -> list[pa.RecordBatch] | None:
        """Return the rows of each task; None if they are larger than expected, and than the limits."""
        near = msgspec.structs.replace(
            plan, tiers=tuple(_near(plan)), agent_timeout_seconds=AGENT_SECONDS, store_back=False
        )
        schema = DATAFRAME_SCHEMA(plan.headers)
        parts, size = [], 0
        for task in tasks:
            batches = []
            size_before = size
            for batch in read_task(task, near, count):
                size += batch.nbytes
                if size > self._limit_bytes or size - size_before > TASK_BYTES_MAX:
                    return None
                batches.append(batch)
            parts.append(one_batch(batches) if batches else pa.RecordBatch.from_pylist([], schema))
        return parts


def frame_of(session: SparkSession, parts: list[pa.RecordBatch], headers: bool) -> DataFrame:
    """Return a DataFrame with one partition for each of ``parts``, of ``DATAFRAME_SCHEMA``. It has their rows.

    ``session.createDataFrame`` makes partitions of a fixed number of rows, so its steps are called one by one.
    """
    jvm: Any = session._jvm
    java: Any = session._jsparkSession
    utils = jvm.PythonSQLUtils
    context: Any = session.sparkContext
    columns = context._serialize_to_jvm(
        parts, ArrowStreamSerializer(), utils.readArrowStreamFromFile, lambda: jvm.ArrowIteratorServer()
    )
    options = java.conf()
    with _OPTION_LOCK:
        before = options.get(_ROWS_IN_DRIVER)
        options.set(_ROWS_IN_DRIVER, "0")
        try:
            frame = utils.toDataFrame(columns, _schema(headers), java)
        finally:
            options.set(_ROWS_IN_DRIVER, before)
    return DataFrame(frame, session)


def _near(plan: ReadPlan) -> Iterator[Tier]:
    """Yield the tiers whose reads are fast."""
    for tier in plan.tiers:
        if tier in ("local", "agent") or (tier == "wal" and plan.wal_url.startswith("file:")):
            yield tier


@lru_cache(maxsize=2)
def _schema(headers: bool) -> str:
    return str(spark_schema(headers).json())
