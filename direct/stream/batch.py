"""A batch of a direct stream as its job gets it, and the reading of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from direct.rdd.locations import LocationStrategy
from direct.rdd.rdd import KafkaRDD, locate
from direct.rdd.tasks import TaskReading, decode_span, encode, encode_task, read_batches
from direct.stream.commits import Callback, DirectCommits
from driver.batches.job.batch import Batch, Rows
from driver.batches.job.keyed_state import KeyedState, StateOptions
from driver.batches.job.work import BatchWork
from driver.batches.tasks.decoding import DeadLetterPlan, Decoder
from driver.spark.blocks import PlacedRows
from driver.spark.engine import SparkJobs
from driver.spark.rows import arrow_schema
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.errors import UsageError
from pyspark_forebay.schema import spark_schema


class DirectBatch(Batch):
    """A batch of a direct stream: like :class:`driver.batches.job.batch.Batch`, but its records are read from Kafka.

    A rerun has the same ranges, and their records while Kafka holds them. ``ranges`` are :class:`direct.OffsetRange`,
    one for each task. ``rdd`` is a :class:`direct.KafkaRDD`. ``records`` is the number of offsets. A window reads the
    ranges of earlier batches from Kafka again.
    """

    __slots__ = ("_commits",)

    def __init__(self, work: BatchWork, rows: DirectRows, commits: DirectCommits) -> None:
        super().__init__(work, rows)
        self._commits = commits

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:  # type: ignore[override]
        return self._work.spans

    def _over(self, work: BatchWork, rows: Rows) -> DirectBatch:
        assert isinstance(rows, DirectRows)
        return DirectBatch(work, rows, self._commits)

    def commit_async(self, ranges: Iterable[OffsetRange] | None = None, callback: Callback | None = None) -> None:
        """Commit the ends of ``ranges`` (None: those of the batch) to ``group.id``, when all batches up to them are completed:
        with the next batch or at the stop.

        ``callback``: called with the offsets, and the errors by partition. A restart uses the checkpoint, not these commits.
        Raises UsageError without a ``group.id``.
        """
        self._commits.add(self.ranges if ranges is None else ranges, callback, self._work.number)


class DirectRows:
    """The rows of one batch, which Spark's tasks read from Kafka."""

    def __init__(
        self,
        session: SparkSession,
        work: BatchWork,
        *,
        how: TaskReading,
        strategy: LocationStrategy,
        letters_of: Callable[[BatchWork], DeadLetterPlan],
    ) -> None:
        self._session = session
        self._work = work
        self._how = how
        self._strategy = strategy
        self._letters_of = letters_of

    def over(self, work: BatchWork) -> DirectRows:
        return DirectRows(self._session, work, how=self._how, strategy=self._strategy, letters_of=self._letters_of)

    def rdd(self) -> KafkaRDD:
        spans = self._work.spans
        return KafkaRDD(
            self._session.sparkContext, self._how, offset_ranges=spans, parts=spans, locations=self._places()
        )

    def arrow(self) -> Any:
        return self.rdd().arrow()

    def df(self) -> Any:
        how = self._how

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                rows: list[Any] = batch.column(0).to_pylist()
                yield from read_batches(how, 0, rows)

        return self._frame([encode(span) for span in self._work.spans]).mapInArrow(
            read, spark_schema(how.reading.headers)
        )

    def read(self) -> Iterator[pa.RecordBatch]:
        for span in self._work.spans:
            yield from self._how.read(span)

    def arrow_schema(self, schema: Any) -> pa.Schema:
        return arrow_schema(schema)

    def state(self, options: StateOptions) -> KeyedState:
        raise UsageError(
            f"state {options.name!r}: a direct stream has no WAL to keep a state in; use an intake's batches"
        )

    def decode(self, decoder: Decoder) -> Any:
        how, place = self._how, self._letters_of(self._work)

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                rows: list[Any] = batch.column(0).to_pylist()
                for row in rows:
                    yield from decode_span(how, row, decoder, place)

        return self._frame(self._tasks()).mapInArrow(read, from_arrow_schema(decoder.schema))

    def read_decoded(self, decoder: Decoder) -> Iterator[pa.RecordBatch]:
        place = self._letters_of(self._work)
        for row in self._tasks():
            yield from decode_span(self._how, row, decoder, place)

    def _tasks(self) -> list[bytes]:
        lived = zip(self._work.spans, self._work.incarnations, strict=True)
        return [encode_task(number, span, incarnation) for number, (span, incarnation) in enumerate(lived)]

    def _frame(self, rows: Sequence[bytes]) -> DataFrame:
        placed = list(zip(rows, self._places(), strict=True))
        return PlacedRows(self._session.sparkContext, placed).frame(self._session)

    def _places(self) -> list[tuple[str, ...]]:
        return locate(self._session.sparkContext, self._how.access, self._work.spans, self._strategy)


class DirectJobs(SparkJobs):
    """Runs the jobs of a direct stream with Spark."""

    def __init__(
        self,
        session: SparkSession,
        *,
        how: TaskReading,
        strategy: LocationStrategy,
        commits: DirectCommits,
        letters_of: Callable[[BatchWork], DeadLetterPlan],
        concurrent_jobs: int,
    ) -> None:
        super().__init__(session, concurrent_jobs=concurrent_jobs)
        self._how = how
        self._strategy = strategy
        self._commits = commits
        self._letters_of = letters_of

    def _batch(self, work: BatchWork, counts: Any) -> Batch:
        work = replace(work, headers=self._how.reading.headers)
        rows = DirectRows(self.session, work, how=self._how, strategy=self._strategy, letters_of=self._letters_of)
        return DirectBatch(work, rows, self._commits)
