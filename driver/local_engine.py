"""Runs the job in this process, without Spark: for small streams, tests and machines without Java."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from driver.batch import Batch, BatchWork, Job
from driver.spark_tasks import Count, read_task
from forebay.errors import UsageError
from wal.reading import ReadPlan, TierCounts


class LocalEngine:
    """``plan`` is asked at the beginning of each run, since agents come and go."""

    def __init__(self, plan: Callable[[], ReadPlan]) -> None:
        self._plan = plan

    @property
    def parallelism(self) -> int:
        return 1

    def start(self) -> None:
        """Nothing to start."""

    def run(self, work: BatchWork, job: Job) -> TierCounts:
        """As ``driver.batch.Engine.run``."""
        counter = Counter()
        job(Batch(work, LocalRows(work, msgspec.structs.replace(self._plan(), lost=work.lost), counter.add)))
        return counter.total

    def stop(self) -> None:
        """Nothing to stop."""


class Counter:
    """Sums what was read."""

    def __init__(self) -> None:
        self.total = TierCounts()

    def add(self, counts: TierCounts) -> None:
        self.total += counts


class LocalRows:
    """The rows of one batch, read in this process."""

    def __init__(self, work: BatchWork, plan: ReadPlan, count: Count) -> None:
        self._work = work
        self._plan = plan
        self._count = count

    def read(self) -> Iterator[pa.RecordBatch]:
        for task in self._work.tasks:
            yield from read_task(task, self._plan, self._count)

    def df(self) -> Any:
        raise self._without_spark("df")

    def rdd(self) -> Any:
        raise self._without_spark("rdd")

    def arrow(self) -> Any:
        raise self._without_spark("arrow")

    @staticmethod
    def _without_spark(name: str) -> UsageError:
        return UsageError(f'batch.{name} needs Spark: set driver.engine = "spark", or use batch.read()')
