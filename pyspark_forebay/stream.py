"""A streaming query: where it starts, how far each trigger reads, what its tasks are.

**Where the start lives.** Spark gives a Python source no folder, asks for the start again whenever the first batch is run again,
and writes only the end of a batch before it runs. So the start is ``{}`` for Spark, always, and what it stands for is asked
of Kafka once and kept in the end of the first batch (``offsets.START``), which Spark writes into the checkpoint before that
batch reads anything. Spark runs a first batch even if there is nothing to read, so a query that was started at "latest" and
stopped while idle goes on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from forebay.kafka.consume.planning import gathered, split_ranges
from forebay.kafka.consume.range_reader import Reading
from forebay.model.errors import RangeNotHeldError, UsageError
from forebay.process.clock import Clock, SystemClock
from forebay.process.worker_process import freeze_modules
from pyspark_forebay.offsets import Offsets, Positions
from pyspark_forebay.options import read_options
from pyspark_forebay.pacing import Pacing
from pyspark_forebay.planning import continued, lower_ends, plan
from pyspark_forebay.questions import Questions
from pyspark_forebay.reading import FAIL_ON_DATA_LOSS, read_spans

if TYPE_CHECKING:
    from pyspark_forebay.decoding import Decoding

_log = logging.getLogger("forebay.source")

#: a task costs Spark more than a few records cost us, so what is little is read by one: so many partitions, as a worker keeps
#: consumers for, with so many offsets in all
TOGETHER_PARTS_MAX = Reading().kept_max
TOGETHER_OFFSETS_MAX = 1_000


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in the planner's process as long as the query runs; copies of it read in the tasks."""

    def __init__(
        self, options: Mapping[str, str], clock: Clock | None = None, decoding: Decoding | None = None
    ) -> None:
        """Raises UsageError."""
        self._options = read_options(options, streaming=True, decoding=decoding)
        self._pacing = Pacing(self._options, clock or SystemClock())
        self._questions: Questions | None = None
        self._target: Offsets | None = None  # of Trigger.AvailableNow
        self._began: Positions = {}  # where this run began, by a time whose record may have come after the target
        self._seen: Offsets | None = None  # the newest ends, for the query's progress
        for sentence in self._options.told:
            _log.warning("%s", sentence)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_questions": None}

    # ---- how far -----------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return self._pacing.default_limit()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ask().latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """``start`` itself if this trigger shall read nothing. Raises UnreachableError, UsageError."""
        known = Offsets.of(start) if start else None
        if known is not None and known.cursor:
            raise UsageError(
                "the checkpoint is of a query over an intake: give the option tracker as before, or begin with a new checkpoint"
            )
        end = self._target
        if end is None:
            end = self._ask().latest(known)
        elif known is not None and lower_ends(known, self._past_begin(end)):
            # it was asked for before it was known what was read
            end = self._target = self._ask().latest(known)
        self._seen = end
        if known is not None:
            begun, own_start = known, None
        else:
            own_start = self._ask().resolve(self._options.starting, end.at, starting=True)
            begun = Offsets(own_start, end.topic_ids)
        begin = continued(begun, end.topic_ids)
        new = [tp for tp in end.at if tp not in begin]
        begin.update(self._ask().beginnings(new))
        until = self._pacing.until(begin, end.at, limit, whole=self._target is not None)
        if until is None:
            return start or Offsets(begin, end.topic_ids, own_start).json()
        if self._target is not None:
            if own_start is not None and self._options.starting.offsets is None:
                self._began = own_start
            until = self._past_begin(Offsets(until)).at
        made = Offsets(until, end.topic_ids, own_start)
        if own_start is None and made.at == begun.at and made.topic_ids == begun.topic_ids:
            return start  # to the letter, so that Spark sees that there is nothing new
        return made.json()

    def _past_begin(self, end: Offsets) -> Offsets:
        """``end``, or where this run began if that is further."""
        return replace(end, at={tp: max(offset, self._began.get(tp, 0)) for tp, offset in end.at.items()})

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._seen is None else Offsets(self._seen.at).json()

    # ---- what is read ------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raises RangeNotHeldError for what was lost, with ``failOnDataLoss``; UnreachableError; UsageError."""
        until = Offsets.of(end)
        if not start and until.start is None:
            raise UsageError(
                "the checkpoint's first batch was planned by another source, and only that knows its start: let it end there"
            )
        begun = Offsets.of(start) if start else Offsets(until.start or {}, until.topic_ids)
        now_ids = self._ask().topic_ids(until.topic_ids) if until.topic_ids else {}
        new = set(until.at) - set(continued(begun, until.topic_ids))
        planned = plan(begun, until, self._ask().beginnings(new), now_ids)
        for loss in planned.losses:
            if self._options.fail_on_data_loss:
                raise RangeNotHeldError(f"{loss}. {FAIL_ON_DATA_LOSS}")
            _log.warning("%s. failOnDataLoss is false: going on with what is left", loss)
        options = self._options
        parts = split_ranges(planned.spans, options.min_partitions, options.max_records_per_partition)
        if options.min_partitions is not None:
            return [InputPartition((part,)) for part in parts]
        most = min(TOGETHER_OFFSETS_MAX, options.max_records_per_partition or TOGETHER_OFFSETS_MAX)
        return [InputPartition(some) for some in gathered(parts, TOGETHER_PARTS_MAX, most)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        return read_spans(self._options, partition.value)

    def stop(self) -> None:
        if self._questions is not None:
            self._questions.close()
            self._questions = None

    def _ask(self) -> Questions:
        if self._questions is None:
            self._questions = Questions(self._options)
        return self._questions
