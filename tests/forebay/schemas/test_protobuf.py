"""Protobuf's messages as columns."""

from __future__ import annotations

import base64
import datetime
import os
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from forebay.kafka.registry.client import PROTOBUF, RegisteredSchema
from forebay.model.errors import UnreachableError, UsageError
from forebay.schemas import proto_source
from forebay.schemas.bodies import Bodies, Decoded
from forebay.schemas.protobuf import ProtobufFormat
from tests.support.kafka.registered import INT64, MANY, MESSAGE, ONE, STRING, message_class, orders_file

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
        message.field.add(name=field, number=number, type=kind, label=ONE)
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


def test_fields_are_matched_by_number() -> None:
    """An unknown field is ignored, a missing one is empty, and one of another type counts as missing."""
    reader = ProtobufFormat(registered(small_file(now=STRING, count=INT64)))
    older = small_file(before=STRING)
    newer = small_file(now=STRING, count=STRING, more=STRING)
    old = message_class(older, "Small")(before="b").SerializeToString()
    new = message_class(newer, "Small")(now="n", count="text", more="m").SerializeToString()
    assert read(reader, registered(older, key=8), b"\0" + old).array.to_pylist() == [{"now": "b", "count": 0}]
    assert read(reader, registered(newer, key=9), b"\0" + new).array.to_pylist() == [{"now": "n", "count": 0}]


def test_other_message_of_file_is_undecodable() -> None:
    file = orders_file()
    other = message_class(file, "shop.Other")(text="t").SerializeToString()
    rows = (b"\2\2" + other, b"\4\0\0", b"\2\6", b"\0\xff", b"", b"\2\1" + other, b"\4\0", b"\0")
    found = read(ProtobufFormat(registered(file)), registered(file), *rows)
    assert [row is None for row in found.array.to_pylist()] == [True] * 7 + [False]
    assert found.causes[0] == "ValueError: it is a shop.Other, not a shop.Order"
    assert found.causes[1] == "ValueError: it is a shop.Order.Line, not a shop.Order"
    assert found.causes[2] == "ValueError: its schema has no message at [3]"
    assert "DecodeError" in found.causes[3] and "truncated" in found.causes[4]
    assert found.causes[5] == "ValueError: its schema has no message at [-1]"
    assert found.causes[6] == "ValueError: its message indexes are truncated"  # and don't go on in the next body
    for name in ("shop.Other", "Other"):
        named = ProtobufFormat(registered(file), name)
        assert read(named, registered(file), b"\2\2" + other).array.to_pylist() == [{"text": "t"}]
    nested = ProtobufFormat(registered(file), "shop.Order.Line")
    assert read(nested, registered(file), b"\4\0\0").array.to_pylist() == [{"sku": "", "count": Decimal(0)}]
    with pytest.raises(UsageError, match=r"has no message shop.None; it has shop.Order, shop.Other"):
        ProtobufFormat(registered(file), "None")


def test_header_names_message_of_whole_body() -> None:
    file = orders_file()
    other = message_class(file, "shop.Other")(text="t").SerializeToString()
    decode = ProtobufFormat(registered(file), "Other").writer(registered(file))
    assert decode(Bodies(memoryview(other), [0], [len(other)], (1,))).array.to_pylist() == [{"text": "t"}]


def test_imports_come_from_references() -> None:
    file = small_file("outer.proto", x=STRING)
    file.dependency.append("inner/small.proto")
    file.message_type[0].name = "Outer"
    file.message_type[0].field.add(name="y", number=2, type=MESSAGE, label=ONE, type_name=".Small")
    inner = ("inner/small.proto", text_of(small_file("whatever", z=STRING)))
    found = ProtobufFormat(registered(file, inner))
    assert found.type == pa.struct([("x", pa.string()), ("y", pa.struct([("z", pa.string())]))])
    with pytest.raises(UsageError, match="cannot parse schema 7"):
        ProtobufFormat(registered(file))


def test_import_of_schema_loads_no_python_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Otherwise a user who can register a schema could run any module on Python's path."""
    (tmp_path / "anything_pb2.py").write_text("DESCRIPTOR = None")
    monkeypatch.syspath_prepend(tmp_path)
    file = small_file(x=STRING)
    file.dependency.append("anything.proto")
    text = 'syntax = "proto3"; import "anything.proto"; message M { string a = 1; }'
    for schema in (registered(file), RegisteredSchema(7, PROTOBUF, text)):
        with pytest.raises(UsageError, match="cannot parse schema 7"):
            ProtobufFormat(schema)
    assert "anything_pb2" not in sys.modules


def _struct(file: Any) -> None:
    file.dependency.append("google/protobuf/struct.proto")
    file.message_type[0].field.add(name="y", number=2, type=MESSAGE, label=ONE, type_name=".google.protobuf.Struct")


def _itself(file: Any) -> None:
    file.message_type[0].field.add(name="y", number=2, type=MESSAGE, label=ONE, type_name=".Small")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_struct, "y can't be a column: google.protobuf.Struct is recursive"),
        (_itself, "y can't be a column: Small is recursive"),
        (
            lambda file: file.message_type[0].ClearField("field"),
            "the whole schema can't be a column: the message Small has no fields",
        ),
        (lambda file: file.ClearField("message_type"), "has no message"),
    ],
)
def test_type_that_cant_be_a_column_is_refused_with_its_path(change: Any, why: str) -> None:
    file = small_file(x=STRING)
    change(file)
    with pytest.raises(UsageError, match=why):
        ProtobufFormat(registered(file))


def test_schema_with_too_many_columns_is_refused() -> None:
    """Messages within one another have twice as many columns at each level."""
    file = small_file(x=INT64, y=INT64)
    for level in range(16):
        message = file.message_type.add(name=f"D{level}")
        below = f".D{level - 1}" if level else ".Small"
        for number, name in enumerate("ab", 1):
            message.field.add(name=name, number=number, type=MESSAGE, type_name=below, label=ONE)
    with pytest.raises(UsageError, match="can't be a column: the schema has more than 20000 columns"):
        ProtobufFormat(registered(file), "D15")


def test_many_repeated_messages_are_built_in_parts() -> None:
    """Among hundreds of thousands that exist at a time, protobuf needs seconds to find one: 10 s and more for a body of 2 MB."""
    file = small_file(x=INT64)
    many = file.message_type.add(name="Many")
    entry = many.nested_type.add(name="NamedEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=INT64, label=ONE)
    entry.field.add(name="value", number=2, type=MESSAGE, type_name=".Small", label=ONE)
    many.field.add(name="listed", number=1, type=MESSAGE, type_name=".Small", label=MANY)
    many.field.add(name="named", number=2, type=MESSAGE, type_name=".Many.NamedEntry", label=MANY)
    schema = registered(file)
    found = ProtobufFormat(schema, "Many")
    row = message_class(file, "Many")
    counts = (20_000, 0, 8_192)
    rows = [
        row(listed=[{"x": at} for at in range(count)], named={at: {"x": -at} for at in range(count)})
        for count in counts
    ]
    decoded = read(found, schema, *(b"\2\2" + one.SerializeToString() for one in rows))
    assert decoded.causes == {}
    assert decoded.array.to_pylist() == [
        {"listed": [{"x": at} for at in range(count)], "named": [(at, {"x": -at}) for at in range(count)]}
        for count in counts
    ]
    began = time.process_time()
    large: Any = read(found, schema, b"\2\2" + b"\n\0" * 1_000_000).array
    assert len(large.field("listed")[0]) == 1_000_000
    assert time.process_time() - began < 5


def test_invalid_descriptor_is_refused() -> None:
    text = base64.b64encode(b"\xff" * 9).decode()
    for schema in (RegisteredSchema(7, PROTOBUF, text), registered(small_file(x=STRING), ("other.proto", text))):
        with pytest.raises(
            UsageError, match="schema 7: the registry's answer is not the descriptor of a Protobuf file"
        ):
            ProtobufFormat(schema)


def test_message_without_fields_is_not_a_column() -> None:
    file = small_file(x=STRING)
    file.message_type.add(name="Empty")
    file.message_type[0].field.add(name="y", number=2, type=MESSAGE, label=ONE, type_name=".Empty")
    assert ProtobufFormat(registered(file)).type == pa.struct([("x", pa.string())])


TEXT = """
syntax = "proto3";
package shop;
import public "google/protobuf/timestamp.proto";  // import "google/no such one.proto";
import "google/type/date.proto";
import "shop/line.proto";
message Order {
  optional int64 id = 1;
  map<string, int64> counts = 2;
  repeated Line lines = 3;
  google.protobuf.Timestamp at = 4;
  google.type.Date day = 5;
  oneof paid_by { string card = 6; bool cash = 7; }
}
"""
LINE_TEXT = 'syntax = "proto3"; package shop; message Line { string sku = 1; }'


def line_file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="other.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Line").field.add(name="sku", number=1, type=STRING, label=ONE)
    return file


@pytest.mark.parametrize("line", [LINE_TEXT, text_of(line_file())], ids=["text", "descriptor"])
def test_text_of_file_is_compiled_with_its_imports(line: str) -> None:
    """Imports of the libraries' files, of references in either form, and from a descriptor."""
    written = RegisteredSchema(7, PROTOBUF, TEXT, (("shop/line.proto", line),))
    found = ProtobufFormat(written)
    assert found.type == pa.struct(
        [
            ("id", pa.int64()), ("counts", pa.map_(pa.string(), pa.int64())),
            ("lines", pa.list_(pa.struct([("sku", pa.string())]))), ("at", pa.timestamp("us", "UTC")),
            ("day", pa.struct([("year", pa.int32()), ("month", pa.int32()), ("day", pa.int32())])),
            ("card", pa.string()), ("cash", pa.bool_()),
        ]
    )  # fmt: skip
    body = b"\0" + bytes([0x08, 5, 0x1A, 3, 0x0A, 1]) + b"s"
    rows: list[Any] = read(found, written, body).array.to_pylist()
    (row,) = rows
    assert (row["id"], row["lines"], row["cash"]) == (5, [{"sku": "s"}], None)
    outer = small_file("outer.proto", x=STRING)
    outer.dependency.append("shop/line.proto")
    outer.message_type[0].field.add(name="line", number=2, type=MESSAGE, label=ONE, type_name=".shop.Line")
    by_descriptor = ProtobufFormat(RegisteredSchema(8, PROTOBUF, text_of(outer), (("shop/line.proto", LINE_TEXT),)))
    assert cast(Any, by_descriptor.type).field("line").type == pa.struct([("sku", pa.string())])


@pytest.mark.parametrize(
    ("text", "references", "why"),
    [
        ('syntax = "proto3"; message M { Absent a = 1; }', (), r"cannot parse schema 7: protoc .*: schema.proto:1:\d+: .Absent"),
        ('syntax = "proto3"; import "gone.proto"; message M {}', (), "gone.proto.*not found"),
        ('syntax = "proto3"; import "/etc/passwd"; message M {}', (), "/etc/passwd.*not found"),
        ('syntax = "proto3"; import "../../../../../etc/passwd"; message M {}', (), "etc/passwd"),
        ('syntax = "proto3"; import public "/proc/self/environ"; message M {}', (), "/proc/self/environ.*not found"),
        ("plain words", (), "protoc refused it: schema.proto:1:1: "),
        (TEXT, (("../line.proto", LINE_TEXT),), "'../line.proto' is not a name of a Protobuf file"),
        (TEXT, (("--plugin=x.proto", LINE_TEXT),), "'--plugin=x.proto' is not a name"),
        (TEXT, (("@x.proto", LINE_TEXT),), "'@x.proto' is not a name"),
        (TEXT, (("/tmp/line.proto", LINE_TEXT),), "'/tmp/line.proto' is not a name"),
        (TEXT, (("a/../line.proto", LINE_TEXT),), "'a/../line.proto' is not a name"),
        (TEXT, (("a.proto=/tmp/line.proto", LINE_TEXT),), "'a.proto=/tmp/line.proto' is not a name"),
        ('syntax = "proto3"; message M {' + "".join(f" Absent{n} a{n} = {n};" for n in range(1, 99)) + "}", (), "Absent1"),
    ],
)  # fmt: skip
def test_text_that_does_not_compile_is_refused_with_protocs_message(text: str, references: Any, why: str) -> None:
    """Errors use the schema's names. No name is used as an option or as a file of this machine."""
    schema = RegisteredSchema(7, PROTOBUF, text, references)
    with pytest.raises(UsageError, match=why) as refused:
        ProtobufFormat(schema)
    assert "\n" not in str(refused.value) and "/dev/fd" not in str(refused.value)
    assert len(str(refused.value)) < 1_100  # INV-6
    with pytest.raises(ValueError, match=why):
        ProtobufFormat(registered(small_file(x=STRING))).writer(schema)


def test_files_of_protoc_have_no_name_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """So a killed process leaves no file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    start, seen = subprocess.Popen, []

    def looking(*command: Any, **more: Any) -> Any:
        seen.append(list(tmp_path.iterdir()))
        return start(*command, **more)

    monkeypatch.setattr(subprocess, "Popen", looking)
    ProtobufFormat(RegisteredSchema(7, PROTOBUF, 'syntax = "proto3"; message WithoutAName { string a = 1; }'))
    assert seen == [[]]


def test_machine_that_cant_compile_is_unreachable_not_schema_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    schema = RegisteredSchema(7, PROTOBUF, 'syntax = "proto3"; message OfNoOtherTest { string a = 1; }')
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(UnreachableError, match="cannot run protoc: FileNotFoundError"):
        ProtobufFormat(schema)
    monkeypatch.undo()
    monkeypatch.setattr(proto_source, "_COMPILE_SECONDS", 0.0)
    with pytest.raises(UnreachableError, match="cannot run protoc: it did not end within 0 s"):
        ProtobufFormat(schema)
    monkeypatch.undo()
    with monkeypatch.context() as killing:
        killing.setattr(proto_source, "_limit", lambda pid: os.kill(pid, signal.SIGKILL))
        with pytest.raises(UnreachableError, match="cannot run protoc: signal 9 ended it, as at a lack of memory"):
            ProtobufFormat(schema)
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    with pytest.raises(UnreachableError, match=r"\(grpc_tools\): pip install 'forebay\[registry\]'"):
        ProtobufFormat(schema)
    monkeypatch.undo()
    assert ProtobufFormat(schema).type == pa.struct([("a", pa.string())])
    monkeypatch.setattr(proto_source, "_COMPILE_SECONDS", 0.0)
    assert ProtobufFormat(schema).type == pa.struct([("a", pa.string())])  # a process compiles it once


def test_text_that_takes_protoc_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: it takes as long at each attempt, so the batch of a record that names it would never end."""
    monkeypatch.setattr(proto_source, "_CPU_SECONDS", 1)
    monkeypatch.setattr(proto_source, "_COMPILE_SECONDS", 600.0)  # a busy machine
    reserved = "".join(f"reserved {2 * number + 3};" for number in range(80_000))
    schema = RegisteredSchema(7, PROTOBUF, f'syntax = "proto3"; message M {{ string a = 1; {reserved} }}')
    with pytest.raises(
        ValueError, match=r"cannot parse schema 7: protoc .* more than 1 s of processor time; make the schema smaller"
    ):
        ProtobufFormat(registered(small_file(x=STRING))).writer(schema)


def test_long_output_of_protoc_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: protoc writes 30 times as much as this text has."""
    monkeypatch.setattr(proto_source, "_COMPILE_SECONDS", 600.0)  # a busy machine
    schema = RegisteredSchema(7, PROTOBUF, 'syntax = "proto3"; ' + "x;" * 30_000)
    proto_source.compiled((("first.proto", 'syntax = "proto3";'),), ())  # imports what it needs
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=r"protoc refused it: schema.proto:1:20: "):
            ProtobufFormat(schema)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize(
    "names", [[f"a{number}.proto" for number in range(1_000)], ["a" * 200_000 + ".proto"]], ids=["many", "long"]
)
def test_schema_of_more_files_than_protoc_takes_is_refused(names: list[str]) -> None:
    """INV-6: protoc can't be started with too many open files or arguments, at no attempt."""
    schema = RegisteredSchema(7, PROTOBUF, TEXT, tuple((name, LINE_TEXT) for name in names))
    with pytest.raises(UsageError, match=r"consists of \d+ Protobuf files; allowed are 500, with 50000 characters"):
        ProtobufFormat(schema)


def test_import_from_thousands_of_folders_is_refused() -> None:
    """INV-6: Python imports the package of each folder by recursion."""
    name = f"google/{'a/' * 3_000}x.proto"
    file = small_file(x=STRING)
    file.dependency.append(name)
    reader = ProtobufFormat(registered(small_file(x=STRING)))
    for schema in (
        registered(file),
        RegisteredSchema(7, PROTOBUF, f'syntax = "proto3"; import "{name}"; message M {{}}'),
    ):
        with pytest.raises(ValueError, match="cannot parse schema 7"):
            reader.writer(schema)


def test_work_for_absent_message_does_not_grow_with_the_file() -> None:
    """INV-6: each record may name another message."""
    small, large = small_file(x=STRING), small_file(x=STRING)
    for number in range(10_000):
        large.message_type.add(name=f"M{number}")
    reader = ProtobufFormat(registered(small))
    rows = b"\2\x01" * 300
    bodies = Bodies(memoryview(rows), range(0, len(rows), 2), range(2, len(rows) + 2, 2))
    took = {}
    for name, file in (("small", small), ("large", large)):
        decode = reader.writer(registered(file))
        began = time.process_time()
        assert len(decode(bodies).causes) == 300
        took[name] = time.process_time() - began
    assert took["large"] < 100 * took["small"]
