"""A streaming query over an intake. It has a cursor, whose name is in the offsets that Spark stores in the checkpoint.

The driver journals the cursor before Spark gets the first offset, so the WAL keeps everything that the query has yet to read.
The cursor moves when Spark commits a batch. The checkpoint has the batch by then, so the cursor is never beyond the checkpoint.
If a query is killed before the checkpoint has its first offset, its cursor stays unused and expires.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from forebay.messages import IntakeAnswer
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock, SystemClock
from forebay.process.worker_process import freeze_modules
from pyspark_forebay.intake.client import Intake, Place, Places, partitions_of
from pyspark_forebay.intake.cursor import QueryCursor
from pyspark_forebay.intake.planning import Partitions, first_place, next_end, offsets_of, places, start_places
from pyspark_forebay.intake.progress_group import ProgressGroup
from pyspark_forebay.intake.reading import merged_kafka_options, read_task
from pyspark_forebay.intake.source import IntakeSource
from pyspark_forebay.offsets import Offsets
from pyspark_forebay.options.source import ColumnDecoder, SourceOptions, read_options
from pyspark_forebay.pacing import Pacing

_log = logging.getLogger("forebay.source")


class IntakeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans a streaming query in a process that lives as long as the query; copies of the reader read in the tasks."""

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        new_id: Callable[[], str],
        clock: Clock | None = None,
        decoding: ColumnDecoder | None = None,
    ) -> None:
        """Check ``options`` and log their warnings. ``new_id`` returns a few random letters. Raises UsageError."""
        self._options = read_options(options, streaming=True, decoding=decoding)
        self._new_id = new_id
        self._pacing = Pacing(self._options, clock or SystemClock())
        self._planner: _Planner | None = None
        for warning in self._options.warnings:
            _log.warning("%s", warning)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}

    @property
    def _plan(self) -> _Planner:
        if self._planner is None:
            self._planner = _Planner(self._options, self._new_id)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return self._pacing.default_limit()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._plan.aim()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends; ``start`` itself if this trigger reads nothing.

        Raises UnreachableError, UsageError; FencedError or RefusedError if the query has lost its cursor.
        """
        return self._plan.latest(start, limit, self._pacing)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._plan.seen.json() if self._plan.seen is not None else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch.

        Raises RangeNotHeldError for lost records if ``failOnDataLoss``, and as :meth:`latestOffset`.
        """
        return self._plan.tasks(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        return self._options.rows(read_task(self._options, partition.value))

    def commit(self, end: dict[str, Any]) -> None:
        """Move the cursor to ``end``, so that the WAL may delete records before it. Raises as :meth:`latestOffset`."""
        self._plan.commit(Offsets.of(end))

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None


class _Planner:
    """Decides the batches of one query, and keeps its cursor, in the planner's process."""

    def __init__(self, options: SourceOptions, new_id: Callable[[], str]) -> None:
        assert options.intake is not None
        self._options = options
        self._new_id = new_id
        self._intake_options = options.intake
        self._intake = Intake.of(options)
        self._source = IntakeSource(options, self._intake)
        self._cursor: QueryCursor | None = None
        self._progress: ProgressGroup | None = None
        self._target: tuple[IntakeAnswer, Partitions] | None = None  # where Trigger.AvailableNow ends
        self._begun: tuple[str, Places] | None = None  # name and start of the cursor, before the first checkpoint
        self._passed: set[TopicPartition] = set()  # partitions that the query does not read, as the driver knows
        self.seen: Offsets | None = None  # the latest ends, for the query's progress

    def close(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
        if self._progress is not None:
            self._progress.close()
        self._intake.close()

    def aim(self) -> None:
        self._target = self._source.describe()

    def latest(self, start: dict[str, Any], limit: ReadLimit, pacing: Pacing) -> dict[str, Any]:
        answer, partitions = self._target or self._source.describe()
        self.seen = offsets_of(self._source.latest(partitions), "")
        own_start: Places | None = None
        begin: Places
        if start:
            known = Offsets.of(start)
            name = known.cursor or self._new_name()  # the checkpoint of a query on Kafka itself has none
            begin = _continued(places(known), partitions)
        else:
            if self._begun is None:
                self._begun = self._begin(answer, partitions)
            name, own_start = self._begun
            begin = own_start
        self._read_by(name, begin, answer)
        until = self._until(begin, partitions, limit, pacing)
        if until is None or (own_start is None and until == places(Offsets.of(start)) and Offsets.of(start).cursor):
            return start or offsets_of(begin, name, own_start).json()
        return offsets_of(until, name, own_start).json()

    def _begin(self, answer: IntakeAnswer, partitions: Partitions) -> tuple[str, Places]:
        """Return a new cursor's name and start. The cursor first holds everything, so that nothing is deleted meanwhile."""
        self._source.check_topics(partitions)
        name = self._new_name()
        self._read_by(name, {tp: first_place(one) for tp, one in partitions.items()}, answer)
        assert self._cursor is not None
        try:
            if self._target is None:
                answer, partitions = self._source.describe()
            start = self._source.resolve(self._options.starting, answer, partitions, "starting")
            self._cursor.move(start, ())
        except BaseException:  # no checkpoint has its name, so no query would ever use it again
            self._cursor.close(forget=True)
            self._cursor, self._passed = None, set()
            raise
        return name, start

    def _until(
        self, begin: Places, partitions: Partitions, limit: ReadLimit, pacing: Pacing
    ) -> dict[TopicPartition, Place] | None:
        """Return where this trigger ends.

        One trigger reads an ended incarnation to its end; the next trigger begins the next one.
        """
        ends = {tp: next_end(begin[tp], partitions[tp]) for tp in begin if tp in partitions}
        same = {tp: place for tp, place in ends.items() if place[0] == begin[tp][0]}
        paced = pacing.until(
            {tp: begin[tp][1] for tp in same},
            {tp: max(place[1], begin[tp][1]) for tp, place in same.items()},
            limit,
            whole=self._target is not None or len(same) < len(ends),
        )
        if paced is None:
            return None
        return {**ends, **{tp: (same[tp][0], offset) for tp, offset in paced.items()}}

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        until = Offsets.of(end)
        if not until.cursor or (not start and until.start is None):
            raise UsageError(
                "another source planned the checkpoint's last batch, and only that source can run it: finish the batch with that "
                "source, or begin with a new checkpoint"
            )
        answer, _ = self._source.describe()
        partitions = partitions_of(answer)
        at = places(until)
        known = places(Offsets.of(start)) if start else start_places(until)
        begin = _continued(known, {tp: partitions[tp] for tp in at if tp in partitions})
        self._read_by(until.cursor, begin, answer)
        return self._source.tasks(answer, partitions, {**known, **begin}, at)

    def commit(self, end: Offsets) -> None:
        at = places(end)
        if self._cursor is None:
            self._read_by(end.cursor, at, self._source.describe()[0])
        assert self._cursor is not None
        self._cursor.move(at, ())
        if self._progress is not None:
            self._progress.show(end.at)

    def _read_by(self, name: str, begin: Places, answer: IntakeAnswer) -> None:
        """Open the cursor ``name`` if it is not open. On return the journal has it.

        It holds everything after ``begin``, and all records of partitions that are new to the query.
        """
        others = {one.tp for one in answer.partitions if not self._source.reads(one.tp)} - begin.keys()
        if self._cursor is None:
            if self._intake_options.progress_group is not None and self._progress is None:
                kafka = merged_kafka_options(self._options, answer.kafka)
                self._progress = ProgressGroup(self._intake_options.progress_group, kafka, answer.groups)
            user = f"{socket.gethostname()} pid {os.getpid()} {self._new_id()}"
            new = {one.tp: first_place(one) for one in answer.partitions if one.tp not in others}
            key = "".join(self._new_id() for _ in range(4))
            self._cursor = QueryCursor(
                self._intake, name=name, user=user, key=key, places={**new, **begin}, left=others
            )
        elif others - self._passed:
            self._cursor.move({}, others - self._passed)
        self._passed |= others
        self._cursor.check()

    def _new_name(self) -> str:
        return f"{self._intake_options.cursor}-{self._new_id()}"


def _continued(known: Places, partitions: Partitions) -> dict[TopicPartition, Place]:
    """Return the ``known`` place of each of ``partitions``.

    New partitions begin at the first place that the intake ever had, so that losses are reported.
    """
    return {tp: known.get(tp, first_place(one)) for tp, one in partitions.items()}
