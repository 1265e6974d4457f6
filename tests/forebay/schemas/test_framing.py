"""Which writer's schema a record names."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from forebay.model.records import DATAFRAME_SCHEMA
from forebay.schemas.framing import framed, message_indexes

GUID = "00112233-4455-6677-8899-aabbccddeeff"


def batch(
    values: list[bytes | None], headers: list[list[tuple[str, bytes | None]] | None] | None = None
) -> pa.RecordBatch:
    columns = {"value": pa.array(values, pa.binary())}
    if headers is not None:
        made: list[Any] = [one and [{"key": key, "value": value} for key, value in one] for one in headers]
        columns["headers"] = pa.array(made, DATAFRAME_SCHEMA(True).field("headers").type)
    return pa.record_batch(columns)


def bodies(found: pa.RecordBatch) -> dict[int, tuple[int | str, bytes]]:
    made = framed(found, "value")
    return {
        row: (group.key, bytes(made.data[start:end]))
        for group in made.groups
        for row, start, end in zip(group.rows, group.starts, group.ends, strict=True)
    }


def test_records_are_grouped_by_number_before_body_in_any_slice() -> None:
    values = [b"\0\0\0\0\7one", None, b"\0\0\0\1\0two", b"\0\0\0\0\7", b"\0\xff\xff\xff\xffmost"]
    expected = {0: (7, b"one"), 2: (256, b"two"), 3: (7, b""), 4: (0xFFFFFFFF, b"most")}
    assert bodies(batch(values)) == expected
    assert bodies(batch([b"before", *values, b"behind"]).slice(1, 5)) == expected
    assert framed(batch(values), "value").causes == {}
    assert framed(batch([None, None]), "value").groups == []


def test_record_without_schema_has_first_byte_or_length_as_cause() -> None:
    found = framed(batch([b"{}......", b"\0\0\0", b"", b"\1\0\0\0\7x"]), "value")
    assert found.groups == []
    assert found.causes == {
        0: "it begins with the byte 0x7b, not with 0x00 and a schema number",
        1: "its 3 bytes have no schema number",
        2: "its 0 bytes have no schema number",
        3: "it begins with the byte 0x01, not with 0x00 and a schema number",
    }


def test_header_has_precedence_and_body_has_no_prefix() -> None:
    guid = b"\1" + bytes.fromhex(GUID.replace("-", ""))
    name = "__value_schema_id"
    found = batch(
        [b"body", b"\0\0\0\0\7x", b"m", b"bad", None, b"n", b"\0\0\0\0\7", b"y", b"z"],
        [
            [("a", None), (name, guid)],
            [("__key_schema_id", guid)],
            [(name, guid + b"\4\2\0")],
            [(name, b"\2")],
            [(name, guid)],
            [(name, b"\0\0\0\1\0")],
            [(name, None)],
            [(name, b"\0\0\0")],
            [(name, guid[:-1])],
        ],
    )
    assert bodies(found) == {0: (GUID, b"body"), 1: (7, b"x"), 2: (GUID, b"m"), 5: (256, b"n")}
    made = framed(found, "value")
    assert {group.rows[0]: group.message for group in made.groups} == {0: None, 1: None, 2: (1, 0), 5: None}
    assert made.causes == {
        row: f"its header __value_schema_id names no schema: {header} is neither a number nor a GUID"
        for row, header in ((3, "02"), (6, ""), (7, "000000"), (8, guid[:-1].hex()))
    }


@pytest.mark.parametrize(("by_header", "few", "many"), [(False, 4_000, 64_000), (True, 500, 8_000)])
def test_work_grows_with_the_number_of_schemas(by_header: bool, few: int, many: int) -> None:
    """INV-6: junk may name another schema in each record."""

    def seconds(count: int) -> float:
        prefixes = [b"\0" + number.to_bytes(4, "big") for number in range(count)]
        if by_header:
            given = batch([b"body"] * count, [[("__value_schema_id", prefix)] for prefix in prefixes])
        else:
            given = batch(list(prefixes))
        began = time.process_time()
        assert len(framed(given, "value").groups) == count
        return time.process_time() - began

    assert seconds(many) < 64 * min(seconds(few) for _ in range(3))


def test_message_indexes_are_read_before_the_body() -> None:
    assert message_indexes(memoryview(b"..\0body"), 2) == ((0,), 3)
    assert message_indexes(memoryview(b"\4\2\x80\1body"), 0) == ((1, 64), 4)
    assert message_indexes(memoryview(b"\x80\1" + b"\2" * 64), 0) == ((1,) * 64, 66)
    for bad in (b"", b"\4\2", b"\x80\x80\x80\x80\x80\1", b"\2\x80\x80\x80\x80\x80\0"):
        with pytest.raises(ValueError, match="its message indexes are truncated"):
            message_indexes(memoryview(bad), 0)
    for bad, count in ((b"\1", -1), (b"\x82\1" + b"\2" * 65, 65)):
        with pytest.raises(ValueError, match=f"the header has {count} message indexes"):
            message_indexes(memoryview(bad), 0)
