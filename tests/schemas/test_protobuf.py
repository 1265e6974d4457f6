"""Protobuf's messages as columns."""

from __future__ import annotations

import base64
import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from forebay.errors import UsageError
from forebay.kafka.registry import PROTOBUF, RegisteredSchema
from forebay.schemas.bodies import Bodies, Decoded
from forebay.schemas.protobuf import ProtobufFormat
from tests.support.registered import INT64, MESSAGE, ONE, STRING, message_class, orders_file

NOTHING = {"note": None, "at": None, "card": None, "cash": None, "weight": None}


def text_of(file: descriptor_pb2.FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def registered(
    file: descriptor_pb2.FileDescriptorProto, *references: tuple[str, str], key: int = 7
) -> RegisteredSchema:
    return RegisteredSchema(key, PROTOBUF, text_of(file), references)


def small_file(name: str = "small.proto", **fields: int) -> descriptor_pb2.FileDescriptorProto:
    """A message Small with fields of these types, numbered from 1."""
    file = descriptor_pb2.FileDescriptorProto(name=name, syntax="proto3")
    message = file.message_type.add(name="Small")
    for number, (field, kind) in enumerate(fields.items(), 1):
        message.field.add(name=field, number=number, type=kind, label=ONE)  # type: ignore[arg-type]
    return file


def read(found: ProtobufFormat, writer: RegisteredSchema, *rows: bytes) -> Decoded:
    data = b"".join(rows)
    ends = [len(b"".join(rows[: count + 1])) for count in range(len(rows))]
    return found.writer(writer)(Bodies(memoryview(data), [0, *ends[:-1]], ends))


def test_each_type_becomes_a_column_of_sparks() -> None:
    file = orders_file()
    order = message_class(file, "shop.Order")
    full = order(
        id=-1, note="", tags=["a"], counts={"x": 1}, lines=[{"sku": "s", "count": 2**64 - 1}], state=9, card="c"
    )
    full.at.FromDatetime(datetime.datetime(1960, 1, 1, 0, 0, 0, 500))
    full.weight.value = 0
    found = read(ProtobufFormat(registered(file)), registered(file), b"\0" + full.SerializeToString(), b"\0")
    line = pa.struct([("sku", pa.string()), ("count", pa.decimal128(20, 0))])
    assert found.array.type == pa.struct(
        [
            ("id", pa.int64()), ("note", pa.string()), ("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string())),
            ("counts", pa.map_(pa.string(), pa.int64())), ("lines", pa.list_(line)), ("state", pa.string()),
            ("card", pa.string()), ("cash", pa.bool_()), ("weight", pa.int64()),
        ]
    )  # fmt: skip
    assert found.causes == {}
    assert found.array.to_pylist() == [
        {
            "id": -1, "note": "", "at": datetime.datetime(1960, 1, 1, 0, 0, 0, 500, datetime.timezone.utc), "tags": ["a"],
            "counts": [("x", 1)], "lines": [{"sku": "s", "count": Decimal(2**64 - 1)}], "state": "9", "card": "c",
            "cash": None, "weight": 0,
        },
        {**NOTHING, "id": 0, "tags": [], "counts": [], "lines": [], "state": "NEW"},
    ]  # fmt: skip


def test_fields_are_known_by_their_numbers() -> None:
    """A writer's further field is left out, one that it has not is empty, and one of another type counts as not written."""
    reader = ProtobufFormat(registered(small_file(now=STRING, count=INT64)))
    older = small_file(before=STRING)
    newer = small_file(now=STRING, count=STRING, more=STRING)
    old = message_class(older, "Small")(before="b").SerializeToString()
    new = message_class(newer, "Small")(now="n", count="text", more="m").SerializeToString()
    assert read(reader, registered(older, key=8), b"\0" + old).array.to_pylist() == [{"now": "b", "count": 0}]
    assert read(reader, registered(newer, key=9), b"\0" + new).array.to_pylist() == [{"now": "n", "count": 0}]


def test_another_message_of_the_file_is_no_record_of_this_one() -> None:
    file = orders_file()
    other = message_class(file, "shop.Other")(text="t").SerializeToString()
    found = read(
        ProtobufFormat(registered(file)), registered(file), b"\2\2" + other, b"\4\0\0", b"\2\6", b"\0\xff", b""
    )
    assert found.array.null_count == 5
    assert found.causes[0] == "ValueError: it is a shop.Other, not a shop.Order"
    assert found.causes[1] == "ValueError: it is a shop.Order.Line, not a shop.Order"
    assert found.causes[2] == "ValueError: its schema has no message at [3]"
    assert "DecodeError" in found.causes[3] and "cut off" in found.causes[4]
    for name in ("shop.Other", "Other"):
        named = ProtobufFormat(registered(file), name)
        assert read(named, registered(file), b"\2\2" + other).array.to_pylist() == [{"text": "t"}]
    nested = ProtobufFormat(registered(file), "shop.Order.Line")
    assert read(nested, registered(file), b"\4\0\0").array.to_pylist() == [{"sku": "", "count": Decimal(0)}]
    with pytest.raises(UsageError, match=r"has no message shop.None; it has shop.Order, shop.Other"):
        ProtobufFormat(registered(file), "None")


def test_a_header_says_which_message_a_whole_body_is() -> None:
    file = orders_file()
    other = message_class(file, "shop.Other")(text="t").SerializeToString()
    decode = ProtobufFormat(registered(file), "Other").writer(registered(file))
    assert decode(Bodies(memoryview(other), [0], [len(other)], (1,))).array.to_pylist() == [{"text": "t"}]


def test_files_that_are_imported_come_from_the_schemas_references() -> None:
    file = small_file("outer.proto", x=STRING)
    file.dependency.append("inner/small.proto")
    file.message_type[0].name = "Outer"
    file.message_type[0].field.add(name="y", number=2, type=MESSAGE, label=ONE, type_name=".Small")
    inner = ("inner/small.proto", text_of(small_file("whatever", z=STRING)))
    found = ProtobufFormat(registered(file, inner))
    assert found.type == pa.struct([("x", pa.string()), ("y", pa.struct([("z", pa.string())]))])
    with pytest.raises(UsageError, match="schema 7 can't be read"):
        ProtobufFormat(registered(file))


def _struct(file: Any) -> None:
    file.dependency.append("google/protobuf/struct.proto")
    file.message_type[0].field.add(name="y", number=2, type=MESSAGE, label=ONE, type_name=".google.protobuf.Struct")


def _itself(file: Any) -> None:
    file.message_type[0].field.add(name="y", number=2, type=MESSAGE, label=ONE, type_name=".Small")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_struct, "y can't be a column: google.protobuf.Struct holds itself"),
        (_itself, "y can't be a column: Small holds itself"),
        (
            lambda file: file.message_type[0].ClearField("field"),
            "all of it can't be a column: the message Small has no fields",
        ),
        (lambda file: file.ClearField("message_type"), "has no message"),
    ],
)
def test_what_no_column_can_hold_is_refused_by_its_path(change: Any, why: str) -> None:
    file = small_file(x=STRING)
    change(file)
    with pytest.raises(UsageError, match=why):
        ProtobufFormat(registered(file))


def test_a_message_without_fields_is_no_column() -> None:
    file = small_file(x=STRING)
    file.message_type.add(name="Empty")
    file.message_type[0].field.add(name="y", number=2, type=MESSAGE, label=ONE, type_name=".Empty")
    assert ProtobufFormat(registered(file)).type == pa.struct([("x", pa.string())])


def test_a_file_that_the_registry_has_as_text_alone_is_told() -> None:
    with pytest.raises(UsageError, match="as text alone"):
        ProtobufFormat(RegisteredSchema(7, PROTOBUF, 'syntax = "proto3"; message M { string a = 1; }'))
