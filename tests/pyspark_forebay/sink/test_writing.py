"""Rows written to a real Kafka by the writer that Spark's tasks call, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.produce import sender
from forebay.kafka.produce.sender import send_rows
from forebay.model.errors import ForebayError, UnreachableError, UsageError
from pyspark_forebay import DefaultSource
from pyspark_forebay.kafka.batch import BatchReader
from pyspark_forebay.schema import spark_schema
from pyspark_forebay.sink.writers import AtLeastOnceWriter, writer_of
from tests.support.state.columns import schema_of

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t"}
VALUE = StructType([StructField("value", StringType())])
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.parametrize(
    ("options", "schema", "word"),
    [
        ({"topic": ""}, VALUE, "option topic"),
        ({}, StructType().add("key", StringType()), "the column value is missing"),
        ({}, StructType().add("value", LongType()), "column value is bigint: allowed are string or binary"),
        ({}, StructType([*VALUE, StructField("headers", StringType())]), "column headers is string"),
        ({}, StructType().add("value", BinaryType()).add("partition", LongType()), "column partition is bigint"),
        ({"kafka.key.serializer": "x"}, VALUE, "key.serializer is not supported"),
        ({"kafka.transactional.id": "x"}, VALUE, "transactional.id is not supported"),
        ({"kafka.bootstrap.servers": ""}, VALUE, "kafka.bootstrap.servers"),
    ],
)
def test_options_and_columns_that_sparks_sink_refuses_are_refused(
    options: dict[str, str], schema: StructType, word: str
) -> None:
    with pytest.raises(UsageError) as caught:
        writer_of({**BASE, **options}, schema, streaming=True)
    assert word in str(caught.value)


def test_overwrite_is_refused_and_complete_output_is_appended() -> None:
    source: Any = DefaultSource(BASE)
    with pytest.raises(UsageError, match="overwrite is not allowed"):
        source.writer(VALUE, True)
    assert isinstance(source.streamWriter(VALUE, True), AtLeastOnceWriter)


def read(broker: KafkaBroker, pattern: str) -> list[tuple[Any, ...]]:
    reader = BatchReader({
        "kafka.bootstrap.servers": broker.options["bootstrap.servers"], "subscribePattern": pattern,
        "includeHeaders": "true",
    })  # fmt: skip
    return sorted(
        (row["topic"], row["partition"], row["key"], row["value"], row["headers"])
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    )


@pytest.mark.kafka
def test_rows_are_written_where_their_columns_say(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> None:
    first, second = (topic_name() for _ in range(2))
    for name in (first, second):
        kafka_broker.create_topic(name, 2)
    schema = spark_schema(True)
    columns = schema_of(key=pa.string(), value=pa.binary(), topic=pa.string(), partition=pa.int32(), headers=HEADERS)
    rows: list[dict[str, Any]] = [
        {"key": "k", "value": None, "topic": first, "partition": 1, "headers": None},
        {"key": None, "value": b"v", "topic": second, "partition": 0, "headers": [{"key": "h", "value": None}]},
    ]
    batch = pa.RecordBatch.from_pylist(rows, columns)
    options = {"kafka.bootstrap.servers": kafka_broker.options["bootstrap.servers"], "kafka.acks": "1"}
    writer_of(options, schema, streaming=True).write(iter([batch]))
    expected = [(first, 1, b"k", None, None), (second, 0, None, b"v", [{"key": "h", "value": None}])]
    assert read(kafka_broker, f"{first}|{second}") == sorted(expected)
    writer_of({**options, "TOPIC": first}, schema, streaming=True).write(iter([batch.slice(1)]))
    assert (first, 0, None, b"v", [{"key": "h", "value": None}]) in read(kafka_broker, first)
    for header in (None, {"key": None, "value": b"x"}):
        wrong = pa.RecordBatch.from_pylist([{**rows[1], "headers": [header]}], columns)
        with pytest.raises(UsageError, match="null header, or header without a key"):
            writer_of(options, schema, streaming=True).write(iter([wrong]))


@pytest.mark.kafka
def test_refused_record_fails_the_task(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> None:
    """A missing partition, a value that is too large, a missing topic: each is an error."""
    topic = topic_name()
    with KafkaAdmin(kafka_broker.options) as admin:
        admin.create_topic(topic, 1, {"max.message.bytes": "1000"})
    schema = StructType().add("value", StringType()).add("partition", IntegerType()).add("topic", StringType())
    columns = schema_of(value=pa.string(), partition=pa.int32(), topic=pa.string())
    options = {
        "kafka.bootstrap.servers": kafka_broker.options["bootstrap.servers"], "kafka.message.timeout.ms": "5000",
    }  # fmt: skip
    for row, word in (
        ({"value": "v", "partition": 7, "topic": topic}, "artition"),
        ({"value": "v" * 5_000, "partition": 0, "topic": topic}, "Message size too large"),
        ({"value": "v", "partition": None, "topic": None}, "null topic"),
    ):
        with pytest.raises(ForebayError, match=word):
            writer_of(options, schema, streaming=True).write(iter([pa.RecordBatch.from_pylist([row], columns)]))


@pytest.mark.parametrize(
    "options", [{"kafka.message.timeout.ms": "500"}, {"transactional": "true", "kafka.transaction.timeout.ms": "1000"}]
)
def test_error_names_unavailable_brokers(options: dict[str, str]) -> None:
    writer = writer_of({**BASE, "kafka.bootstrap.servers": "127.0.0.1:1", **options}, VALUE, streaming=False)
    with pytest.raises(UnreachableError, match=r"Kafka at 127\.0\.0\.1:1: topic t"):
        writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"value": ["v"]})]))])


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, 65.0),
        ({"delivery.timeout.ms": "5000"}, 10.0),
        ({"message.timeout.ms": "300000"}, 305.0),
        ({"delivery.timeout.ms": "0"}, -1),  # without a limit
    ],
)
def test_writer_waits_for_acknowledgements_up_to_the_delivery_timeout(
    given: dict[str, str], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    class Client:
        def __init__(self, options: dict[str, Any], logger: object) -> None:
            assert "message.timeout.ms" not in options, "two names of one setting"

        def flush(self, timeout: float) -> int:
            waited.append(timeout)
            return 0

    monkeypatch.setattr(sender, "Producer", Client)
    send_rows({"bootstrap.servers": "127.0.0.1:9", **given}, "t", [])
    assert waited == [seconds]
