"""A batch query on Kafka. Its offsets are fixed when Spark plans it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from forebay.kafka.consume.planning import split_ranges
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.errors import UnknownTopicError, UsageError
from forebay.process.worker_process import freeze_modules
from pyspark_forebay.kafka.questions import Questions
from pyspark_forebay.kafka.reading import read_spans
from pyspark_forebay.offsets import comma_separated
from pyspark_forebay.options.source import ColumnDecoder, read_options

_log = logging.getLogger("forebay.source")


class BatchReader(DataSourceReader):
    """Plans and reads a batch query. Spark plans in a separate process, and pickles the reader from there to the tasks."""

    def __init__(self, options: Mapping[str, str], decoding: ColumnDecoder | None = None) -> None:
        """Check ``options`` and log their warnings. Raises UsageError."""
        self._options = read_options(options, streaming=False, decoding=decoding)
        for warning in self._options.warnings:
            _log.warning("%s", warning)

    def partitions(self) -> list[InputPartition]:
        """Ask Kafka for the limits of each partition and return the tasks.

        Raises UnreachableError, UnknownTopicError, UsageError.
        """
        options = self._options
        questions = Questions(options)
        try:
            latest = questions.latest()
            begin = questions.resolve(options.starting, latest.at, starting=True)
            end = questions.resolve(options.ending, latest.at, starting=False)
        finally:
            questions.close()
        deleted = set(latest.at) - (begin.keys() & end.keys())
        if deleted:
            raise UnknownTopicError(f"{comma_separated(deleted)} disappeared while the query was planned; run it again")
        for tp in sorted(end):
            if begin[tp] > end[tp]:
                raise UsageError(f"starting offset {begin[tp]} of {tp} is beyond its ending offset {end[tp]}")
        spans = [
            OffsetRange(
                tp.topic, tp.partition, begin[tp], end[tp], latest.topic_ids.get(tp.topic, ""),
                leader_epoch=latest.leader_epochs.get(tp, -1) if end[tp] <= latest.at[tp] else -1,
            )
            for tp in sorted(end)
        ]  # fmt: skip
        parts = split_ranges(spans, options.min_partitions, options.max_records_per_partition)
        return [InputPartition((part,)) for part in parts] or [InputPartition(())]  # Spark requires at least one

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        return read_spans(self._options, partition.value)
