"""A batch of a direct stream as the user's job sees it, and how its rows are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from direct.commits import Callback, Commits
from direct.locations import LocationStrategy
from direct.rdd import KafkaRDD, locate
from direct.tasks import TaskReading, encode, read_batches
from driver.batch import Batch, BatchWork
from driver.decoding import Decoder
from driver.spark_blocks import PlacedRows
from driver.spark_engine import SparkJobs
from forebay.errors import UsageError
from forebay.kafka.planning import sizes
from forebay.kafka.range_reader import read_range
from forebay.kafka.spans import Span
from pyspark_forebay.schema import spark_schema


class DirectBatch(Batch):
    """As :class:`driver.batch.Batch`, but read from Kafka itself: a rerun has the same ranges, and their records as long as Kafka
    holds them. ``ranges`` are ``direct.OffsetRange``, one for each task; ``rdd`` is a :class:`direct.rdd.KafkaRDD`. It has no
    ``decode`` and no windows.
    """

    __slots__ = ("_commits",)

    def __init__(self, work: BatchWork, rows: DirectRows, commits: Commits) -> None:
        super().__init__(work, rows)
        self._commits = commits

    @property
    def ranges(self) -> tuple[Span, ...]:  # type: ignore[override]
        return self._work.spans

    @property
    def records(self) -> int:
        """How many offsets the batch has: as many records, unless the topic is compacted or transactional."""
        return sizes(self._work.spans)

    def commit_async(self, ranges: Iterable[Span] | None = None, callback: Callback | None = None) -> None:
        """Commits the ends of ``ranges`` (None: the batch's) to ``group.id``, with the next batch or at the stop.

        ``callback`` is told the offsets, and partition → error. A restart goes by the checkpoint all the same.
        """
        self._commits.add(self.ranges if ranges is None else ranges, callback)


class DirectRows:
    """The rows of one batch, read from Kafka in Spark's tasks."""

    def __init__(self, session: SparkSession, work: BatchWork, how: TaskReading, strategy: LocationStrategy) -> None:
        self._session = session
        self._work = work
        self._how = how
        self._strategy = strategy

    def over(self, work: BatchWork) -> DirectRows:
        return DirectRows(self._session, work, self._how, self._strategy)

    def rdd(self) -> KafkaRDD:
        spans = self._work.spans
        return KafkaRDD(self._session.sparkContext, self._how, spans, spans, self._places())

    def arrow(self) -> Any:
        return self.rdd().arrow()

    def df(self) -> Any:
        how = self._how

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                rows: list[Any] = batch.column(0).to_pylist()
                yield from read_batches(how, 0, rows)

        rows = [(encode(span), place) for span, place in zip(self._work.spans, self._places(), strict=True)]
        frame = PlacedRows(self._session.sparkContext, rows).frame(self._session)
        return frame.mapInArrow(read, spark_schema(how.reading.headers))

    def read(self) -> Iterator[pa.RecordBatch]:
        for span in self._work.spans:
            yield from read_range(self._how.access, span, self._how.reading)

    def arrow_schema(self, schema: Any) -> pa.Schema:
        raise UsageError("a direct stream's batch has no decode: map over batch.rdd, or name deserialisers")

    def decode(self, decoder: Decoder) -> Any:
        raise UsageError("a direct stream's batch has no decode: map over batch.rdd, or name deserialisers")

    def read_decoded(self, decoder: Decoder) -> Iterator[pa.RecordBatch]:
        raise UsageError("a direct stream's batch has no decode: map over batch.rdd, or name deserialisers")

    def _places(self) -> list[tuple[str, ...]]:
        return locate(self._session.sparkContext, self._how.access, self._work.spans, self._strategy)


class DirectJobs(SparkJobs):
    """Runs jobs over what Kafka holds."""

    def __init__(self, session: SparkSession, how: TaskReading, strategy: LocationStrategy, commits: Commits) -> None:
        super().__init__(session)
        self._how = how
        self._strategy = strategy
        self._commits = commits

    def _batch(self, work: BatchWork, counts: Any) -> Batch:
        work = replace(work, headers=self._how.reading.headers)
        return DirectBatch(work, DirectRows(self.session, work, self._how, self._strategy), self._commits)
