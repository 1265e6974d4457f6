"""JSON Schema's types as columns, and what documents must be like."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies

from forebay.kafka.registry.client import JSON, RegisteredSchema
from forebay.model.errors import UsageError
from forebay.schemas import json_schema
from forebay.schemas.bodies import Bodies, Decoded, built, rows_of
from forebay.schemas.json_schema import JsonFormat


def registered(schema: Any, **references: Any) -> RegisteredSchema:
    return RegisteredSchema(
        7, JSON, json.dumps(schema), tuple((name, json.dumps(one)) for name, one in references.items())
    )


def read(schema: RegisteredSchema, *documents: str) -> Decoded:
    data = "".join(documents).encode()
    ends = [len("".join(documents[: count + 1]).encode()) for count in range(len(documents))]
    return JsonFormat(schema).writer(schema)(Bodies(memoryview(data), [0, *ends[:-1]], ends))


def with_x(schema: Any, **more: Any) -> RegisteredSchema:
    return registered({"type": "object", "properties": {"x": schema}, **more})


INNER = {"type": "object", "properties": {"y-z": {"type": "integer"}}}
TYPES: list[tuple[Any, pa.DataType, str, Any]] = [
    ({"type": "string", "format": "date-time"}, pa.string(), '"2020"', "2020"),
    ({"type": "integer"}, pa.int64(), str(2**63 - 1), 2**63 - 1),
    ({"type": "number"}, pa.float64(), "1", 1.0),
    ({"type": "boolean"}, pa.bool_(), "true", True),
    ({"type": ["integer", "null", "number"]}, pa.float64(), "1.5", 1.5),
    ({"type": ["null", "string"]}, pa.string(), "null", None),
    ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, pa.int64(), "5", 5),
    ({"anyOf": [INNER]}, pa.struct([("y-z", pa.int64())]), '{"y-z": 1, "more": [1]}', {"y-z": 1}),
    ({"allOf": [INNER, {"properties": {"w": {"enum": ["a"]}}}]}, pa.struct([("y-z", pa.int64()), ("w", pa.string())]),
     '{"w": "a"}', {"y-z": None, "w": "a"}),
    ({"allOf": [{"type": "string"}, {"minLength": 2}]}, pa.string(), '"a"', "a"),
    ({"type": "array", "items": {"type": "string"}}, pa.list_(pa.string()), '["a", null]', ["a", None]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, pa.map_(pa.string(), pa.int64()), '{"a": 1}', [("a", 1)]),
    ({"const": "a"}, pa.string(), '"b"', "b"),
    ({"$ref": "#/$defs/in~1ner"}, pa.struct([("y-z", pa.int64())]), '{"y-z": 2}', {"y-z": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "arrow", "given", "expected"), TYPES, ids=lambda one: str(one)[:40])
def test_each_type_becomes_a_column_of_sparks(schema: Any, arrow: pa.DataType, given: str, expected: Any) -> None:
    found = read(with_x(schema, **{"$defs": {"in/ner": INNER}}), f'{{"x": {given}}}', "{}", "null")
    assert found.array.type == pa.struct([("x", arrow)])
    assert found.causes == {} and found.array.to_pylist() == [{"x": expected}, {"x": None}, None]


def test_references_resolve_by_name_or_id() -> None:
    other = {"$id": "https://example.test/inner.json", "definitions": {"n": {"type": "integer"}}, **INNER}
    for base, reference in (("", "inner.json"), ("https://example.test/outer.json", "inner.json")):
        schema = registered({"$id": base, "properties": {"x": {"$ref": reference}}}, **{"inner.json": other})
        assert JsonFormat(schema).type == pa.struct([("x", pa.struct([("y-z", pa.int64())]))])
    schema = registered({"properties": {"x": {"$ref": "inner.json#/definitions/n"}}}, **{"inner.json": other})
    assert JsonFormat(schema).type == pa.struct([("x", pa.int64())])


def test_each_unfit_document_has_its_cause_and_is_not_coerced() -> None:
    schema = registered({"properties": {"n": {"type": "integer"}, "l": {"type": "array", "items": {"type": "string"}}}})
    bad = [
        '{"n": 1.5}',
        '{"n": "1"}',
        '{"n": true}',
        '{"l": "abc"}',
        '{"n": 9223372036854775808}',
        "[]",
        '{"n": 1',
        '{"l": [1]}',
        "",
    ]
    found = read(schema, '{"n": 1}', *bad, '{"l": []}')
    assert sorted(found.causes) == list(range(1, 10))
    assert found.causes[2] == "ValidationError: Expected `int | null`, got `str` - at `$.n`"
    assert found.array.to_pylist() == [{"n": 1, "l": None}, *[None] * 9, {"n": None, "l": []}]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "oneOf with 2 types"),
        ({"type": ["string", "integer"]}, r"several types \(string, integer\)"),
        ({"type": "object"}, "an object whose schema names no properties"),
        (
            {"type": "array", "items": [{"type": "string"}]},
            "an array whose schema does not name a single type for its items",
        ),
        ({}, "its schema names no type"),
        (True, "its schema names no type"),
        ({"enum": [1, "a"]}, "its schema names no type"),
        ({"type": "null"}, "only null"),
        ({"$ref": "#"}, "# is recursive"),
        ({"$ref": "#/nowhere"}, "#/nowhere does not exist"),
        ({"$ref": "#/properties/x/l/1", "l": [{}]}, "#/properties/x/l/1 does not exist"),
        (
            {"$ref": "#/properties/x/l/0", "l": [{"$ref": f"#/properties/x/l/{next_}"} for next_ in range(1, 200)]},
            "its references never end",
        ),
        ({"$ref": "other.json"}, "other.json is not one of the schema's references"),
        ({"type": "array", "items": {"$ref": "#/properties/x"}}, "#/properties/x is recursive"),
    ],
)
def test_type_that_cant_be_a_column_is_refused_with_its_path(schema: Any, why: str) -> None:
    with pytest.raises(UsageError, match=rf"schema 7: x(\[\]|\.x)* can't be a column: {why}"):
        JsonFormat(with_x(schema))


def test_schema_with_too_many_columns_is_refused() -> None:
    """Objects within one another have twice as many columns at each level."""
    defined: dict[str, Any] = {"d0": {"type": "integer"}}
    for level in range(1, 17):
        below = {"$ref": f"#/$defs/d{level - 1}"}
        defined[f"d{level}"] = {"type": "object", "properties": {"a": below, "b": below}}
    with pytest.raises(UsageError, match="can't be a column: the schema has more than 20000 columns"):
        JsonFormat(registered({"$ref": "#/$defs/d16", "$defs": defined}))


def test_schema_that_is_not_json_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot parse schema 7: it is not JSON"):
        JsonFormat(RegisteredSchema(7, JSON, "{"))


ALL = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"}, "f": {"type": "number"}, "s": {"type": "string"}, "b": {"type": "boolean"},
        "o": {"type": "object", "properties": {"x": {"type": "integer"}}}, "l": {"type": "array", "items": {"type": "string"}},
    },
}  # fmt: skip
TOGETHER = JsonFormat(registered(ALL))
WHOLE = [
    b'{"a":1,"f":2,"s":"x","b":true,"o":{"x":1,"y":[{}]},"l":["a",null]}', b'{ "a" : -0,\n "s" : "\\u0041\\ud83d\\ude00" }',
    b"{}", b'{"o":null,"l":[]}', b'{"z":[1e5,"}{"],"f":1e-400}', b'{"o":{},"\\u0061":7,"s":"NaN"}',
]  # fmt: skip
#: no document, one of another type, or more than one; and text that only a reader of many documents could misread
BROKEN = [
    b'{"a":1}{"a":2}', b'{"a":1} {}', b'{"a":1}\0}', b'{"a":1}{"a":2}\0}', b'{"a":1', b'"b":2}', b"", b"{", b"}", b"null", b"[]",
    b'{"a":"1"}', b'{"a":1.5}', b'{"a":true}', b'{"s":1}', b'{"a":9223372036854775808}', b'{"a":NaN}',
    b'{"f":1e400}', b'{"s":"\xff"}', b'{"s":"a\nb"}', b'{"s":"\\ud800"}', b'{"a":1,"a":2}', b'{"a":01}', b'{"a":1,}',
    b'{"l":[1]}', b'{"o":[]}', b'{"s":"', b'{"z":[{', b'{"a":1},{"a":2}', b'{"a":1}}',
]  # fmt: skip


def bodies(rows: list[bytes], gap: bytes) -> Bodies:
    data = gap.join([b"", *rows])
    ends = [len(gap) * count + sum(map(len, rows[:count])) for count in range(1, len(rows) + 1)]
    return Bodies(memoryview(data), [end - len(row) for end, row in zip(ends, rows, strict=True)], ends)


@pytest.mark.parametrize("gap", [b"", b"\0\0\0\0\1", b"x" * 30])
@hypothesis.given(rows=strategies.lists(strategies.sampled_from(WHOLE * 8 + BROKEN), min_size=1, max_size=6))
@hypothesis.example(rows=[WHOLE[0]])
def test_documents_read_together_equal_those_read_one_by_one(gap: bytes, rows: list[bytes]) -> None:
    given = bodies(rows, gap)
    alone, causes = rows_of(given, TOGETHER._decode)
    expected = built(alone, causes, TOGETHER._array)
    assert TOGETHER._together is not None
    together = TOGETHER._together.read(given)
    assert together is None or not expected.causes
    assert together is None or together.equals(expected.array)
    assert together is not None or not set(rows) <= set(WHOLE)
    found = TOGETHER.writer(registered(ALL))(given)
    assert found.causes == expected.causes and found.array.equals(expected.array)


def test_value_that_one_reader_accepts_is_accepted_among_any_neighbours() -> None:
    """NaN and Infinity, as in Spark; very deep unknown fields; and a field that occurs twice."""
    deep = b'{"z":' + b"[" * 2000 + b"]" * 2000 + b',"a":2}'
    odd = [b'{"f":NaN}', b'{"f":-Infinity,"z":NaN}', deep, b'{"a":1,"a":3}']
    expected = ["nan", "-inf", "2", "3"]
    for others in ([], [b'{"a":"x"}']):
        found = TOGETHER.writer(registered(ALL))(bodies([*odd, *others], b"\0\0\0\0\1"))
        assert list(found.causes) == list(range(4, 4 + len(others)))
        rows: list[Any] = found.array.to_pylist()[:4]
        assert [str(row["f"] if row["a"] is None else row["a"]) for row in rows] == expected


@pytest.mark.parametrize("broken", BROKEN)
def test_invalid_document_is_never_read_together_with_others(broken: bytes) -> None:
    """Even if another document is missing, so that the numbers agree."""
    assert TOGETHER._together is not None
    for rows in ([broken], [broken, WHOLE[0]], [WHOLE[0], broken], [broken, b"", WHOLE[0]], [broken, b'"}', broken]):
        assert TOGETHER._together.read(bodies(rows, b"\0\0\0\0\1")) is None or broken == b'{"a":1,"a":2}'


@pytest.mark.parametrize("gap", [b"", b"\0\0\0\0\1"])
@pytest.mark.parametrize(
    "halves",
    [
        (b'{"o":{"x":1}', b',"a":1}'),  # no brace begins the second one
        (b'{"o":', b'{"x":1}}'),  # none ends the first one
        (b'{"s":"}', b'{"}'),  # of a text, which no line's end can be in
    ],
)
def test_document_over_two_bodies_is_not_read_together(halves: tuple[bytes, bytes], gap: bytes) -> None:
    rows = [*halves, b'{"a":1}{"a":2}']
    assert TOGETHER._together is not None
    assert TOGETHER._together.read(bodies(rows, gap)) is None
    assert sorted(TOGETHER.writer(registered(ALL))(bodies(rows, gap)).causes) == [0, 1, 2]


def test_bytes_between_documents_are_not_copied() -> None:
    """INV-6: the values of a batch may have many writers."""
    for gap, copied in ((b"x" * 16, 31), (b"x" * 17, 16)):
        given = bodies([b'{"a":1}'] * 2, gap)
        octets = np.frombuffer(given.data, np.uint8)
        joined = json_schema._joined(octets, np.array(given.starts), np.array(given.ends))
        assert joined.split() == [b'{"a":1}'] * 2 and len(joined) <= copied


def test_many_documents_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_schema, "_DOCUMENTS_MAX", 2)
    assert TOGETHER._together is not None
    found = TOGETHER._together.read(bodies([b'{"a":%d}' % number for number in range(5)], b"12345"))
    assert found is not None
    rows: list[Any] = found.to_pylist()
    assert [row["a"] for row in rows] == list(range(5))
