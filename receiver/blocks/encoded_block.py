"""Encodes pending blocks: the rows of their pieces, digests, metadata, payload. All use of Arrow is in this module."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.model.arrow_columns import value_lengths
from forebay.model.columns import Columns
from forebay.model.digest import digest
from forebay.model.payload import Compression, payload_parts
from forebay.model.records import RangeRows
from forebay.model.values import BlockMeta, BlockRange, block_id
from receiver.blocks.pending_block import PendingBlock, PendingRange, Piece
from wal.blocks.digests import completed
from wal.blocks.encryption import KeyRing
from wal.segments.payload import Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingOptions:
    """How one receiver encodes its blocks, and what their metadata have in common. ``keys``: None for no encryption."""

    stream: str
    receiver_id: str
    host: str
    headers: bool
    compression: Compression
    keys: KeyRing | None = None


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """Metadata and payload of a block, as they are written. The payload's checksum is computed once, for all its copies."""

    meta: BlockMeta
    payload: Payload


def encode(pending: PendingBlock, encoding: EncodingOptions, created_ms: int) -> EncodedBlock:
    """Return ``pending`` as the WAL and the local copy hold it. ``created_ms``: wall clock.

    The same arguments give the same bytes, except with encryption: each payload has a nonce of its own. Without encryption and
    compression, the payload shares memory with the records.
    """
    rows = [RangeRows(part.tp, [rows_of(piece) for piece in part.pieces]) for part in pending.ranges]
    ranges = tuple(_range(part, part_rows.batches) for part, part_rows in zip(pending.ranges, rows, strict=True))
    meta = BlockMeta(
        id=block_id(encoding.receiver_id, pending.epoch, pending.sequence),
        stream=encoding.stream,
        receiver_id=encoding.receiver_id,
        epoch=pending.epoch,
        sequence=pending.sequence,
        ranges=ranges,
        records=sum(part.records for part in ranges),
        created_ms=created_ms,
        host=encoding.host,
        headers=encoding.headers,
    )
    meta, payload = completed(meta, payload_parts(rows, encoding.headers, encoding.compression), encoding.keys)
    return EncodedBlock(meta, Payload.of(payload))


def _range(part: PendingRange, batches: Any) -> BlockRange:
    whole = all(piece.from_offset <= piece.columns.first_offset for piece in part.pieces)
    return BlockRange(
        topic=part.tp.topic,
        partition=part.tp.partition,
        incarnation=part.incarnation,
        from_offset=part.from_offset,
        until_offset=part.until_offset,
        records=sum(batch.num_rows for batch in batches),
        leader_epoch=part.leader_epoch,
        digest=digest(batches),
        token=part.token,
        bytes=sum(piece.columns.bytes for piece in part.pieces) if whole else sum(map(_bytes, batches)),
        max_timestamp_ms=max((_newest(batch) for batch in batches), default=-1)
        if not whole
        else max((piece.columns.max_timestamp_ms for piece in part.pieces), default=-1),
        preceding_gap=part.preceding_gap,
    )


def rows_of(piece: Piece) -> pa.RecordBatch:
    """Return the rows of ``piece`` whose offset is at least ``from_offset``, without a copy."""
    batch: pa.RecordBatch = piece.columns.batch
    if piece.from_offset <= piece.columns.first_offset:
        return batch
    offsets = batch.column("offset").to_numpy()
    return batch.slice(int(np.searchsorted(offsets, piece.from_offset)))


def cut(columns: Columns, bytes_max: int) -> list[Columns]:
    """Return ``columns`` as consecutive parts of at most ``bytes_max`` bytes each. A larger record is a part of its own.

    Blocks are bounded (INV-6), and the machine cannot cut within one poll because it does not read rows.
    """
    if columns.bytes <= bytes_max or columns.rows == 1:
        return [columns]
    batch: pa.RecordBatch = columns.batch
    ends = np.cumsum(_row_bytes(batch))
    offsets = batch.column("offset").to_numpy()
    pieces = []
    begin = 0
    while begin < columns.rows:
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + bytes_max, side="right")))
        part = batch.slice(begin, end - begin)
        pieces.append(
            replace(
                columns,
                first_offset=int(offsets[begin]),
                last_offset=int(offsets[end - 1]),
                rows=end - begin,
                bytes=int(ends[end - 1]) - before,
                max_timestamp_ms=_newest(part),
                batch=part,
            )
        )
        begin = end
    return pieces


def _row_bytes(batch: pa.RecordBatch) -> Any:
    key, value = (np.maximum(value_lengths(batch.column(name)), 0) for name in ("key", "value"))
    return key.astype(np.int64) + value


def _bytes(batch: pa.RecordBatch) -> int:
    return int(_row_bytes(batch).sum())


def _newest(batch: pa.RecordBatch) -> int:
    newest: Any = pc.max(batch.column("timestamp"))
    return int(newest.as_py())
