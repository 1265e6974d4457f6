"""Readers of schemas, of record bodies, and of what names a record's schema."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa

from forebay.kafka.registry.client import AVRO, JSON, PROTOBUF, RegisteredSchema
from forebay.model.errors import UsageError
from forebay.schemas.avro import AvroFormat
from forebay.schemas.bodies import Bodies, Decoded, Format
from forebay.schemas.framing import framed, message_indexes
from forebay.schemas.json_schema import JsonFormat
from forebay.schemas.protobuf import ProtobufFormat
from tests.fuzz.reader import Reader, text_reader
from tests.support.kafka.registered import message_class, orders_file

_AVRO: Any = {
    "type": "record", "name": "R", "fields": [
        {"name": "n", "type": "long"},
        {"name": "s", "type": ["null", "string"]},
        {"name": "l", "type": {"type": "array", "items": "double"}},
        {"name": "m", "type": {"type": "map", "values": "bytes"}},
        {"name": "u", "type": ["null", "string", "long", {"type": "enum", "name": "E", "symbols": ["A", "B"]}]},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}  # fmt: skip
#: a writer's schema with fields that the reader omits: recursive, and of items that take no bytes or are skipped unchecked
_UNBOUNDED: Any = {
    **_AVRO, "fields": [
        {"name": "next", "type": ["null", "R"]},
        {"name": "zeros", "type": {"type": "array", "items": "null"}},
        *_AVRO["fields"],
        {"name": "doubles", "type": {"type": "array", "items": "double"}},
        {"name": "tree", "type": {"type": "map", "values": {"type": "array", "items": "R"}}},
    ],
}  # fmt: skip
#: bodies of deep nesting, of a huge count, and of nothing
_ODD = (b"\2" * 40_000, b"\2\0" + b"\x80" * 7 + b"\1" + b"\0" * 100, b"\0" * 1_000)
_JSON: Any = {
    "type": "object", "$defs": {"i": {"type": ["integer", "null"]}}, "properties": {
        "n": {"$ref": "#/$defs/i"}, "s": {"type": "string"}, "l": {"type": "array", "items": {"type": "number"}},
        "o": {"type": "object", "properties": {"b": {"type": "boolean"}}}, "a": {"allOf": [{"type": "string"}, {"minLength": 1}]},
        "m": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}  # fmt: skip


def schema_readers() -> dict[str, Reader]:
    """Return the readers of schemas and of bodies."""
    avro, documents = json.dumps(_AVRO), json.dumps(_JSON)
    orders = orders_file()
    order = message_class(orders, "shop.Order")(
        id=-1, note="n", tags=["a"], counts={"x": 1}, lines=[{"sku": "s"}], card="c"
    )
    order.at.FromSeconds(5)
    refused = (UsageError,)
    return {
        "Avro schema": dataclasses.replace(
            text_reader(_schema(AVRO, AvroFormat, avro), avro, allowed=refused, cost=4),
            refused=(json.dumps(_UNBOUNDED).encode(),),
        ),
        "JSON schema": text_reader(_schema(JSON, JsonFormat, documents), documents, allowed=refused, cost=4),
        "Protobuf descriptor": Reader(
            honest=(orders.SerializeToString(),), read=_descriptor, allowed=refused, cost=4
        ),
        "Avro body": _bodies(AvroFormat(RegisteredSchema(7, AVRO, avro)), RegisteredSchema(7, AVRO, avro), _avro_row()),
        "Avro body of an unbounded schema": _bodies(
            AvroFormat(RegisteredSchema(7, AVRO, avro)), RegisteredSchema(8, AVRO, json.dumps(_UNBOUNDED)), _unbounded_row()
        ),
        "JSON body": _bodies(
            JsonFormat(RegisteredSchema(7, JSON, documents)), RegisteredSchema(7, JSON, documents),
            b'{"n": 5, "s": "x", "l": [1, 2.5], "o": {"b": true}, "a": "y", "m": {"k": "v"}}',
        ),
        "Protobuf body": _bodies(
            ProtobufFormat(_protobuf(orders.SerializeToString())), _protobuf(orders.SerializeToString()),
            b"\0" + order.SerializeToString(),
        ),
        "schema number of a record": Reader(
            honest=(b"\0\0\0\0\x07body", b"\x01" + b"g" * 16 + b"\x02\x02"), read=_framing, allowed=()
        ),
        "indexes of a message": Reader(
            honest=(b"\x04\x02\x02body", b"\0"), read=lambda data: message_indexes(memoryview(data), 0), allowed=(ValueError,)
        ),
    }  # fmt: skip


def _schema(name: str, made: Callable[[RegisteredSchema], Format], own: str) -> Callable[[str], None]:
    """Return the reading of a schema: as a reader's, and as a writer's of odd bodies for the reader's schema ``own``."""
    reader = made(RegisteredSchema(7, name, own))

    def read(text: str) -> None:
        schema = RegisteredSchema(8, name, text)
        with contextlib.suppress(UsageError, ValueError):
            decode = reader.writer(schema)
            for body in _ODD:
                assert len(decode(Bodies(memoryview(body), [0], [len(body)])).array) == 1
        made(schema)

    return read


def _protobuf(descriptor: bytes) -> RegisteredSchema:
    return RegisteredSchema(7, PROTOBUF, base64.b64encode(descriptor).decode())


def _descriptor(data: bytes) -> None:
    if data:  # nothing is the text of a .proto file, which protoc compiles
        ProtobufFormat(_protobuf(data))


def _avro_row() -> bytes:
    stream = io.BytesIO()
    row = {"n": 5, "s": "x", "l": [1.5, 2.5], "m": {"k": b"v"}, "u": 7, "d": b"\x01\x02", "t": 1_700_000_000_000}
    plain = {**_AVRO, "fields": [{**field, "type": _without_logical(field["type"])} for field in _AVRO["fields"]]}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(plain), row)
    return stream.getvalue()


def _unbounded_row() -> bytes:
    """Return a row whose fields are those of ``_avro_row`` between those that the reader omits."""
    row = _avro_row()
    inner = b"\0\0" + row + b"\0\0"
    zeros, doubles, tree = b"\4\0", b"\2" + bytes(8) + b"\0", b"\2\2k\2" + inner + b"\0\0"
    return b"\2" + inner + zeros + row + doubles + tree


def _without_logical(kind: Any) -> Any:
    return kind["type"] if isinstance(kind, dict) and "logicalType" in kind else kind


def _bodies(found: Format, writer: RegisteredSchema, honest: bytes) -> Reader:
    """Return the reading of a body between two valid ones. Each body becomes a row or has a cause, whatever its bytes are."""
    decode = found.writer(writer)

    def read(data: bytes) -> None:
        whole = honest + data + honest
        ends = [len(honest), len(honest) + len(data), len(whole)]
        decoded: Decoded = decode(Bodies(memoryview(whole), [0, *ends[:-1]], ends))
        decoded.array.validate(full=True)
        assert len(decoded.array) == 3
        assert decoded.causes.keys() <= {1}
        assert decoded.array[0].as_py() == decoded.array[2].as_py() != None  # noqa: E711  one comparison of three

    return Reader(honest=(honest,), read=read, allowed=())


def _framing(data: bytes) -> None:
    header = [[{"key": "__value_schema_id", "value": data}], None, None]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.record_batch({"value": pa.array([b"body", data, None], pa.binary()), "headers": pa.array(header, kind)})
    found = framed(batch, "value")
    rows = [row for group in found.groups for row in group.rows]
    assert sorted([*rows, *found.causes]) == [0, 1]
