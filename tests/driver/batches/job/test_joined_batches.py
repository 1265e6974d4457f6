"""Small record batches are joined; their rows stay as they are."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from driver.batches.tasks.reading import LARGE_BYTES, LARGE_ROWS, joined


def _batch(first: int, rows: int, value_bytes: int = 3) -> pa.RecordBatch:
    return pa.record_batch({"offset": list(range(first, first + rows)), "value": [b"v" * value_bytes] * rows})


def _columns_of_rows(batches: list[pa.RecordBatch]) -> list[list[str]]:
    return [batch.schema.names for batch in batches for _ in range(batch.num_rows)]


@given(st.lists(st.tuples(st.sampled_from([0, 1, 7, 500, LARGE_ROWS - 1, LARGE_ROWS]), st.booleans()), max_size=12))
def test_rows_and_their_order_stay(parts: list[tuple[int, bool]]) -> None:
    """INV-3: a rerun has the same rows in the same order, whatever the sizes of its blocks are."""
    batches, first = [], 0
    for rows, headers in parts:
        batch = _batch(first, rows)
        batches.append(batch.append_column("headers", pa.nulls(rows)) if headers else batch)
        first += rows
    found = list(joined(batches))
    assert [o for batch in found for o in batch.column("offset").to_pylist()] == list(range(first))
    assert _columns_of_rows(found) == _columns_of_rows(batches)


def test_a_thousand_small_batches_become_few() -> None:
    found = list(joined(_batch(number * 100, 100) for number in range(1_000)))
    assert [batch.num_rows for batch in found[:-1]] == [4_100] * 24
    assert sum(batch.num_rows for batch in found) == 100_000


def test_a_large_batch_is_passed_on_without_a_copy() -> None:
    many_rows, many_bytes = _batch(0, LARGE_ROWS), _batch(LARGE_ROWS, 2, LARGE_BYTES)
    first, second = joined([many_rows, many_bytes])
    assert first is many_rows
    assert second is many_bytes


def test_no_more_waits_than_one_large_batch() -> None:
    """INV-6: what waits to be joined is bounded in bytes."""
    taken = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for number in range(100):
            taken = number + 1
            yield _batch(number, 1, LARGE_BYTES // 4)

    next(joined(batches()))
    assert taken <= 6
