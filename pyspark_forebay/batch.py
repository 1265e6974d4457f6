"""A batch query: its offsets are fixed when it is planned."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from forebay.kafka.consume.planning import split_ranges
from forebay.kafka.consume.spans import Span
from forebay.model.errors import UnknownTopicError, UsageError
from forebay.process.worker_process import freeze_modules
from pyspark_forebay.offsets import in_words
from pyspark_forebay.options import read_options
from pyspark_forebay.questions import Questions
from pyspark_forebay.reading import read_spans

if TYPE_CHECKING:
    from pyspark_forebay.decoding import Decoding

_log = logging.getLogger("forebay.source")


class BatchReader(DataSourceReader):
    """Made and planned in a process of its own, and pickled from there to the tasks."""

    def __init__(self, options: Mapping[str, str], decoding: Decoding | None = None) -> None:
        """Raises UsageError."""
        self._options = read_options(options, streaming=False, decoding=decoding)
        for sentence in self._options.told:
            _log.warning("%s", sentence)

    def partitions(self) -> list[InputPartition]:
        """Raises UnreachableError, UnknownTopicError, UsageError."""
        options = self._options
        questions = Questions(options)
        try:
            latest = questions.latest()
            begin = questions.resolve(options.starting, latest.at, starting=True)
            end = questions.resolve(options.ending, latest.at, starting=False)
        finally:
            questions.close()
        gone = set(latest.at) - (begin.keys() & end.keys())
        if gone:
            raise UnknownTopicError(f"{in_words(gone)} went away while the query was planned")
        for tp in sorted(end):
            if begin[tp] > end[tp]:
                raise UsageError(f"starting offset {begin[tp]} of {tp} lies beyond its ending offset {end[tp]}")
        spans = [
            Span(tp.topic, tp.partition, begin[tp], end[tp], latest.topic_ids.get(tp.topic, "")) for tp in sorted(end)
        ]
        parts = split_ranges(spans, options.min_partitions, options.max_records_per_partition)
        return [InputPartition((part,)) for part in parts] or [InputPartition(())]  # Spark wants one at least

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        return read_spans(self._options, partition.value)
