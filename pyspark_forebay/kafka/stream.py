"""A streaming query on Kafka: where it starts, how far each trigger reads, and its tasks.

**The start of a query** is stored in the end of its first batch (``offsets.START``). Spark gives a Python source no folder, and
calls ``initialOffset`` again whenever it runs the first batch again. So ``initialOffset`` always returns ``{}``, and the query
asks Kafka once where it starts. Spark writes the end of the first batch into the checkpoint before that batch reads anything, and
with it the start. Spark runs a first batch even if there is nothing to read, so a query that was started at "latest" and stopped
while idle continues from there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from forebay.kafka.consume.planning import gathered, split_ranges
from forebay.kafka.consume.range_reader import Reading
from forebay.model.errors import RangeNotHeldError, UsageError
from forebay.process.clock import Clock, SystemClock
from forebay.process.worker_process import freeze_modules
from pyspark_forebay.kafka.planning import continued, lower_ends, plan_kafka_batch, points_to_compare
from pyspark_forebay.kafka.questions import Questions
from pyspark_forebay.kafka.reading import read_spans
from pyspark_forebay.offsets import Offsets, Positions
from pyspark_forebay.options.source import FAIL_ON_DATA_LOSS, ColumnDecoder, read_options
from pyspark_forebay.pacing import Pacing

_log = logging.getLogger("forebay.source")

#: a task costs Spark more than reading a few records, so one task reads up to this many small partitions, the number of
#: consumers that a worker keeps, with up to this many offsets in total
TOGETHER_PARTS_MAX = Reading().kept_max
TOGETHER_OFFSETS_MAX = 1_000


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans a streaming query in a process that lives as long as the query; copies of the reader read in the tasks."""

    def __init__(
        self, options: Mapping[str, str], clock: Clock | None = None, decoding: ColumnDecoder | None = None
    ) -> None:
        """Check ``options`` and log their warnings. Raises UsageError."""
        self._options = read_options(options, streaming=True, decoding=decoding)
        self._pacing = Pacing(self._options, clock or SystemClock())
        self._questions: Questions | None = None
        self._target: Offsets | None = None  # where Trigger.AvailableNow ends
        self._began: Positions = {}  # where this run began at a time; its record may be newer than the target
        self._seen: Offsets | None = None  # the latest ends, for the query's progress
        for warning in self._options.warnings:
            _log.warning("%s", warning)

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
        """Return where the next batch ends; ``start`` itself if this trigger reads nothing.

        Raises UnreachableError, UsageError.
        """
        known = Offsets.of(start) if start else None
        if known is not None and known.cursor:
            raise UsageError(
                "the checkpoint belongs to a query over an intake: set the option tracker as before, or begin with a new "
                "checkpoint"
            )
        end = self._target
        if end is None:
            end = self._ask().latest(known)
        elif known is not None and lower_ends(known, self._past_begin(end)):
            # the target was determined before the query's offsets were known
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
        epochs = {tp: epoch for tp, epoch in end.leader_epochs.items() if until.get(tp, -1) <= end.at[tp]}
        made = Offsets(until, end.topic_ids, own_start, leader_epochs=epochs)
        if own_start is None and made.at == begun.at and made.topic_ids == begun.topic_ids:
            return start  # unchanged, so that Spark sees that there is nothing new
        return made.json()

    def _past_begin(self, end: Offsets) -> Offsets:
        """Return ``end``, with no partition before the offset at which this run began.

        A partition whose end is lower gets that offset as its end.
        """
        return replace(end, at={tp: max(offset, self._began.get(tp, 0)) for tp, offset in end.at.items()})

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._seen is None else Offsets(self._seen.at).json()

    # ---- what is read ------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch.

        Raises RangeNotHeldError for lost records if ``failOnDataLoss``; UnreachableError; UsageError.
        """
        until = Offsets.of(end)
        if not start and until.start is None:
            raise UsageError(
                "another source planned the checkpoint's first batch, and only that source knows its start: finish the batch "
                "with that source, or begin with a new checkpoint"
            )
        begun = Offsets.of(start) if start else Offsets(until.start or {}, until.topic_ids)
        now_ids = self._ask().topic_ids(until.topic_ids) if until.topic_ids else {}
        new = set(until.at) - set(continued(begun, until.topic_ids))
        cuts = self._ask().cuts(points_to_compare(begun, until, now_ids))
        planned = plan_kafka_batch(begun, until, self._ask().beginnings(new), now_ids, cuts)
        for loss in planned.losses:
            if self._options.fail_on_data_loss:
                raise RangeNotHeldError(f"{loss}. {FAIL_ON_DATA_LOSS}")
            _log.warning("%s. failOnDataLoss is false: continuing with the remaining records", loss)
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
