"""A tier's block is read only if it is the very one that the journal names: one test for each thing that must agree."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from forebay.model.errors import CorruptionError
from forebay.model.values import Block, BlockMeta, Handle
from tests.support.state.rows import block, filler
from wal.blocks import StoredBlock
from wal.reading import BlockReference, check_same
from wal.segments.payload import checksum

WHERE = "local copy of a block"


def stored() -> StoredBlock:
    meta, payload = block({("a", 0): filler(5)})
    return StoredBlock(meta, payload, checksum([payload]))


def named() -> BlockReference:
    whole = stored()
    return BlockReference.of(Block(whole.meta, Handle("p", 0, 10, whole.checksum), local=True))


def with_range(**fields: object) -> Callable[[BlockMeta], BlockMeta]:
    """Another range with the same id, stream and payload: only the ranges differ."""
    return lambda meta: msgspec.structs.replace(meta, ranges=(msgspec.structs.replace(meta.ranges[0], **fields),))


def test_the_named_block_is_read() -> None:
    check_same(named(), stored(), WHERE)


@pytest.mark.parametrize(
    "change",
    [
        with_range(from_offset=1, until_offset=6),
        with_range(topic="b"),
        with_range(partition=1),
        with_range(incarnation=2),
        with_range(token=77),
        with_range(digest="f" * 16),
        lambda meta: msgspec.structs.replace(meta, headers=not meta.headers),
    ],
    ids=["offsets", "topic", "partition", "life", "token", "digest", "headers"],
)
def test_block_of_other_ranges_is_refused(change: Callable[[BlockMeta], BlockMeta]) -> None:
    whole = stored()
    other = StoredBlock(change(whole.meta), whole.payload, whole.checksum)
    with pytest.raises(CorruptionError, match="its ranges are not the ones that the journal names"):
        check_same(named(), other, WHERE)


def test_block_of_another_id_or_stream_is_refused() -> None:
    whole = stored()
    for other in (block({("a", 0): filler(5)}, sequence=2)[0], msgspec.structs.replace(whole.meta, stream="other")):
        with pytest.raises(CorruptionError, match="it contains another block"):
            check_same(named(), StoredBlock(other, whole.payload, whole.checksum), WHERE)


def test_block_of_another_checksum_is_refused() -> None:
    whole = stored()
    with pytest.raises(CorruptionError, match="checksum is not the one"):
        check_same(named(), StoredBlock(whole.meta, whole.payload, whole.checksum ^ 1), WHERE)
