"""100,000 orders decoded into columns, in each format, against a loop over a C library and the same bytes.

Ours: find the schema of each record by its number, and make a column of structs, as a task of ``format("forebay")`` does. Peer:
for each record ``fastavro.schemaless_reader``, ``orjson.loads``, or a Protobuf message's ``FromString`` (upb) and its fields;
the rows stay Python objects. The figure against ``FromString`` alone, which makes no Python objects, is recorded without a
threshold. Both have decoded all records once before. No registry is asked.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import fastavro
import orjson
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from benchmarks.measured import Measured, Threshold, alternate, ratio
from benchmarks.setup import Setup
from forebay.kafka.registry.client import AVRO, JSON, PROTOBUF, RegisteredSchema, RegistryAccess
from forebay.schemas.columns import ColumnDecoding, decode_column
from forebay.schemas.proto_source import compiled

RECORDS = 100_000
#: of one poll
_BATCH = 4_096
_AVRO_LINE, _JSON_LINE, _PROTOBUF_LINE = "Avro, records/s", "JSON, records/s", "Protobuf, records/s"
#: Arrow's own reader of JSON takes one and a half times as long as orjson
_WANTED = {_AVRO_LINE: 0.5, _JSON_LINE: 0.4, _PROTOBUF_LINE: 0.4}
_PREFIX = b"\0\0\0\0\1"
_LINE = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
}
_AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "total", "type": "double"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "lines", "type": {"type": "array", "items": _LINE}},
    ],
}
_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_JSON = {
    "type": "object",
    "properties": {
        "id": _NUMBER, "customer": _TEXT, "at": _NUMBER, "total": {"type": "number"}, "note": _TEXT, "state": _TEXT,
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": _TEXT, "count": _NUMBER}}},
    },
}  # fmt: skip
_PROTO = """
syntax = "proto3";
enum State { NEW = 0; PAID = 1; }
message Order {
  int64 id = 1;
  string customer = 2;
  int64 at = 3;
  double total = 4;
  optional string note = 5;
  State state = 6;
  repeated Line lines = 7;
  message Line { string sku = 1; int32 count = 2; }
}
"""


class _Format(NamedTuple):
    """One format. ``peers``: name of a line → function that decodes one body."""

    schema: RegisteredSchema
    write: Callable[[dict[str, Any]], bytes]
    peers: dict[str, Callable[[bytes], object]]


def measure(setup: Setup) -> Iterator[Measured]:
    rows = [_row(number) for number in range(setup.records(RECORDS))]
    for made in (_avro(), _json(), _protobuf()):
        yield from _measured(setup, made, [made.write(row) for row in rows])


def _measured(setup: Setup, made: _Format, bodies: list[bytes]) -> Iterator[Measured]:
    indexes = b"\0" if made.schema.format == PROTOBUF else b""
    values = [_PREFIX + indexes + body for body in bodies]
    batches = [pa.record_batch({"value": values[at : at + _BATCH]}) for at in range(0, len(values), _BATCH)]
    decoding = ColumnDecoding("value", made.schema, RegistryAccess("http://none"))

    def ours() -> float:
        begun = time.perf_counter()
        for batch in batches:
            if decode_column(decoding, batch).causes:
                raise RuntimeError("a record was not decoded")
        return len(values) / (time.perf_counter() - begun)

    def peer(read: Callable[[bytes], object]) -> float:
        begin = len(values[0]) - len(bodies[0])
        begun = time.perf_counter()
        for value in values:
            read(value[begin:])
        return len(values) / (time.perf_counter() - begun)

    note = f"{len(values):,} records of {len(values[0])} bytes"
    for what, read in made.peers.items():
        ours(), peer(read)
        wanted = Threshold(_WANTED[what], at_least=True) if what in _WANTED else None
        yield ratio("decoding", what, alternate(setup.runs, ours, partial(peer, read)), "records/s", wanted, note)


def _avro() -> _Format:
    schema = fastavro.parse_schema(_AVRO)

    def write(row: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, row)
        return stream.getvalue()

    def peer(body: bytes) -> object:
        return fastavro.schemaless_reader(io.BytesIO(body), schema, None)

    return _Format(RegisteredSchema(1, AVRO, json.dumps(_AVRO)), write, {_AVRO_LINE: peer})


def _json() -> _Format:
    return _Format(RegisteredSchema(1, JSON, json.dumps(_JSON)), orjson.dumps, {_JSON_LINE: orjson.loads})


def _protobuf() -> _Format:
    (file,) = compiled((("order.proto", _PROTO),), ())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(file))
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))

    def write(row: dict[str, Any]) -> bytes:
        written: bytes = order(**row).SerializeToString()
        return written

    def peer(body: bytes) -> object:
        read = order.FromString(body)
        lines = [(line.sku, line.count) for line in read.lines]
        note = read.note if read.HasField("note") else None
        return read.id, read.customer, read.at, read.total, note, read.state, lines

    peers = {_PROTOBUF_LINE: peer, "the same, against FromString alone": order.FromString}
    return _Format(RegisteredSchema(1, PROTOBUF, _PROTO), write, peers)


def _row(number: int) -> dict[str, Any]:
    return {
        "id": number, "customer": f"customer-{number % 1000}", "at": 1_700_000_000_000 + number, "total": number / 7,
        "note": None if number % 2 else "to be delivered by noon", "state": "PAID",
        "lines": [{"sku": f"sku-{number % 100}", "count": count} for count in range(3)],
    }  # fmt: skip
