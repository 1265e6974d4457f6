"""The Kafka tier: records of exact offset ranges, while Kafka still has them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from forebay.model.payload import block_rows
from forebay.model.records import to_dataframe
from forebay.model.values import BlockRange
from wal.reading.plan import ReadPlan
from wal.reading.reference import BlockReference, incarnation_key


def read_from_kafka(
    reference: BlockReference, plan: ReadPlan, wanted: Sequence[BlockRange]
) -> tuple[pa.RecordBatch, ...] | None:
    """Return the records of ``wanted``, verified by topic id, count and digest; None if the Kafka tier is switched off.

    Raises RangeNotHeldError if Kafka no longer has exactly these records; other ForebayErrors.
    """
    if plan.kafka is None:
        return None
    from forebay.kafka.consume.block_ranges import Wanted, read_ranges  # loads librdkafka, which few tasks ever need

    asked = [Wanted(range_, plan.topic_ids.get(incarnation_key(range_), "")) for range_ in wanted]
    return tuple(
        to_dataframe(batch, rows.tp.topic, plan.headers)
        for rows in read_ranges(plan.kafka, asked, reference.headers)
        for batch in block_rows(rows, reference.headers)
    )
