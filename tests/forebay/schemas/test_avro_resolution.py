"""A writer's types become a reader's where the two schemas differ, and defaults are values of the reader's types."""

from __future__ import annotations

import datetime
import tracemalloc
from decimal import Decimal
from typing import Any

import pytest

from forebay.model.errors import UsageError
from forebay.schemas.avro import AvroFormat
from forebay.schemas.bodies import Bodies
from tests.forebay.schemas.test_avro import encoded, logical, read, read_bytes, record, registered, values

AT = datetime.datetime(2024, 2, 29, 12, 0, 0, 5000, datetime.timezone.utc)
I = {**record(("y", "int")), "name": "I"}  # noqa: E741
J = {**record(("z", "int")), "name": "J"}
E = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
F = {"type": "fixed", "name": "F", "size": 2}
MILLIS, MICROS = (logical("long", f"timestamp-{unit}") for unit in ("millis", "micros"))
DATE = logical("int", "date")
UUID = logical("string", "uuid")
CENTS = logical("bytes", "decimal", precision=9, scale=2)
FIXED_CENTS = {**CENTS, "type": "fixed", "name": "F", "size": 2, "precision": 4}


def array(items: Any) -> Any:
    return {"type": "array", "items": items}


def mapped(held: Any) -> Any:
    return {"type": "map", "values": held}


def optional(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}


def fields(*made: Any) -> dict[str, Any]:
    """Return a record of ``made``: fields, or pairs of name and type."""
    return {**record(), "fields": [one if isinstance(one, dict) else {"name": one[0], "type": one[1]} for one in made]}


Y = {"y": 1}


def of(namespace: str, kind: Any, aliases: Any = ()) -> dict[str, Any]:
    """Return a record X of ``namespace`` with the field u."""
    return {**record(("u", kind)), "name": "X", "namespace": namespace, "aliases": list(aliases)}


INT_OR_TEXT = ["int", "string"]


@pytest.mark.parametrize(
    ("union", "value", "expected"),
    [
        ([of("a", INT_OR_TEXT), of("b", INT_OR_TEXT)], ("b.X", {"u": 3}), {"u": {"member0": 3, "member1": None}}),
        ([of("a", CENTS), of("b", "bytes")], ("b.X", {"u": b"\x7d"}), {"u": b"\x7d"}),
        ([of("a", "bytes"), of("b", CENTS)], ("b.X", {"u": Decimal("1.25")}), {"u": Decimal("1.25")}),
        ([J, {**record(("u", INT_OR_TEXT)), "name": "K", "aliases": ["J"]}], ("J", {"z": 3}), {"z": 3}),
        (
            [{**J, "aliases": ["K"]}, {**record(("u", INT_OR_TEXT)), "name": "K"}],
            ("K", {"u": 3}),
            {"u": {"member0": 3, "member1": None}},
        ),
        (["string", CENTS], Decimal("1.25"), Decimal("1.25")),
    ],
)
def test_value_of_a_schema_that_is_the_readers_keeps_its_place_in_a_union(
    union: Any, value: Any, expected: Any
) -> None:
    """Even if another type of the union has the same short name or alias."""
    schema = fields(("x", union))
    found = read(schema, schema, {"x": value})
    assert found.causes == {}
    row: Any = found.array.to_pylist()[0]
    assert [one for one in row["x"].values() if one is not None] == [expected]


TEXT_DECIMAL = {"type": "string", "logicalType": "decimal", "precision": 9, "scale": 2}


@pytest.mark.parametrize(
    ("writer", "union", "value", "expected"),
    [
        (TEXT_DECIMAL, ["string", CENTS], "a", "a"),
        ([CENTS, TEXT_DECIMAL], [CENTS, TEXT_DECIMAL], Decimal("1.25"), Decimal("1.25")),
    ],
)
def test_logical_type_that_avro_does_not_have_for_a_type_is_ignored(
    writer: Any, union: Any, value: Any, expected: Any
) -> None:
    found = read(fields(("x", union)), fields(("x", writer)), {"x": value})
    assert found.causes == {}
    row: Any = found.array.to_pylist()[0]
    assert expected in row["x"].values()


def test_null_aliases_are_none() -> None:
    """As fastavro takes them."""
    union = ["int", {**I, "aliases": None}]
    found = read(fields(optional("more", "string"), ("x", union)), fields(("x", union)), {"x": ("I", Y)})
    assert found.causes == {} and found.array.to_pylist() == [{"more": None, "x": {"member0": None, "member1": Y}}]


@pytest.mark.parametrize("word", ["error", "record", "map", "array", "union", "enum", "fixed", "error_union"])
@pytest.mark.parametrize("reader", ["same", "evolved", "without"])
def test_type_may_have_a_word_of_avro_as_its_name(word: str, reader: str) -> None:
    inner = {**record(("y", "int")), "name": word}
    writer = fields(("x", inner), ("z", "int"))
    of_reader = {
        "same": writer,
        "evolved": fields(optional("more", "string"), ("x", inner), ("z", "int")),
        "without": fields(("z", "int")),
    }[reader]
    found = read(of_reader, writer, {"x": Y, "z": 2})
    assert found.causes == {}
    row: Any = found.array.to_pylist()[0]
    assert row["z"] == 2 and row.get("x", Y) == Y


SEVERAL = ("c", ["int", "string"])


@pytest.mark.parametrize(
    ("writer", "reader", "row", "expected"),
    [
        (fields(("a", I), ("b", "I")), fields(("b", ["null", I])), {"a": Y, "b": Y}, {"b": Y}),
        (fields(("a", E), ("b", "E")), fields(("b", ["null", E])), {"a": "A", "b": "B"}, {"b": "B"}),
        (
            fields(("a", I), ("b", array("I"))), fields(("b", array(["null", I]))),
            {"a": Y, "b": [Y]}, {"b": [Y]},
        ),
        (
            fields(("a", I), ("b", ["null", "I"]), SEVERAL), fields(("b", ["null", I]), SEVERAL),
            {"a": Y, "b": Y, "c": 3}, {"b": Y, "c": {"member0": 3, "member1": None}},
        ),
        (fields(("b", I)), fields(optional("a", I), ("b", ["null", "I"])), {"b": Y}, {"a": None, "b": Y}),
        (fields(("b", I)), fields(optional("a", I), ("b", "I")), {"b": Y}, {"a": None, "b": Y}),
        (fields(("b", array(I))), fields(optional("a", I), ("b", array("I"))), {"b": [Y]}, {"a": None, "b": [Y]}),
    ],
)  # fmt: skip
def test_named_type_may_be_defined_at_another_place_of_the_readers_schema(
    writer: Any, reader: Any, row: Any, expected: Any
) -> None:
    found = read(reader, writer, row, row)
    assert found.causes == {} and found.array.to_pylist() == [expected, expected]


@pytest.mark.parametrize(
    ("kind", "union", "value", "member", "expected"),
    [
        (I, ["string", I], Y, 1, Y),
        (I, ["null", J, I], Y, 1, Y),
        (E, [E, "int"], "A", 0, "A"),
        (E, ["string", E], "A", 1, "A"),
        (F, [F, "int"], b"ab", 0, b"ab"),
        ("int", ["string", "double"], 5, 1, 5.0),
        (array(I), ["string", array(["null", "int", I])], [Y], 1, [{"member0": None, "member1": Y}]),
    ],
)
def test_field_that_became_a_union_is_in_the_first_member_that_fits(
    kind: Any, union: Any, value: Any, member: int, expected: Any
) -> None:
    (found,) = values(read(record(("x", union)), record(("x", kind)), {"x": value}))
    assert found == {"member0": None, "member1": None, f"member{member}": expected}
    body = encoded(kind, value)
    (row,) = read_bytes(union, kind, body).array.to_pylist()
    assert row == found


def test_null_field_that_became_a_union_is_null() -> None:
    assert values(read(record(("x", ["string", "null", I])), record(("x", "null")), {"x": None})) == [None]


def test_types_of_a_writers_union_that_the_reader_has_as_one_are_converted_each() -> None:
    """By aliases, two records of the writer are one of the reader. Only the second one has a union."""
    first, second = (
        {**record(("v", kind)), "name": name} for name, kind in (("A", "string"), ("B", ["int", "string"]))
    )
    reader = {**record(("v", ["int", "string"])), "name": "C", "aliases": ["A", "B"]}
    found = read(record(("x", reader)), record(("x", [first, second])), *({"x": (n, {"v": "s"})} for n in "AB"))
    assert values(found) == [{"v": {"member0": None, "member1": "s"}}] * 2


def times(a: Any, b: Any) -> Any:
    return record(("x", [{**record(("t", a)), "name": "A"}, {**record(("t", b)), "name": "B"}]))


def test_times_of_two_types_of_a_union_keep_their_own_units() -> None:
    rows = [{"x": (name, {"t": AT})} for name in "AB"]
    expected = [{"member0": {"t": AT}, "member1": None}, {"member0": None, "member1": {"t": AT}}]
    for kinds in ((MILLIS, MICROS), (MICROS, MILLIS)):
        assert values(read(times(*kinds), times(MICROS, MICROS), *rows)) == expected
        assert values(read(times(MICROS, MICROS), times(*kinds), *rows)) == expected
    reader, writer = (record(("x", [array(one), mapped(MICROS)])) for one in (MILLIS, MICROS))
    assert values(read(reader, writer, {"x": [AT]}, {"x": {"k": AT}})) == [
        {"member0": [AT], "member1": None},
        {"member0": None, "member1": [("k", AT)]},
    ]


@pytest.mark.parametrize(
    ("written", "wanted", "value", "expected"),
    [
        (MILLIS, "long", AT, 1709208000005),
        (MILLIS, "double", AT, 1709208000005.0),
        (DATE, "int", datetime.date(1970, 1, 6), 5),
        ("long", MILLIS, 1709208000005, AT),
        (CENTS, "bytes", Decimal("1.25"), b"\x7d"),
        ("bytes", CENTS, b"\x7d", Decimal("1.25")),
        (FIXED_CENTS, F, Decimal("1.25"), b"\0\x7d"),
        (F, FIXED_CENTS, b"\0\x7d", Decimal("1.25")),
        (["null", "bytes"], ["null", CENTS], b"\x7d", Decimal("1.25")),
        (MICROS, [MILLIS, UUID], AT, {"member0": AT, "member1": None}),
        ([MICROS, UUID], [MILLIS, UUID], AT, {"member0": AT, "member1": None}),
        ([MICROS, "string"], ["long", "string"], AT, {"member0": 1709208000005000, "member1": None}),
        ("bytes", [CENTS, "int"], b"\x7d", {"member0": Decimal("1.25"), "member1": None}),
        (
            ["string", CENTS],
            ["string", {**CENTS, "scale": 4}],
            Decimal("1.25"),
            {"member0": None, "member1": Decimal("1.25")},
        ),
        (
            ["string", CENTS],
            ["string", CENTS, "null"],
            Decimal("-1.25"),
            {"member0": None, "member1": Decimal("-1.25")},
        ),
        (CENTS, ["string", CENTS], Decimal("-1.25"), {"member0": None, "member1": Decimal("-1.25")}),
        (["double", MILLIS], ["double", MILLIS, "null"], AT, {"member0": None, "member1": AT}),
        (MICROS, ["double", MILLIS], AT, {"member0": None, "member1": AT}),
    ],
)
def test_value_is_read_by_the_readers_logical_type_or_as_its_plain_value(
    written: Any, wanted: Any, value: Any, expected: Any
) -> None:
    assert values(read(record(("x", wanted)), record(("x", written)), {"x": value})) == [expected]


def test_bytes_that_two_columns_have_as_decimals_of_different_scales_are_refused() -> None:
    """One type of the writer can't be read in both ways, and neither scale may be applied to both."""
    held = {**record(("v", "bytes")), "name": "H"}
    first, second = (
        {**record(("v", {**CENTS, "scale": scale})), "name": name, "aliases": ["H"]}
        for name, scale in (("H1", 2), ("H2", 4))
    )
    found = read(
        record(("x", first), ("y", second)), record(("x", held), ("y", "H")), {"x": {"v": b"}"}, "y": {"v": b"}"}}
    )
    assert "got bytes" in found.causes[0]


Q = {**record(("q", "int"), default=7), "name": "Q"}


@pytest.mark.parametrize(
    ("kind", "default", "expected"),
    [
        ("bytes", "\u00ff", b"\xff"),
        (["bytes", "null"], "\u00ff", b"\xff"),
        (F, "\u00ff\u0001", b"\xff\x01"),
        (CENTS, "\u007d", Decimal("1.25")),
        (FIXED_CENTS, "\u0000\u007d", Decimal("1.25")),
        (Q, {}, {"q": 7}),
        (array(Q), [{}, {"q": 8}], [{"q": 7}, {"q": 8}]),
        (mapped("bytes"), {"k": "\u00ff"}, [("k", b"\xff")]),
        ([E, "string"], "A", {"member0": "A", "member1": None}),
        ([I, "string"], {"y": 1}, {"member0": {"y": 1}, "member1": None}),
        (["null", "int", "string"], None, None),
        (["double", "string"], 1, {"member0": 1.0, "member1": None}),
        (MILLIS, 1709208000005, AT),
        ({**record(("u", [I, "string"]), default={"y": 2}), "name": "N"}, {}, {"u": {"member0": {"y": 2}, "member1": None}}),
    ],
)  # fmt: skip
def test_default_is_a_value_of_the_readers_type(kind: Any, default: Any, expected: Any) -> None:
    """Also in each of several records, and next to a union that is converted."""
    for more in ((), (("u", ["int", "string"]),)):
        reader = fields(("o", "int"), {"name": "x", "type": kind, "default": default}, *more)
        assert values(read(reader, fields(("o", "int"), *more), *[{"o": 1, "u": 2}] * 2)) == [expected] * 2


def test_default_that_does_not_fit_its_type_is_refused_only_where_it_is_needed() -> None:
    reader = fields(("o", "int"), {"name": "x", "type": F, "default": "one byte too many"})
    assert values(read(reader, reader, {"o": 1, "x": b"ab"})) == [b"ab"]


def test_type_without_namespace_inside_a_namespace_is_a_member_of_a_union() -> None:
    inner = {**I, "namespace": "", "fields": [("y", "int"), ("next", E)]}
    inner["fields"] = fields(*inner["fields"])["fields"]
    schema = {**record(("x", ["int", inner])), "namespace": "n"}
    (found,) = values(read_bytes(schema, schema, b"\2\2\0"))
    assert found == {"member0": None, "member1": {"y": 1, "next": "A"}}


def test_writer_of_another_record_is_refused_once_for_all_its_records() -> None:
    """The message of a record has the names only, not the whole schema."""
    writer = {**record(*((f"f{n}", "int") for n in range(1000))), "name": "Other"}
    with pytest.raises(UsageError, match=r"^schema 7 has the record Other, but the reader's is R$"):
        AvroFormat(registered(record(("x", "int")))).writer(registered(writer))
    named = {**record(("x", "int")), "name": "n.Other"}
    assert values(read({**record(("x", "int")), "aliases": ["n.Other"]}, named, {"x": 5})) == [5]
    inside = read(record(("x", I)), record(("x", {**writer, "name": "J"})), {"x": {f"f{n}": 1 for n in range(1000)}})
    assert inside.causes == {0: "SchemaResolutionError: Schema mismatch: J is not I"}


def test_writers_group_copies_only_its_own_bodies() -> None:
    schema = registered(record(("x", "string")))
    decode = AvroFormat(schema).writer(schema)
    data = bytearray(b"\xff" * 20_000_000)
    starts = [0, 9_000_000, len(data) - 3]
    for start, letters in zip(starts, (b"ab", b"cd", b"ef"), strict=True):
        data[start : start + 3] = b"\4" + letters
    view = memoryview(data)
    tracemalloc.start()
    try:
        found = decode(Bodies(view, starts, [start + 3 for start in starts]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert values(found) == ["ab", "cd", "ef"]
    assert peak < 1_000_000
    cut = decode(Bodies(view, starts, [starts[0] + 3, starts[1] + 2, len(data)]))
    assert sorted(cut.causes) == [1]
    assert decode(Bodies(view, [], [])).array.to_pylist() == []
