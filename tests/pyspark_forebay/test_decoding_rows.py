"""Decoded rows of the source's readers. No registry is asked for the reader's schema."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from forebay.kafka.registry.client import AVRO, RegisteredSchema, RegistryAccess
from forebay.model.errors import RecordError
from forebay.model.records import DATAFRAME_SCHEMA
from forebay.schemas.columns import ColumnDecoding
from pyspark_forebay.decoding import Decoding
from pyspark_forebay.intake import batch as intake_batch
from pyspark_forebay.intake import stream as intake_stream
from pyspark_forebay.kafka import batch, stream
from pyspark_forebay.kafka import reading as reading_of_tasks
from pyspark_forebay.schema import spark_schema

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
SECRET = "s3cret-of-nobody"
GOOD, BAD = b"\0\0\0\0\1\2x", b"\0\0\0\0\1\4x"
KAFKA = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
INTAKE = {"tracker": "http://driver:1"}


def new_id() -> str:
    return "q"


def decoding(permissive: bool = False, headers: bool = False) -> Decoding:
    access = RegistryAccess("http://none", (("basic.auth.user.info", f"u:{SECRET}"),))
    columns = tuple(
        ColumnDecoding(name, RegisteredSchema(1, AVRO, json.dumps(SCHEMA)), access) for name in ("key", "value")
    )
    return Decoding(columns, permissive, headers)


def rows(*pairs: tuple[bytes | None, bytes | None]) -> pa.RecordBatch:
    made = [
        {
            "key": key,
            "value": value,
            "topic": "t",
            "partition": 3,
            "offset": 7 + number,
            "timestamp": 0,
            "timestampType": 0,
        }
        for number, (key, value) in enumerate(pairs)
    ]
    return pa.RecordBatch.from_pylist(made, schema=DATAFRAME_SCHEMA(True))


@pytest.mark.parametrize(
    ("module", "reading", "make"),
    [
        (reading_of_tasks, "read_span", lambda own: batch.BatchReader(KAFKA, own)),
        (reading_of_tasks, "read_span", lambda own: stream.StreamReader(KAFKA, decoding=own)),
        (intake_batch, "read_task", lambda own: intake_batch.IntakeBatchReader(INTAKE, own)),
        (intake_stream, "read_task", lambda own: intake_stream.IntakeStreamReader(INTAKE, new_id=new_id, decoding=own)),
    ],
    ids=["batch", "stream", "intake batch", "intake stream"],
)
def test_each_reader_decodes_rows_that_its_tasks_read_with_headers(
    module: Any, reading: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def read(options: Any, _: Any) -> Any:
        asked.append(options.include_headers)
        return iter([rows((None, GOOD))])

    monkeypatch.setattr(module, reading, read)
    reader = pickle.loads(pickle.dumps(make(decoding())))
    (made,) = reader.read(InputPartition(["any"]))
    assert asked == [True]
    assert made.schema.names == spark_schema(False).names
    assert made.to_pylist()[0]["value"] == {"a": "x"} and made.to_pylist()[0]["key"] is None
    (plain,) = make(None).read(InputPartition(["any"]))
    assert asked == [True, False] and plain.column("value")[0].as_py() == GOOD


def test_undecodable_record_is_named_or_null_with_both_causes() -> None:
    given = rows((None, GOOD), (BAD, b"junk"), (GOOD, None))
    with pytest.raises(
        RecordError, match=r"t/3 offset 8: the record can't be decoded: key: schema 1: .*; value: its 4 bytes"
    ):
        list(decoding().decoded(iter([rows((None, GOOD), (BAD, b"junk"), (GOOD, None), (BAD, None))])))
    (made,) = decoding(permissive=True, headers=True).decoded(iter([given]))
    assert made.schema.names == spark_schema(True, decoding(permissive=True)).names
    found = made.to_pylist()
    assert [(row["key"], row["value"]) for row in found] == [(None, {"a": "x"}), (None, None), ({"a": "x"}, None)]
    assert [row["decodeError"] is None for row in found] == [True, False, True]
    assert (
        found[1]["decodeError"].startswith("key: schema 1: ")
        and "; value: its 4 bytes have no schema number" in found[1]["decodeError"]
    )


def test_repr_shows_no_secret_of_the_registry() -> None:
    assert SECRET not in repr(decoding()) + repr(batch.BatchReader(KAFKA, decoding())._options)
