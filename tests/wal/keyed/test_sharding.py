"""The shard of a row is part of the format: the same in every release, however the column is stored."""

from __future__ import annotations

import datetime
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from wal.keyed.sharding import shard_numbers

_M = (1 << 64) - 1


def mix(value: int) -> int:
    """splitmix64's finalizer, as docs/FORMAT.md names it."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _M
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _M
    return value ^ (value >> 31)


def column_hash(value: Any) -> int:
    if value is None:
        return 0x9E3779B97F4A7C15
    if isinstance(value, int):
        return mix(value & _M)
    data = value.encode() if isinstance(value, str) else value
    return mix(len(data) + sum((byte + 1) * pow(0x100000001B3, at + 1, 1 << 64) for at, byte in enumerate(data)) & _M)


def expected(rows: list[tuple[Any, ...]], shards: int) -> list[int]:
    found = []
    for row in rows:
        hashed = 0
        for value in row:
            hashed = mix(hashed * 31 + column_hash(value) & _M)
        found.append(hashed % shards)
    return found


TEXTS = ["", "a", None, "ä", "a" * 300, "b", "ab", "ba", "\0", "\0\0"]
NUMBERS = [0, 1, -1, None, 2**31 - 1, -(2**31), 7, 7, 8, 9]


@pytest.mark.parametrize("shards", [1, 7, 1_024])
def test_shards_are_those_that_the_format_says(shards: int) -> None:
    rows = list(zip(TEXTS, NUMBERS, strict=True))
    for text, number in ((pa.string(), pa.int64()), (pa.large_string(), pa.int32()), (pa.binary(), pa.int64())):
        texts = [t.encode() if t is not None and text == pa.binary() else t for t in TEXTS]
        table = pa.table({"t": pa.array(texts, text), "n": pa.array(NUMBERS, number)})
        assert shard_numbers(table, ["t", "n"], shards).to_pylist() == expected(rows, shards)
        sliced = pa.concat_tables([table.slice(0, 3), table.slice(3, 4), table.slice(7)])
        assert shard_numbers(sliced, ["t", "n"], shards).to_pylist() == expected(rows, shards)


def test_dates_times_and_booleans_have_the_shards_of_their_integers() -> None:
    day = datetime.date(1970, 1, 8)
    time = datetime.datetime(1970, 1, 1, 0, 0, 3, tzinfo=datetime.timezone.utc)
    table = pa.table(
        {
            "day": pa.array([day, None], pa.date32()),
            "time": pa.array([time, None], pa.timestamp("us", "UTC")),
            "yes": pa.array([True, None]),
        }
    )
    assert shard_numbers(table, table.column_names, 100).to_pylist() == expected(
        [(7, 3_000_000, 1), (None, None, None)], 100
    )


def test_no_rows_have_no_shards_and_keys_spread_evenly() -> None:
    assert shard_numbers(pa.table({"k": pa.array([], pa.string())}), ["k"], 8).to_pylist() == []
    keys = pa.table({"k": [f"customer-{n}" for n in range(80_000)]})
    counts = Counter(shard_numbers(keys, ["k"], 8).to_pylist())
    assert len(counts) == 8
    assert all(9_000 < count < 11_000 for count in counts.values())
