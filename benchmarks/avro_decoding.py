"""Avro records of 100,000 orders as columns, against a raw loop of fastavro over the same bytes.

Ours: each record's schema is found by its number, and a column of structs is made, as a task of ``format("forebay")`` does. Peer:
``fastavro.schemaless_reader`` for each record, whose rows stay Python's. Both have read all of them before. No registry is asked.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa

from benchmarks.measured import Measured, Threshold, alternate, ratio
from benchmarks.setup import Setup
from forebay.kafka.registry import AVRO, RegisteredSchema, RegistryAccess
from forebay.schemas.columns import ColumnDecoding, decode_column

RECORDS = 100_000
#: of one poll
_BATCH = 4_096
_LINE = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
}
_ORDER = {
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


def measure(setup: Setup) -> Iterator[Measured]:
    schema = fastavro.parse_schema(_ORDER)
    values = [_record(number, schema) for number in range(setup.records(RECORDS))]
    batches = [pa.record_batch({"value": values[at : at + _BATCH]}) for at in range(0, len(values), _BATCH)]
    decoding = ColumnDecoding("value", RegisteredSchema(1, AVRO, json.dumps(_ORDER)), RegistryAccess("http://none"))

    def ours() -> float:
        begun = time.perf_counter()
        for batch in batches:
            if decode_column(decoding, batch).causes:
                raise RuntimeError("a record was not decoded")
        return len(values) / (time.perf_counter() - begun)

    def peer() -> float:
        begun = time.perf_counter()
        for value in values:
            fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)
        return len(values) / (time.perf_counter() - begun)

    ours(), peer()
    yield ratio(
        "avro", "records/s", alternate(setup.runs, ours, peer), "records/s", Threshold(0.5, at_least=True),
        f"{len(values):,} records of {len(values[0])} bytes",
    )  # fmt: skip


def _record(number: int, schema: Any) -> bytes:
    stream = io.BytesIO()
    stream.write(b"\0\0\0\0\1")
    row = {
        "id": number, "customer": f"customer-{number % 1000}", "at": 1_700_000_000_000 + number, "total": number / 7,
        "note": None if number % 2 else "to be delivered by noon", "state": "PAID",
        "lines": [{"sku": f"sku-{number % 100}", "count": count} for count in range(3)],
    }  # fmt: skip
    fastavro.schemaless_writer(stream, schema, row)
    return stream.getvalue()
