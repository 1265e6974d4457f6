"""Blocks that are decoded together: accepted only if each of them is accepted alone, and with the same rows."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pytest

from forebay.model.arrow_sizes import decompressed_sizes
from forebay.model.block_runs import OpenBlock, decode_run, open_block
from forebay.model.errors import CorruptionError
from forebay.model.payload import Compression, decode_block
from forebay.model.values import BlockMeta
from tests.support.rows import ODD_ROWS, block, filler


def alone(payload: object, meta: BlockMeta) -> pa.Table:
    return pa.Table.from_batches([batch for _, own in decode_block(payload, meta) for batch in own])


def two(compression: Compression = "none", headers: bool = False) -> list[tuple[BlockMeta, bytes]]:
    made = [
        block({("a", 0): ODD_ROWS, ("b", 1): filler(4)}, sequence=1, headers=headers, compression=compression),
        block(
            {("a", 0): filler(6, start=20), ("b", 2): filler(4)},
            sequence=2, headers=headers, compression=compression, rows_per_batch=2,
        ),
    ]  # fmt: skip
    return [(meta, payload.to_pybytes()) for meta, payload in made]


def opened(blocks: Sequence[tuple[BlockMeta, bytes]]) -> list[OpenBlock]:
    head = b""
    found = []
    for meta, payload in blocks:
        found.append(open_block(payload, meta, head))
        head = found[-1].head
    return found


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_blocks_with_equal_heads_are_decoded_as_each_alone(compression: Compression, headers: bool) -> None:
    blocks = two(compression, headers)
    together = opened(blocks)
    assert together[0].head == together[1].head
    expected = pa.concat_tables([alone(payload, meta) for meta, payload in blocks])
    assert pa.Table.from_batches([decode_run(together, verify_digests=True)]).equals(expected)


def test_block_without_records_is_not_decoded_with_others() -> None:
    meta, payload = block({("a", 0): []})
    with pytest.raises(ValueError, match="Arrow stream"):
        open_block(payload, meta)


def test_columns_that_decompress_to_more_than_the_ranges_allow_are_refused() -> None:
    """INV-6: before anything is decompressed."""
    meta, payload = block({("a", 0): filler(1000, size=4000)}, compression="zstd")
    assert max(max(sizes) for sizes in decompressed_sizes(payload)) > 1_000_000
    open_block(payload, meta)
    declared = msgspec.structs.replace(meta, ranges=(msgspec.structs.replace(meta.ranges[0], bytes=10_000),))
    with pytest.raises(ValueError, match="decompress to"):
        open_block(payload, declared)


def test_number_of_records_of_each_block_is_checked_before_it_is_joined() -> None:
    """A record that moved from one block to its neighbour is damage of both."""
    meta, payload = block({("a", 0): filler(4)})
    fewer = msgspec.structs.replace(meta.ranges[0], records=3)
    with pytest.raises(ValueError, match="4 records, its metadata says 3"):
        open_block(payload, msgspec.structs.replace(meta, ranges=(fewer,), records=3))


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_no_damage_is_accepted_together_that_is_refused_alone(compression: Compression) -> None:
    """INV-5: 1,500 streams with flipped bits, cut or joined parts; none leads outside of its memory."""
    draw = random.Random(11)
    blocks = two(compression)
    whole = opened(blocks)
    refused = accepted = 0
    for _ in range(1500):
        which = draw.randrange(2)
        meta, payload = blocks[which]
        changed = bytearray(payload)
        for _ in range(draw.choice((1, 1, 2, 8))):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        if not draw.randrange(5):
            del changed[draw.randrange(len(changed)) :]
        if not draw.randrange(5):
            begin = draw.randrange(0, len(changed), 8)
            changed[begin:begin] = payload[begin : begin + 8 * draw.randrange(40)]
        damaged = bytes(changed)
        try:
            one = open_block(damaged, meta, draw.choice((b"", whole[0].head)))
            rows = decode_run([whole[0], one] if one.head == whole[0].head else [one])
        except ValueError:
            refused += 1
            continue
        accepted += 1
        own = rows.slice(rows.num_rows - meta.records)
        try:
            expected = alone(damaged, meta)
        except CorruptionError as error:
            raise AssertionError(f"refused alone: {error}") from None
        assert pa.Table.from_batches([own]).equals(expected)
    assert refused > 300
    assert accepted > 100
