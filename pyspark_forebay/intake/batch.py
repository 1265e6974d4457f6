"""A batch query over an intake.

Its places and blocks are fixed when Spark plans it; it has no cursor, so nothing is kept for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from forebay.model.errors import UsageError
from forebay.process.worker_process import freeze_modules
from pyspark_forebay.intake.client import Intake
from pyspark_forebay.intake.reading import read_task
from pyspark_forebay.intake.source import IntakeSource
from pyspark_forebay.options.source import ColumnDecoder, read_options

_log = logging.getLogger("forebay.source")


class IntakeBatchReader(DataSourceReader):
    """Plans and reads a batch query. Spark plans in a separate process, and pickles the reader from there to the tasks."""

    def __init__(self, options: Mapping[str, str], decoding: ColumnDecoder | None = None) -> None:
        """Check ``options`` and log their warnings. Raises UsageError."""
        self._options = read_options(options, streaming=False, decoding=decoding)
        for warning in self._options.warnings:
            _log.warning("%s", warning)

    def partitions(self) -> list[InputPartition]:
        """Ask the driver for limits and blocks, and return the tasks.

        Raises UnreachableError, UnknownTopicError, UsageError; RangeNotHeldError for lost records if ``failOnDataLoss``.
        """
        options = self._options
        intake = Intake.of(options)
        try:
            source = IntakeSource(options, intake)
            answer, partitions = source.describe()
            source.check_topics(partitions)
            begin = source.resolve(options.starting, answer, partitions, "starting")
            end = source.resolve(options.ending, answer, partitions, "ending")
            for tp in sorted(end):
                if begin[tp] > end[tp]:
                    raise UsageError(f"starting offset {begin[tp][1]} of {tp} is beyond its ending offset {end[tp][1]}")
            tasks = source.tasks(answer, partitions, begin, end)
        finally:
            intake.close()
        return tasks or [InputPartition(None)]  # Spark requires at least one

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        if partition.value is None:
            return iter(())
        return self._options.rows(read_task(self._options, partition.value))
