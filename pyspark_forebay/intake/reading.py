"""Reading of an intake's blocks inside Spark's tasks, as whole columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby

import msgspec
import numpy as np
import pyarrow as pa

from forebay.model.errors import LostBlockError
from forebay.model.records import DATAFRAME_SCHEMA
from pyspark_forebay.intake.planning import BlockPart, IntakeTask
from pyspark_forebay.options.source import FAIL_ON_DATA_LOSS, SourceOptions
from wal.reading import ReadPlan, read_block, read_blocks

_log = logging.getLogger("forebay.source")


def read_task(options: SourceOptions, task: IntakeTask) -> Iterator[pa.RecordBatch]:
    """Yield the records of ``task`` as batches of ``DATAFRAME_SCHEMA``, without empty batches.

    Raises LostBlockError for a block that no tier has any more if ``failOnDataLoss`` is true; if it is false, the block
    is logged and omitted. Raises UnreadableBlockError in any case if a block cannot be reached (INV-5), and as
    :func:`read_span`.
    """

    def on_lost(error: LostBlockError) -> None:
        if options.fail_on_data_loss:
            raise LostBlockError(f"{error}. {FAIL_ON_DATA_LOSS}") from None
        _log.warning("%s. failOnDataLoss is false: continuing with the remaining records", error)

    yield from read_parts(task.parts, task.plan, options.include_headers, on_lost)
    if task.span is not None:
        from pyspark_forebay.kafka.reading import read_span  # most tasks read blocks alone

        yield from read_span(replace(options, kafka=task.kafka), task.span)


def read_parts(
    parts: Iterable[BlockPart], plan: ReadPlan, headers: bool, on_lost: Callable[[LostBlockError], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of ``parts``, in their order and the order of their blocks, without empty batches.

    Blocks that are read as a whole are read as ``read_blocks`` reads them: successive small ones together, with its bounds of
    memory. A block with unwanted records is read alone.

    ``on_lost``: called for each block that no tier has any more, possibly from another thread. Raises UnreadableBlockError as
    ``read_block``, and what ``on_lost`` raises.
    """
    for whole, group in groupby(parts, lambda part: not part.cuts and not part.unwanted):
        if whole:
            for read in read_blocks([part.reference for part in group], plan, on_lost):
                yield from _with_columns(read.batches, headers)
            continue
        for part in group:
            try:
                found = read_part(part, plan, headers)
            except LostBlockError as error:
                on_lost(error)
            else:
                yield from found


def read_part(part: BlockPart, plan: ReadPlan, headers: bool) -> list[pa.RecordBatch]:
    """Return the wanted rows of ``part`` in the order of its block, without empty batches. Raises as ``read_block``."""
    # unwanted ranges are skipped in the same way as ranges whose loss was accepted
    plan = msgspec.structs.replace(plan, lost=part.unwanted) if part.unwanted else plan
    cut = (_cut(batch, part) for batch in _with_columns(read_block(part.reference, plan).batches, headers))
    return [batch for batch in cut if batch.num_rows]


def _with_columns(batches: Iterable[pa.RecordBatch], headers: bool) -> Iterator[pa.RecordBatch]:
    """Yield those of ``batches`` that have rows, without headers unless they are wanted."""
    names = DATAFRAME_SCHEMA(headers).names
    for batch in batches:
        if batch.num_rows:
            yield batch.select(names) if batch.num_columns > len(names) else batch


def _cut(batch: pa.RecordBatch, part: BlockPart) -> pa.RecordBatch:
    """Return the wanted rows of ``batch``, which has rows of one range in the order of their offsets."""
    if not part.cuts:
        return batch
    cut = part.cuts.get(f"{batch.column('topic')[0].as_py()}/{batch.column('partition')[0].as_py()}")
    if cut is None:
        return batch
    begin, end = np.searchsorted(batch.column("offset").to_numpy(), cut)
    return batch.slice(int(begin), int(end - begin))


def merged_kafka_options(options: SourceOptions, of_intake: Mapping[str, str]) -> dict[str, str]:
    """Return the options for the intake's Kafka; empty if its address is unknown.

    ``of_intake``: the options that the intake's driver named. The query's ``kafka.*`` options take precedence.
    """
    merged = {**of_intake, **options.kafka}
    return merged if merged.get("bootstrap.servers") else {}
