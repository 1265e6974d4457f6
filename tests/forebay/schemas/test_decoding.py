"""Columns decoded with a real schema registry, from records of confluent-kafka's own serialisers."""

from __future__ import annotations

import base64
import gc
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference

from driver.batches.tasks.decoding import Decoder
from forebay.kafka.registry.client import AVRO, JSON, PROTOBUF, RegisteredSchema, RegistryAccess, SchemaError
from forebay.model.errors import UnreachableError, UsageError
from forebay.model.records import DATAFRAME_SCHEMA
from forebay.process.clock import ManualClock
from forebay.schemas import columns
from forebay.schemas import decoder as decoder_module
from forebay.schemas.bodies import Bodies, built, cause_of
from forebay.schemas.columns import ColumnDecoding, _Column, decode_column
from forebay.schemas.decoder import ReaderSchema, RegistryDecoder, find_columns
from tests.support.kafka.registered import Writers, message_class, orders_file
from tests.support.run.ports import free_port
from tests.support.servers.registry_front import RegistryFront

GUID = "00112233-4455-6677-8899-aabbccddeeff"
VISIT = {"title": "Visit", "type": "object", "properties": {"page": {"type": "string"}}}


def record(*names: str) -> dict[str, Any]:
    fields = [{"name": name, "type": "long", "default": 0} for name in names]
    return {"type": "record", "name": "R", "fields": fields}


def batch(values: Sequence[bytes | None], **headers: list[Any]) -> pa.RecordBatch:
    rows = [
        {"value": value, "topic": "t", "partition": 0, "offset": offset, "timestamp": 0, "timestampType": 0}
        for offset, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=DATAFRAME_SCHEMA(False))


def test_records_of_many_writers_stay_in_their_order(writers: Writers) -> None:
    one = writers.avro("many-value", record("a"), [{"a": number} for number in range(3)])
    two = writers.avro("many-value", record("a", "b"), [{"a": number, "b": 9} for number in range(3, 6)])
    made = [one[0], two[0], None, one[1], b"junk", two[1], one[2], two[2][:-1], two[2]]
    decoding = writers.decoding("many-value", AVRO)
    for given in (batch(made), batch([b"x", *made, b"y"]).slice(1, len(made))):
        found = decode_column(decoding, given)
        rows = [row and (row["a"], row["b"]) for row in found.array.to_pylist()]
        assert rows == [(0, 0), (3, 9), None, (1, 0), None, (4, 9), (2, 0), None, (5, 9)]
        assert sorted(found.causes) == [4, 7]


def test_protobuf_and_json_decode_what_serialisers_wrote(writers: Writers) -> None:
    file = orders_file()
    other = message_class(file, "shop.Other")
    values = writers.protobuf("orders-value", [other(text=text) for text in "ab"])
    found = decode_column(writers.decoding("orders-value", PROTOBUF, message="shop.Other"), batch(values))
    assert found.array.to_pylist() == [{"text": "a"}, {"text": "b"}] and found.causes == {}
    documents = writers.json("visits-value", VISIT, [{"page": "/"}])
    assert decode_column(writers.decoding("visits-value", JSON), batch(documents)).array.to_pylist() == [{"page": "/"}]
    mixed = decode_column(writers.decoding("visits-value", JSON), batch(values))
    assert "has format protobuf, not json" in mixed.causes[0]


def test_protobuf_files_held_as_text_import_each_other(writers: Writers) -> None:
    """As Java's clients register them. This registry returns no descriptor, though one is requested."""
    line = 'syntax = "proto3"; package shop; message Line { string sku = 1; }'
    writers.client.register_schema("shop/line.proto", Schema(line, "PROTOBUF"))
    order = (
        'syntax = "proto3"; package shop; import \'shop/line.proto\'; import "confluent/meta.proto"; '
        'message Order { Line line = 1; int64 id = 2 [(confluent.field_meta).doc = "its number"]; }'
    )
    reference = SchemaReference("shop/line.proto", "shop/line.proto", 1)
    number = writers.client.register_schema("text-value", Schema(order, "PROTOBUF", [reference]))
    decoding = writers.decoding("text-value", PROTOBUF)
    assert decoding.schema.text.startswith("syntax")
    found = decode_column(decoding, batch([b"\0" + number.to_bytes(4, "big") + b"\0\x0a\3\x0a\1s\x10\7"]))
    assert found.array.to_pylist() == [{"line": {"sku": "s"}, "id": 7}] and found.causes == {}
    newer = order.replace("int64 id = 2", "int64 id = 2; string note = 3; int64 more = 4")
    later = writers.client.register_schema("text-value", Schema(newer, "PROTOBUF", [reference]))
    found = decode_column(decoding, batch([b"\0" + later.to_bytes(4, "big") + b"\0\x10\x08\x1a\1n"]))
    assert found.array.to_pylist() == [{"line": None, "id": 8}] and found.causes == {}


def test_schema_is_requested_by_guid_in_header(writers: Writers) -> None:
    number = writers.register("guid-value", record("a"))
    decoding = writers.decoding("guid-value", AVRO)
    header = [{"key": "__value_schema_id", "value": b"\1" + bytes.fromhex(GUID.replace("-", ""))}]
    headers = pa.array([header, header], DATAFRAME_SCHEMA(True).field("headers").type)
    given: Any = pa.RecordBatch.from_arrays([*batch([b"\2", b"\4"]).columns, headers], schema=DATAFRAME_SCHEMA(True))
    with RegistryFront(writers.url) as front:
        front.guids[GUID] = number
        found = decode_column(
            ColumnDecoding("value", decoding.schema, RegistryAccess(front.url, timeout_seconds=30.0)), given
        )
        assert found.array.to_pylist() == [{"a": 1}, {"a": 2}] and found.causes == {}
        assert len(front.asked) == 1  # once for all of them


def test_schema_is_requested_once_and_unknown_one_again_later(writers: Writers) -> None:
    (value,) = writers.avro("once-value", record("a", "c"), [{"a": 1, "c": 2}])
    decoding = writers.decoding("once-value", AVRO)
    other = writers.register("once-other-value", record("d"))
    with RegistryFront(writers.url) as front:
        clock = ManualClock()
        access = RegistryAccess(front.url, timeout_seconds=30.0, attempts=2)
        column = _Column(ColumnDecoding("value", decoding.schema, access), clock)
        assert column.decode(batch([value] * 3)).array[2].as_py() == {"a": 1, "c": 2}
        assert front.asked == []  # the reader's own
        late = b"\0" + other.to_bytes(4, "big") + b"\2"
        front.failures = [404, 404]
        for _ in range(2):
            assert column.decode(batch([late])).causes == {0: f"the schema registry has no schema {other}"}
        assert len(front.asked) == 2
        clock.advance(31)
        for _ in range(2):
            assert column.decode(batch([late])).array.to_pylist() == [{"a": 0, "c": 0}]
        assert len(front.asked) == 3


class Known:
    """A registry with these schemas. ``asked``: the requested numbers, and whether patiently. ``unusable``: number → why."""

    def __init__(self, *schemas: RegisteredSchema) -> None:
        self._schemas = {schema.key: schema for schema in schemas}
        self.asked: list[tuple[int | str, bool]] = []
        self.unusable: dict[int | str, str] = {}

    def __call__(self, access: RegistryAccess) -> Known:
        return self

    def __enter__(self) -> Known:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def schema(self, key: int | str, format_: str, *, patient: bool = True) -> RegisteredSchema | None:
        self.asked.append((key, patient))
        if key in self.unusable:
            raise SchemaError(self.unusable[key])
        return self._schemas.get(key)


def long_of(number: int) -> RegisteredSchema:
    return RegisteredSchema(number, AVRO, '"long"')


def longs(*numbers: int) -> pa.RecordBatch:
    return batch([b"\0" + number.to_bytes(4, "big") + b"\2" for number in numbers])


def test_process_keeps_bounded_number_of_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6. Of several unknown schemas, only the first is waited for: they are junk, or appear together."""
    known = Known(*map(long_of, range(2, 8)))
    monkeypatch.setattr(columns, "Registry", known)
    decoding = ColumnDecoding("value", long_of(1), RegistryAccess("http://kept"))
    for _ in range(2):
        assert decode_column(decoding, longs(2, 3)).array.to_pylist() == [1, 1]
    assert known.asked == [(2, True), (3, True)]
    monkeypatch.setattr(columns, "_WRITERS_MAX", 2)
    column = _Column(decoding, ManualClock())
    assert column.decode(longs(2, 3, 4, 5, 6)).array.to_pylist() == [1] * 5
    assert len(column._writers) <= 2
    known.asked.clear()
    assert sorted(column.decode(longs(8, 9)).causes) == [0, 1]
    assert known.asked == [(8, True), (9, False)]


def test_schema_that_cant_be_used_is_an_error_of_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: otherwise a record that names it fails its batch at each attempt. It is requested again later."""
    known = Known(long_of(2))
    known.unusable[3] = "a schema refers to " + "x" * 5_000
    monkeypatch.setattr(columns, "Registry", known)
    clock = ManualClock()
    column = _Column(ColumnDecoding("value", long_of(1), RegistryAccess("http://unusable")), clock)
    for _ in range(2):
        found = column.decode(longs(3, 2, 3))
        assert found.array.to_pylist() == [None, 1, None] and sorted(found.causes) == [0, 2]
        assert found.causes[0].startswith("schema 3: a schema refers to x") and len(found.causes[0]) == 1_000
    assert [number for number, _ in known.asked] == [2, 3]
    clock.advance(31)
    known.unusable.clear()
    assert column.decode(longs(3)).causes == {0: "the schema registry has no schema 3"}


def test_work_for_unknown_schemas_grows_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: junk may name another schema in each record."""
    monkeypatch.setattr(columns, "Registry", Known())

    def seconds(count: int) -> float:
        column = _Column(ColumnDecoding("value", long_of(1), RegistryAccess("http://none")))
        junk = longs(*range(2, count + 2))
        began = time.process_time()
        assert len(column.decode(junk).causes) == count
        return time.process_time() - began

    assert seconds(8_000) < 32 * min(seconds(1_000) for _ in range(3))


@pytest.mark.parametrize("collecting", [True, False])
def test_garbage_collector_state_is_restored(collecting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "Registry", Known())
    column = _Column(ColumnDecoding("value", long_of(1), RegistryAccess("http://none")))
    try:
        if not collecting:
            gc.disable()
        column.decode(longs(1))
        with pytest.raises(KeyError):
            column.decode(longs(1).select(["topic"]))
        assert gc.isenabled() == collecting
    finally:
        gc.enable()


def test_invalid_readers_schema_is_refused_when_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only in each task."""
    itself = '{"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", "R"]}]}'
    known = Known(RegisteredSchema(1, JSON, "{}"), RegisteredSchema(2, AVRO, itself))
    monkeypatch.setattr(decoder_module, "Registry", known)
    for column, number, why in (
        ("topic", 1, "cannot decode topic as avro; only key and value, as avro, json, protobuf"),
        ("value", 9, "the schema registry has no schema 9"),
        ("value", 1, "schema 1 has format json, not avro"),
        ("value", 2, "schema 2: x can't be a column: R is recursive"),
    ):
        with pytest.raises(UsageError, match=why):
            find_columns(RegistryAccess("http://none"), {column: ReaderSchema(AVRO, number=number)})


def test_time_beyond_pythons_range_is_an_error_of_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column holds it; a single value of Python can't."""
    late = '{"type": "long", "logicalType": "timestamp-micros"}'
    known = Known(RegisteredSchema(1, AVRO, late))
    monkeypatch.setattr(decoder_module, "Registry", known)
    monkeypatch.setattr(columns, "Registry", known)
    decoder = RegistryDecoder(RegistryAccess("http://late"), value=ReaderSchema(AVRO, number=1))
    with pytest.raises(ValueError, match="value has no value in Python's types: date value out of range"):
        decoder.value(b"\0\0\0\0\1" + b"\xfe" + b"\xff" * 8 + b"\1")


def test_unreachable_registry_is_not_an_error_of_a_record(writers: Writers) -> None:
    """Neither in a query, nor in a job with dead letters."""
    (value,) = writers.avro("away-value", record("a"), [{"a": 1}])
    decoder = RegistryDecoder(writers.access, value=ReaderSchema(AVRO, "away-value"))
    strange = batch([b"\0\0\0\1\0x", value])
    gone = RegistryAccess(f"http://127.0.0.1:{free_port()}", attempts=2)
    away = ColumnDecoding("value", decoder._columns["value"].schema, gone)
    with pytest.raises(UnreachableError, match="did not answer"):
        decode_column(away, strange)
    decoder._columns["value"] = away
    with pytest.raises(UnreachableError, match="did not answer"):
        Decoder(decoder, decoder.schema, arrow=True).decode(strange)
    with pytest.raises(UnreachableError, match="did not answer"):
        Decoder(lambda record: {"value": decoder.value(record.value)}, decoder.schema).decode(strange)


@pytest.mark.parametrize("kind", [MemoryError, pa.ArrowMemoryError])
def test_lack_of_memory_is_not_an_error_of_a_record(kind: type[MemoryError], monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-5: a query that reads undecodable records as null would lose good ones."""

    def short(*_: Any, **__: Any) -> Any:
        raise kind("no memory")

    monkeypatch.setattr(fastavro, "schemaless_reader", short)
    schemas = {
        AVRO: '"long"',
        JSON: '{"type": "string"}',
        PROTOBUF: base64.b64encode(orders_file().SerializeToString()).decode(),
    }
    for name, text in schemas.items():
        schema = RegisteredSchema(1, name, text)
        found: Any = ColumnDecoding("value", schema, RegistryAccess("http://none")).format()
        if name != AVRO:
            monkeypatch.setattr(found, "_decode" if name == JSON else "_parse", short)
        with pytest.raises(MemoryError):
            found.writer(schema)(Bodies(memoryview(b"\0"), [0], [1]))
    # there is enough again for what a record that is to blame becomes
    answers: list[Callable[..., Any]] = [short, pa.array]
    with pytest.raises(MemoryError):
        built([1], {}, lambda rows: answers.pop(0)(rows))


def test_cause_of_undecodable_record_is_bounded() -> None:
    """INV-6: it may contain the record."""
    assert len(cause_of(ValueError("x" * 5_000))) == 1_000


def test_decoder_of_job_returns_rows_causes_and_single_values(writers: Writers) -> None:
    (value,) = writers.avro("job-value", record("a"), [{"a": 1}])
    decoder = pickle.loads(
        pickle.dumps(RegistryDecoder(writers.access, value=ReaderSchema(AVRO, "job-value", version=1)))
    )
    decoded = Decoder(decoder, decoder.schema, arrow=True).decode(batch([value, b"junk", None]))
    assert decoded.rows.schema == decoder.schema
    assert decoded.rows.select(["value", "offset"]).to_pylist() == [
        {"value": {"a": 1}, "offset": 0},
        {"value": None, "offset": 2},
    ]
    assert decoded.causes == {1: "value: its 4 bytes have no schema number"}
    assert decoder.value(value) == {"a": 1}
    with pytest.raises(ValueError, match="have no schema number"):
        decoder.value(b"junk")
    with pytest.raises(UsageError, match="cannot decode value as xml; only key and value, as avro, json, protobuf"):
        RegistryDecoder(writers.access, value=ReaderSchema("xml", "job-value"))
