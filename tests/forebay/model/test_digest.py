"""The digest depends on the records and not on their encoding (INV-5: it proves the records of any tier)."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.model.digest import digest
from forebay.model.payload import decode_block
from forebay.model.records import BLOCK_SCHEMA, to_dataframe
from tests.support.state.rows import ODD_ROWS, Row, block, source_batch

HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3)
ROWS = st.lists(
    st.builds(
        Row,
        key=st.none() | st.binary(max_size=5),
        value=st.none() | st.binary(max_size=5),
        offset=st.integers(0, 1000),
        timestamp=st.integers(-1, 2**40),
        timestamp_type=st.integers(-1, 1),
        headers=HEADERS,
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda row: row.offset,
).map(lambda rows: sorted(rows, key=lambda row: row.offset))


def specified(rows: list[Row], headers: bool) -> str:
    """The docstring of ``digest``, implemented record by record, to compare with the column code."""

    def lengths(values: list[bytes | None]) -> bytes:
        return b"".join(struct.pack("<i", -1 if value is None else len(value)) for value in values)

    def joined(values: list[bytes | None]) -> bytes:
        return b"".join(value for value in values if value is not None)

    keys, values = [row.key for row in rows], [row.value for row in rows]
    streams = [
        b"".join(struct.pack("<q", row.offset) for row in rows),
        b"".join(struct.pack("<q", row.timestamp) for row in rows),
        b"".join(struct.pack("<i", row.timestamp_type) for row in rows),
        lengths(keys),
        joined(keys),
        lengths(values),
        joined(values),
    ]
    if headers:
        flat = [header for row in rows for header in row.headers or []]
        names: list[bytes | None] = [name.encode() for name, _ in flat]
        streams += [
            b"".join(struct.pack("<i", -1 if row.headers is None else len(row.headers)) for row in rows),
            lengths(names),
            joined(names),
            lengths([value for _, value in flat]),
            joined([value for _, value in flat]),
        ]
    whole = struct.pack("<q", len(rows)) + b"".join(struct.pack("<Q", xxhash.xxh3_64_intdigest(s)) for s in streams)
    return xxhash.xxh3_64_hexdigest(whole)


@settings(deadline=None)
@given(ROWS, st.booleans(), st.lists(st.integers(0, 12), max_size=4))
def test_the_digest_is_the_specified_one_however_rows_are_cut_and_sliced(
    rows: list[Row], headers: bool, cuts: list[int]
) -> None:
    whole = source_batch(rows, headers)
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    slices = [whole.slice(a, b - a) for a, b in itertools.pairwise(bounds)]
    rebuilt = [source_batch(rows[a:b], headers) for a, b in itertools.pairwise(bounds)]
    expected = specified(rows, headers)
    assert digest([whole]) == expected
    assert digest(slices) == expected
    assert digest(rebuilt) == expected


@settings(deadline=None)
@given(ROWS, st.booleans(), st.sampled_from(["none", "lz4", "zstd"]))
def test_the_digest_survives_encoding_compression_and_what_users_see(
    rows: list[Row], headers: bool, compression: str
) -> None:
    meta, payload = block({("t", 0): rows}, headers=headers, compression=compression, rows_per_batch=5)  # type: ignore[arg-type]
    ((range_, batches),) = decode_block(payload, meta, verify_digests=True)
    assert digest(batches) == range_.digest == specified(rows, headers)
    assert digest([to_dataframe(batch, "t") for batch in batches]) == range_.digest


@settings(deadline=None)
@given(ROWS, st.data())
def test_any_changed_value_changes_the_digest(rows: list[Row], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(rows) - 1))
    field = data.draw(st.sampled_from(Row._fields))
    old = getattr(rows[at], field)
    new: Any = {
        "key": b"" if old is None else None,
        "value": b"" if old is None else None,
        "offset": old + 1 if isinstance(old, int) else None,
        "timestamp": old + 1 if isinstance(old, int) else None,
        "timestamp_type": old + 1 if isinstance(old, int) else None,
        "headers": [] if old is None else None,
    }[field]
    changed = [*rows[:at], rows[at]._replace(**{field: new}), *rows[at + 1 :]]
    assert digest([source_batch(changed, True)]) != digest([source_batch(rows, True)])


def test_a_byte_that_moves_from_one_value_to_the_next_changes_the_digest() -> None:
    one = source_batch([Row(b"ab", None, 0), Row(b"c", None, 1)])
    other = source_batch([Row(b"a", None, 0), Row(b"bc", None, 1)])
    assert digest([one]) != digest([other])


def test_bytes_hidden_under_a_null_are_not_digested() -> None:
    offsets = pa.py_buffer(struct.pack("<4i", 0, 1, 3, 4))
    hidden = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x05"), offsets, pa.py_buffer(b"aXXb")])
    rows = [Row(b"a", b"", 0), Row(None, b"", 1), Row(b"b", b"", 2)]
    plain = source_batch(rows)
    assert hidden.to_pylist() == [b"a", None, b"b"]
    dirty = pa.RecordBatch.from_arrays([hidden, *plain.columns[1:]], schema=plain.schema)
    assert digest([dirty]) == digest([plain]) == specified(rows, False)


def test_a_range_without_records_has_one_digest_with_and_without_headers() -> None:
    expected = xxhash.xxh3_64_hexdigest(bytes(8))
    assert digest([]) == digest([source_batch([], True)]) == digest([source_batch([], False)]) == expected


def test_the_digest_of_known_records_never_changes() -> None:
    """Journals contain digests: another release must compute the same ones."""
    assert digest([source_batch(ODD_ROWS, True)]) == specified(list(ODD_ROWS), True) == "affbdbaca7b52ed8"
    assert digest([source_batch(ODD_ROWS, False)]) == "4be24e0f10c2e283"


def test_a_null_offset_has_no_digest() -> None:
    arrays = [pa.nulls(1, field.type) for field in BLOCK_SCHEMA(False)]
    with pytest.raises(ValueError, match="null"):
        digest([pa.RecordBatch.from_arrays(arrays, schema=BLOCK_SCHEMA(False))])
