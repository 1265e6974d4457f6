"""One task's records of an intake: what runs in Spark's workers. Whole columns, no record by itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa

from forebay.model.errors import LostBlockError
from forebay.model.records import DATAFRAME_SCHEMA
from pyspark_forebay.intake_plan import BlockPart, IntakeTask
from pyspark_forebay.options import SourceOptions
from pyspark_forebay.reading import FAIL_ON_DATA_LOSS, read_span
from wal.reading import ReadPlan, read_block

_log = logging.getLogger("forebay.source")


def read_task(options: SourceOptions, task: IntakeTask) -> Iterator[pa.RecordBatch]:
    """Batches of ``DATAFRAME_SCHEMA``, one block in memory at a time.

    A block that no tier has any more raises LostBlockError with ``failOnDataLoss``, and is told and left out without; one that is
    out of reach raises UnreadableBlockError either way (INV-5). Otherwise as :func:`read_span`.
    """
    for part in task.parts:
        try:
            found = read_part(part, task.plan, options.include_headers)
        except LostBlockError as error:
            if options.fail_on_data_loss:
                raise LostBlockError(f"{error}. {FAIL_ON_DATA_LOSS}") from None
            _log.warning("%s. failOnDataLoss is false: going on with what is left", error)
            continue
        yield from found
    if task.span is not None:
        yield from read_span(replace(options, kafka=task.kafka), task.span)


def read_part(part: BlockPart, plan: ReadPlan, headers: bool) -> list[pa.RecordBatch]:
    """The rows of ``part`` in the order of its block, none of the batches empty. Raises as ``read_block``."""
    # ranges that are not read are passed over like those whose loss was accepted
    plan = msgspec.structs.replace(plan, lost=part.unwanted) if part.unwanted else plan
    cut = (_cut(batch, part, headers) for batch in read_block(part.reference, plan).batches)
    return [batch for batch in cut if batch.num_rows]


def _cut(batch: pa.RecordBatch, part: BlockPart, headers: bool) -> pa.RecordBatch:
    """The rows of ``batch``, which are of one range in the order of their offsets, that are read."""
    names = DATAFRAME_SCHEMA(headers).names
    if batch.num_columns > len(names):
        batch = batch.select(names)
    if not part.cuts or not batch.num_rows:
        return batch
    cut = part.cuts.get(f"{batch.column('topic')[0].as_py()}/{batch.column('partition')[0].as_py()}")
    if cut is None:
        return batch
    begin, end = np.searchsorted(batch.column("offset").to_numpy(), cut)
    return batch.slice(int(begin), int(end - begin))


def kafka_options(options: SourceOptions, told: Mapping[str, str]) -> dict[str, str]:
    """Where the intake's Kafka is, as its driver ``told``; the query's own ``kafka.*`` options count for more."""
    return {**told, **options.kafka} if {**told, **options.kafka}.get("bootstrap.servers") else {}
