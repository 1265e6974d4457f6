"""Records for tests: source batches of plain tuples, blocks with their metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from forebay.model.digest import digest
from forebay.model.payload import Compression, encode_block
from forebay.model.records import SOURCE_SCHEMA, RangeRows
from forebay.model.values import BlockMeta, BlockRange, TopicPartition, block_id


class Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    offset: int
    timestamp: int = 1_700_000_000_000
    timestamp_type: int = 0
    headers: list[tuple[str, bytes | None]] | None = None


#: every value that has ever been mistaken for another
ODD_ROWS = (
    Row(None, None, 3, -1, -1),
    Row(b"", b"", 4, 0),
    Row(b"\xff\xfe\x00", b"\x00", 5, 1, 1, []),
    Row(None, b"v", 7, 2**53 + 1, 0, [("", None)]),
    Row(b"tombstone", None, 9, 1_700_000_000_123, 1, [("h", b""), ("h", None), ("é", b"\xff\x00")]),
    Row("ключ".encode(), b"\r\n" * 50, 12, 1_700_000_000_123, 0, [("a", b"1")]),
)


def source_batch(rows: Sequence[Row], headers: bool = False) -> pa.RecordBatch:
    columns: list[Any] = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in Row._fields]
    schema = SOURCE_SCHEMA(headers)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=False)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def filler(count: int, start: int = 0, size: int = 20) -> list[Row]:
    return [Row(b"k%d" % n, (b"%d," % n) * (size // 4), n, 1_700_000_000_000 + n) for n in range(start, start + count)]


def block(
    ranges: Mapping[tuple[str, int], Sequence[Row]],
    *,
    sequence: int = 1,
    receiver_id: str = "r1",
    stream: str = "s",
    host: str = "h1",
    headers: bool = False,
    compression: Compression = "none",
    rows_per_batch: int | None = None,
) -> tuple[BlockMeta, pa.Buffer]:
    """Return a block of ``ranges`` as a receiver would make it: its metadata and payload."""
    rows, made = [], []
    for (topic, partition), records in ranges.items():
        step = rows_per_batch or max(len(records), 1)
        batches = [source_batch(records[at : at + step], headers) for at in range(0, len(records), step)]
        rows.append(RangeRows(TopicPartition(topic, partition), batches))
        made.append(
            BlockRange(
                topic=topic,
                partition=partition,
                incarnation=1,
                from_offset=records[0].offset if records else 0,
                until_offset=records[-1].offset + 1 if records else 1,
                records=len(records),
                leader_epoch=0,
                digest=digest(batches),
                token=1,
            )
        )
    epoch = 1 << 40 | 1
    meta = BlockMeta(
        id=block_id(receiver_id, epoch, sequence),
        stream=stream,
        receiver_id=receiver_id,
        epoch=epoch,
        sequence=sequence,
        ranges=tuple(made),
        records=sum(r.records for r in made),
        created_ms=1_700_000_000_000,
        host=host,
        headers=headers,
    )
    return meta, encode_block(rows, headers, compression)
