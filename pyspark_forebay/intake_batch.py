"""A batch query over an intake: its places and blocks are fixed when it is planned. Nothing is held for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from forebay.model.errors import UsageError
from forebay.process.worker_process import freeze_modules
from pyspark_forebay.intake import Intake
from pyspark_forebay.intake_reading import read_task
from pyspark_forebay.intake_source import IntakeSource
from pyspark_forebay.options import read_options

if TYPE_CHECKING:
    from pyspark_forebay.decoding import Decoding

_log = logging.getLogger("forebay.source")


class IntakeBatchReader(DataSourceReader):
    """Made and planned in a process of its own, and pickled from there to the tasks."""

    def __init__(self, options: Mapping[str, str], decoding: Decoding | None = None) -> None:
        """Raises UsageError."""
        self._options = read_options(options, streaming=False, decoding=decoding)
        for sentence in self._options.told:
            _log.warning("%s", sentence)

    def partitions(self) -> list[InputPartition]:
        """Raises UnreachableError, UnknownTopicError, UsageError, RangeNotHeldError."""
        options = self._options
        intake = Intake.of(options)
        try:
            source = IntakeSource(options, intake)
            answer, partitions = source.look()
            source.check_topics(partitions)
            begin = source.resolve(options.starting, answer, partitions, "starting")
            end = source.resolve(options.ending, answer, partitions, "ending")
            for tp in sorted(end):
                if begin[tp] > end[tp]:
                    raise UsageError(
                        f"starting offset {begin[tp][1]} of {tp} lies beyond its ending offset {end[tp][1]}"
                    )
            tasks = source.tasks(answer, partitions, begin, end)
        finally:
            intake.close()
        return tasks or [InputPartition(None)]  # Spark wants one at least

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        if partition.value is None:
            return iter(())
        found = read_task(self._options, partition.value)
        return found if self._options.decoding is None else self._options.decoding.decoded(found)
