"""A block of a few made-up records. Its way from bytes to rows warms what the tasks of a batch run; no job ever gets it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from forebay.model.arrow_columns import bytes_column, numbers_column
from forebay.model.digest import digest
from forebay.model.payload import decode_block, encode_block
from forebay.model.records import SOURCE_SCHEMA, RangeRows, to_dataframe
from forebay.model.values import BlockMeta, BlockRange, TopicPartition, block_id

_TOPIC = "sample"
_RECORDS = 8


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """A block as a receiver makes it. Can be pickled."""

    meta: BlockMeta
    payload: bytes

    def rows(self, headers: bool) -> Iterator[pa.RecordBatch]:
        """Return the rows as a task of a batch makes them."""
        for _, batches in decode_block(pa.py_buffer(self.payload), self.meta, path="a sample block"):
            for batch in batches:
                yield to_dataframe(batch, _TOPIC, headers)


def sample_block() -> SampleBlock:
    """Make a block of a few records without headers."""
    numbers = np.arange(_RECORDS, dtype=np.int64)
    batch = pa.RecordBatch.from_arrays(
        [
            bytes_column([b"key"] * _RECORDS, pa.binary()),
            bytes_column([b"value"] * _RECORDS, pa.binary()),
            numbers_column(numbers, pa.int64()),
            numbers_column(numbers, pa.int64()),
            numbers_column(np.zeros(_RECORDS, dtype=np.int32), pa.int32()),
        ],
        schema=SOURCE_SCHEMA(False),
    )
    rows = RangeRows(TopicPartition(_TOPIC, 0), [batch])
    range_ = BlockRange(
        topic=_TOPIC, partition=0, incarnation=1, from_offset=0, until_offset=_RECORDS, records=_RECORDS,
        leader_epoch=0, digest=digest([batch]), token=1,
    )  # fmt: skip
    meta = BlockMeta(
        id=block_id(_TOPIC, 1, 1), stream=_TOPIC, receiver_id=_TOPIC, epoch=1, sequence=1, ranges=(range_,),
        records=_RECORDS, created_ms=0, host="", headers=False,
    )  # fmt: skip
    return SampleBlock(meta, encode_block([rows], False).to_pybytes())
