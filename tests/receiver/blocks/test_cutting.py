"""Blocks cut from any sequence of polls: contiguous ranges, no record lost or repeated, bounded sizes."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.model.columns import Columns, EndOfPartition
from forebay.model.records import SOURCE_SCHEMA
from forebay.model.values import TopicPartition
from receiver import inputs as inp
from receiver.blocks.encoded_block import cut, rows_of
from receiver.blocks.pending_block import Piece
from tests.receiver.stage import P0, P1, P2, Stage, columns, offsets_of

PARTITIONS = (P0, P1, P2)
BLOCK_BYTES = 1000

#: (partition, step back into what was taken in, gaps between offsets, bytes of a record) | seconds | end of partition
STEP = st.one_of(
    st.tuples(
        st.just("poll"),
        st.integers(0, 2),
        st.integers(0, 3),
        st.lists(st.integers(1, 3), min_size=1, max_size=12),
        st.sampled_from([0, 10, 90, 400, 1500]),
    ),
    st.tuples(st.just("wait"), st.sampled_from([0.2, 0.6, 1.0])),
    st.tuples(st.just("end"), st.integers(0, 2), st.integers(0, 3)),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(STEP, max_size=40))
def test_ranges_are_contiguous_and_every_record_is_in_exactly_one_block(steps: list[tuple[object, ...]]) -> None:
    """INV-2, INV-6."""
    stage = Stage(memory=10**9)
    starts = stage.own(*PARTITIONS)
    for tp in PARTITIONS:  # past the start, where a gap would be read again
        stage.poll(starts[tp], [0])
    taken: dict[TopicPartition, list[int]] = {tp: [0] for tp in PARTITIONS}
    ends = dict.fromkeys(PARTITIONS, 1)
    for step in steps:
        if step[0] == "wait":
            stage.wait(step[1])  # type: ignore[arg-type]
            continue
        tp = PARTITIONS[step[1]]  # type: ignore[call-overload]
        if step[0] == "end":
            ends[tp] += step[2]  # type: ignore[operator]
            stage.tell(inp.Polled([EndOfPartition(tp, starts[tp].generation, ends[tp])]))
            continue
        _, _, back, gaps, record_bytes = step
        offset = max(0, ends[tp] - back)  # type: ignore[operator]
        offsets = []
        for gap in gaps:  # type: ignore[attr-defined]
            offsets.append(offset)
            offset += gap
        taken[tp] += [new for new in offsets if new >= ends[tp]]
        ends[tp] = max(ends[tp], offsets[-1] + 1)
        stage.poll(starts[tp], offsets, record_bytes)  # type: ignore[arg-type]
    stage.wait(1.0)
    pending_blocks = stage.sealed()
    assert [pending.sequence for pending in pending_blocks] == list(range(1, len(pending_blocks) + 1))
    reached: dict[TopicPartition, int] = defaultdict(int)
    for pending in pending_blocks:
        pieces = [piece.columns for part in pending.ranges for piece in part.pieces]
        assert sum(piece.bytes for piece in pieces) <= BLOCK_BYTES or len([p for p in pieces if p.bytes]) == 1
        for part in pending.ranges:
            assert part.from_offset == reached[part.tp]
            assert part.until_offset > part.from_offset
            reached[part.tp] = part.until_offset
            assert all(part.from_offset <= offset < part.until_offset for offset in offsets_of(pending, part.tp))
    assert {tp: [o for pending in pending_blocks for o in offsets_of(pending, tp)] for tp in PARTITIONS} == taken
    assert reached == ends


def real(offsets: list[int], sizes: list[int]) -> Columns:
    count = len(offsets)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([None if size % 2 else b"" for size in sizes], pa.binary()),
            pa.array([b"v" * size if size else None for size in sizes], pa.binary()),
            pa.array(offsets, pa.int64()),
            pa.array(range(count), pa.int64()),
            pa.array([0] * count, pa.int32()),
        ],
        schema=SOURCE_SCHEMA(False),
    )
    return Columns(P0, 1, offsets[0], offsets[-1], count, sum(sizes), count - 1, 0, batch)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 30)), min_size=1, max_size=30),
    st.integers(1, 60),
    st.integers(0, 100),
)
def test_columns_of_one_poll_are_cut_at_the_bound_and_trimmed_by_offset(
    records: list[tuple[int, int]], bytes_max: int, from_offset: int
) -> None:
    """INV-6: a piece is within the bound or one record."""
    offsets, at = [], 0
    for step, _ in records:
        at += step
        offsets.append(at)
    whole = real(offsets, [size for _, size in records])
    pieces = cut(whole, bytes_max)
    assert [o for piece in pieces for o in piece.batch.column("offset").to_pylist()] == offsets
    for piece in pieces:
        own = piece.batch.to_pylist()
        assert (piece.first_offset, piece.last_offset, piece.rows) == (own[0]["offset"], own[-1]["offset"], len(own))
        assert piece.bytes == sum(len(row["key"] or b"") + len(row["value"] or b"") for row in own)
        assert piece.max_timestamp_ms == own[-1]["timestamp"]
        assert piece.bytes <= bytes_max or piece.rows == 1
        if from_offset <= piece.last_offset:
            rows = rows_of(Piece(from_offset, piece)).column("offset").to_pylist()
            assert rows == [row["offset"] for row in own if row["offset"] >= from_offset]


def test_a_large_record_among_small_ones_is_a_block_of_its_own() -> None:
    stage = Stage()
    start = stage.own(P0)[P0]
    for piece in cut(real([0, 1, 2, 3], [10, 10, 2000, 10]), BLOCK_BYTES):
        stage.tell(
            inp.Polled(
                [
                    columns(
                        P0,
                        start.generation,
                        range(piece.first_offset, piece.last_offset + 1),
                        piece.bytes // piece.rows,
                    )
                ]
            )
        )
    stage.wait(1.0)
    assert [offsets_of(pending, P0) for pending in stage.sealed()] == [[0, 1], [2], [3]]
