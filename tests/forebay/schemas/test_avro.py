"""Avro's types as columns, and how one writer's records become another reader's rows."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from forebay.kafka.registry.client import AVRO, RegisteredSchema
from forebay.model.errors import UsageError
from forebay.schemas.avro import AvroFormat
from forebay.schemas.bodies import Bodies, Decoded

UTC = datetime.timezone.utc


def registered(schema: Any, *references: Any) -> RegisteredSchema:
    return RegisteredSchema(7, AVRO, json.dumps(schema), tuple((one["name"], json.dumps(one)) for one in references))


def record(*fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind, **more} for name, kind in fields]}


def encoded(schema: Any, row: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def read(reader: Any, writer: Any, *rows: Any) -> Decoded:
    return read_bytes(reader, writer, *(encoded(writer, row) for row in rows))


def read_bytes(reader: Any, writer: Any, *rows: bytes) -> Decoded:
    ends, data = [], b""
    for row in rows:
        data += row
        ends.append(len(data))
    starts = [end - len(row) for end, row in zip(ends, rows, strict=True)]
    return AvroFormat(registered(reader)).writer(registered(writer))(Bodies(memoryview(data), starts, ends))


def values(found: Decoded) -> list[Any]:
    assert found.causes == {}
    return [row and row["x"] for row in found.array.to_pylist()]


def logical(kind: str, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


MEMBERS = ["null", "string", "long", {"type": "enum", "name": "E", "symbols": ["A"]}, {"type": "array", "items": "int"}]
#: Avro's type, Arrow's, a value as fastavro's users write it, and as it comes out
TYPES: list[tuple[Any, pa.DataType, Any, Any]] = [
    ("boolean", pa.bool_(), True, True),
    ("int", pa.int32(), -(2**31), -(2**31)),
    ("long", pa.int64(), 2**63 - 1, 2**63 - 1),
    ("float", pa.float32(), 0.5, 0.5),
    ("double", pa.float64(), 0.1, 0.1),
    ("bytes", pa.binary(), b"\xff", b"\xff"),
    ("string", pa.string(), "ä", "ä"),
    (["null", "string"], pa.string(), None, None),
    (["long", "int"], pa.int64(), 5, 5),
    (["float", "null", "double"], pa.float64(), 0.5, 0.5),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, pa.string(), "B", "B"),
    ({"type": "fixed", "name": "F", "size": 2}, pa.binary(), b"ab", b"ab"),
    ({"type": "map", "values": ["null", "int"]}, pa.map_(pa.string(), pa.int32()), {"a": None}, [("a", None)]),
    ({"type": "array", "items": record(("y", "int"))}, pa.list_(pa.struct([("y", pa.int32())])), [{"y": 1}], [{"y": 1}]),
    (logical("int", "date"), pa.date32(), datetime.date(1600, 2, 29), datetime.date(1600, 2, 29)),
    (
        logical("long", "timestamp-millis"), pa.timestamp("us", "UTC"),
        datetime.datetime(1960, 1, 1, 0, 0, 0, 999000, UTC), datetime.datetime(1960, 1, 1, 0, 0, 0, 999000, UTC),
    ),
    (
        logical("long", "timestamp-micros"), pa.timestamp("us", "UTC"),
        datetime.datetime(2020, 1, 1, 0, 0, 0, 1, UTC), datetime.datetime(2020, 1, 1, 0, 0, 0, 1, UTC),
    ),
    (
        logical("long", "local-timestamp-millis"), pa.timestamp("us"),
        datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 1),
    ),
    (logical("bytes", "decimal", precision=38, scale=3), pa.decimal128(38, 3), Decimal("-1.5"), Decimal("-1.500")),
    (
        logical("fixed", "decimal", name="D", size=4, precision=5), pa.decimal128(5, 0),
        Decimal(12345), Decimal(12345),
    ),
    (logical("int", "time-millis"), pa.int32(), datetime.time(0, 0, 1), 1000),
    (logical("string", "uuid"), pa.string(), "00112233-4455-6677-8899-aabbccddeeff", "00112233-4455-6677-8899-aabbccddeeff"),
    ("null", pa.null(), None, None),
]  # fmt: skip


@pytest.mark.parametrize(("avro", "arrow", "given", "expected"), TYPES, ids=lambda one: str(one)[:40])
def test_each_type_becomes_a_column_of_sparks(avro: Any, arrow: pa.DataType, given: Any, expected: Any) -> None:
    schema = record(("x", avro))
    if isinstance(avro, dict) and avro["type"] == "array":
        schema["name"] = "Outer"
    found = read(schema, schema, {"x": given}, {"x": given})
    assert found.array.type == pa.struct([("x", arrow)])
    assert values(found) == [expected, expected]


def test_a_union_of_several_types_is_a_struct_with_one_member_set() -> None:
    """Also for records whose writer's schema has only one of the types."""
    schema = record(("x", MEMBERS))
    none = dict.fromkeys(("member0", "member1", "member2", "member3"))
    found = read(schema, schema, {"x": None}, {"x": "s"}, {"x": 5}, {"x": ("E", "A")}, {"x": [1]})
    expected = [None, {"member0": "s"}, {"member1": 5}, {"member2": "A"}, {"member3": [1]}]
    assert values(found) == [one and {**none, **one} for one in expected]
    assert values(read(schema, record(("x", "string")), {"x": "s"})) == [{**none, "member0": "s"}]


def test_named_types_are_resolved_in_other_places_and_schemas() -> None:
    inner = {"type": "record", "name": "I", "namespace": "n", "fields": [{"name": "y", "type": "int"}]}
    outer = {
        "type": "record",
        "name": "O",
        "namespace": "n",
        "fields": [{"name": "a", "type": "I"}, {"name": "b", "type": "n.I"}],
    }
    holder = {**outer, "name": "H", "fields": [{"name": "i", "type": inner}]}
    twice = {**outer, "fields": [{"name": "a", "type": "H"}, {"name": "b", "type": "I"}]}
    for fields in (twice["fields"], twice["fields"][::-1]):  # what defines it inside is named before it, or behind
        schema = registered({**twice, "fields": fields}, holder)
        (row,) = AvroFormat(schema).writer(schema)(Bodies(memoryview(b"\2\2"), [0], [2])).array.to_pylist()
        assert row == {"a": {"i": {"y": 1}}, "b": {"y": 1}}
    found = AvroFormat(registered(outer, inner))
    assert found.type == pa.struct([(name, pa.struct([("y", pa.int32())])) for name in "ab"])
    decoded = found.writer(registered(outer, inner))(Bodies(memoryview(b"\2\4"), [0], [2]))
    assert decoded.array.to_pylist() == [{"a": {"y": 1}, "b": {"y": 2}}]
    with pytest.raises(UsageError, match=r"cannot parse .*: UnknownType: n\.I"):
        AvroFormat(registered(outer))


def test_a_writers_record_is_resolved_by_avros_rules() -> None:
    writer = record(("gone", "string"), ("x", "int"), ("old", "string"))
    reader: dict[str, Any] = record(("x", "double"))
    reader["fields"] += [
        {"name": "new", "type": "string", "aliases": ["old"]},
        {"name": "y", "type": "int", "default": 3},
    ]
    found = read(reader, writer, {"gone": "g", "x": 5, "old": "o"})
    assert found.array.to_pylist() == [{"x": 5.0, "new": "o", "y": 3}] and found.causes == {}
    itself = record(("x", "int"), ("next", ["null", "R"]))
    assert values(read(record(("x", "int")), itself, {"x": 5, "next": {"x": 6, "next": None}})) == [5]
    # no default, another type: none of its records can be read
    assert "No default value" in read(record(("z", "int")), writer, {"gone": "g", "x": 5, "old": "o"}).causes[0]
    assert read(record(("x", "string")), record(("x", "int")), {"x": 5}).causes


def test_times_and_decimals_keep_their_values_across_units_and_scales() -> None:
    """Plain numbers would be a thousand times too large."""
    at = datetime.datetime(2024, 2, 29, 12, 0, 0, 5000, UTC)
    millis, micros = (record(("x", logical("long", f"timestamp-{unit}"))) for unit in ("millis", "micros"))
    assert values(read(micros, millis, {"x": at})) == values(read(millis, micros, {"x": at})) == [at]
    fine, coarse = (record(("x", logical("bytes", "decimal", precision=9, scale=scale))) for scale in (4, 2))
    assert values(read(fine, coarse, {"x": Decimal("1.25")})) == [Decimal("1.2500")]
    assert "Rescaling" in read(coarse, fine, {"x": Decimal("1.2345")}).causes[0]
    late = {
        **millis,
        "fields": [
            {**millis["fields"][0], "default": 1_700_000_000_123},
            *record(("y", millis["fields"][0]["type"]))["fields"],
        ],
    }
    found = read(late, record(("y", logical("long", "timestamp-micros"))), {"y": at})
    assert values(found) == [datetime.datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)]


def test_times_beyond_pythons_range_are_read() -> None:
    schema = record(("x", logical("long", "timestamp-micros")))
    found: Any = read_bytes(schema, schema, encoded(record(("x", "long")), {"x": 2**62})).array
    (row,) = found.field("x").cast(pa.int64())
    assert row.as_py() == 2**62


def test_each_undecodable_record_has_its_cause() -> None:
    schema = record(("x", "string"))
    good = encoded(schema, {"x": "ok"})
    found = read_bytes(
        schema, schema, good, good[:-1], good + b"!", b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"\2\xff", b"", good
    )
    assert [row and row["x"] for row in found.array.to_pylist()] == ["ok", None, None, None, None, None, "ok"]
    assert sorted(found.causes) == [1, 2, 3, 4, 5]
    assert "its schema covers 3 of its 4 bytes" in found.causes[2]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (record(("x", ["null", "R"])), "x can't be a column: R is recursive"),
        (record(("x", {"type": "array", "items": record()})), r"x\[\] can't be a column: the record R has no fields"),
        (record(("x", ["int", "long", "string"])), "x can't be a column: a union in which int and long can't be distinguished"),
        (record(("x", [logical("int", "date"), "long"])), "x can't be a column: a union in which int and long can't"),
        (record(("x", logical("bytes", "decimal", precision=39))), "a decimal of 39 digits: at most 38 are allowed"),
        ({"type": "record", "fields": []}, "cannot parse schema 7"),
        ("nonsense", "cannot parse schema 7"),
    ],
)  # fmt: skip
def test_type_that_cant_be_a_column_is_refused_with_its_path(schema: Any, why: str) -> None:
    if isinstance(schema, dict) and schema.get("fields") and isinstance(schema["fields"][0]["type"], dict):
        schema = {**schema, "name": "Outer"}
    with pytest.raises(UsageError, match=why):
        AvroFormat(registered(schema))


def test_schema_with_too_many_columns_is_refused() -> None:
    """Records within one another have twice as many columns at each level."""
    made: Any = record(("x", "int"), ("y", "int")) | {"name": "D0"}
    for level in range(1, 17):
        made = record(("a", made), ("b", f"D{level - 1}")) | {"name": f"D{level}"}
    with pytest.raises(UsageError, match=r"can't be a column: the schema has more than 20000 columns"):
        AvroFormat(registered(made))


def test_schema_other_than_record_is_a_column() -> None:
    found = AvroFormat(registered("string"))
    assert found.type == pa.string()
    assert found.writer(registered("string"))(Bodies(memoryview(b"\4hi"), [0], [3])).array.to_pylist() == ["hi"]
    assert found.writer(registered(["null", "bytes"]))(Bodies(memoryview(b"\2\4hi"), [0], [4])).array.to_pylist() == [
        "hi"
    ]
    either = AvroFormat(registered(["string", record(("x", "int"))]))
    for body, row in (
        (b"\0\4hi", {"member0": "hi", "member1": None}),
        (b"\2\2", {"member0": None, "member1": {"x": 1}}),
    ):
        writer = registered(["string", record(("x", "int"))])
        assert either.writer(writer)(Bodies(memoryview(body), [0], [len(body)])).array.to_pylist() == [row]
