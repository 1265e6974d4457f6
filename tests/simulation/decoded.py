"""Blocks that were decoded in a run. Decoding depends on the bytes alone, so the same bytes are decoded once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from forebay.model.payload import decode_block
from forebay.model.values import BlockMeta, BlockRange
from tests.support.state.columns import column_values

#: range, offset, value
Row = tuple[BlockRange, int, bytes]


class DecodedBlocks:
    """The rows of blocks, by their exact payload."""

    def __init__(self) -> None:
        self._rows: dict[bytes, tuple[BlockMeta, list[Row]]] = {}

    def rows(self, payload: Any, meta: BlockMeta) -> list[Row]:
        """Return the rows of a block in order, with the digests verified. Raises as ``decode_block``."""
        data = bytes(payload)
        known = self._rows.get(data)
        if known is None or known[0] != meta:
            known = self._rows[data] = meta, list(rows_of(decode_block(data, meta, verify_digests=True)))
        return known[1]


def rows_of(found: Iterable[tuple[BlockRange, Sequence[pa.RecordBatch]]]) -> Iterator[Row]:
    """Yield the rows of ranges and their batches, in order."""
    for held, batches in found:
        for batch in batches:
            for offset, value in zip(column_values(batch, "offset"), column_values(batch, "value"), strict=True):
                yield held, offset, value
