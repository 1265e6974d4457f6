"""Keys and values as columns, with a real schema registry, from records of confluent-kafka's own serializers."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from forebay.kafka.embedded.broker import KafkaBroker
from tests.pyspark_forebay.test_with_spark import run, source
from tests.support.kafka.registered import Writers, message_class, orders_file, send
from tests.support.servers.registry_front import RegistryFront
from tests.support.servers.token_endpoint import TokenEndpoint

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

SECRET = "s3cret-of-nobody"
NOON = datetime.datetime(2024, 2, 29, 12, 0, tzinfo=datetime.timezone.utc)
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "lines", "type": {"type": "array", "items": ["null", {"type": "map", "values": "int"}]}},
    ],
}
NEWER = {**ORDER, "fields": [*ORDER["fields"][:2], {"name": "note", "type": ["null", "string"], "default": None}]}


def order(number: int) -> dict[str, Any]:
    return {"id": number, "at": NOON, "price": decimal.Decimal(number) / 4, "lines": [{"a": number}, None]}


@pytest.fixture
def topic(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> str:
    name = topic_name()
    kafka_broker.create_topic(name, 2)
    return name


def test_avro_values_become_a_struct_and_other_columns_stay(
    spark: Any, kafka_broker: KafkaBroker, topic: str, writers: Writers
) -> None:
    """No secret of the registry is in the plan."""
    send(kafka_broker.options, topic, [*writers.avro(f"{topic}-value", ORDER, [order(1), order(2)]), None])
    more = {"schema.registry.url": writers.url, "schema.registry.basic.auth.user.info": f"reader:{SECRET}"}
    frame = source(spark.read, kafka_broker, topic, valueFormat="avro", **more).load()
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:struct<id:bigint,at:timestamp,price:decimal(9,2),lines:array<map<string,int>>>,topic:string,"
        "partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    rows = frame.orderBy("offset").collect()
    assert [row.value and row.value.asDict(True) for row in rows] == [
        {**order(number), "at": NOON.replace(tzinfo=None)} for number in (1, 2)
    ] + [None]
    assert frame.where("value.price > 0.3").select("offset").collect() == [(1,)]
    assert SECRET not in frame._jdf.queryExecution().toString()


def test_query_keeps_its_columns_when_writers_use_newer_schemas(
    spark: Any, kafka_broker: KafkaBroker, topic: str, writers: Writers, tmp_path: Path
) -> None:
    """Records of each schema get the reader's columns; a query that starts later has the newer ones."""
    send(kafka_broker.options, topic, writers.avro(f"{topic}-value", NEWER, [{"id": 1, "at": NOON, "note": "x"}]))
    more = {"schema.registry.url": writers.url, "valueFormat": "avro", "startingOffsets": "earliest"}
    frame = source(spark.readStream, kafka_broker, topic, **more).load()
    send(kafka_broker.options, topic, writers.avro(f"{topic}-value", ORDER, [order(2)]))
    run(frame.selectExpr("offset", "value.*"), tmp_path)
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
    assert [tuple(row) for row in found] == [
        (0, 1, NOON.replace(tzinfo=None), "x"),
        (1, 2, NOON.replace(tzinfo=None), None),
    ]
    later = source(spark.read, kafka_broker, topic, **more).load()
    assert "price" in later.schema["value"].dataType.fieldNames()
    pinned = source(spark.read, kafka_broker, topic, **more, valueSchemaVersion="1").load()
    assert pinned.schema["value"].dataType == frame.schema["value"].dataType


def test_protobuf_values_and_avro_keys_are_columns(
    spark: Any, kafka_broker: KafkaBroker, topic: str, writers: Writers
) -> None:
    made = message_class(orders_file(), "shop.Order")
    message = made(id=7, tags=["a", "b"], counts={"x": 1}, lines=[{"sku": "s", "count": 2**63}], state=1, cash=True)
    message.at.seconds = int(NOON.timestamp())
    (value,) = writers.protobuf(f"{topic}-value", [message])
    (key,) = writers.avro(f"{topic}-key", "string", ["the key"], field="key")
    from confluent_kafka import Producer

    producer = Producer(dict(kafka_broker.options))
    producer.produce(topic, key=key, value=value, partition=1)
    assert producer.flush(60) == 0
    more = {"schema.registry.url": writers.url, "valueFormat": "protobuf", "keyFormat": "avro"}
    (row,) = source(spark.read, kafka_broker, topic, **more).load().collect()
    assert row.key == "the key"
    assert row.value.asDict(True) == {
        "id": 7, "note": None, "at": NOON.replace(tzinfo=None), "tags": ["a", "b"], "counts": {"x": 1},
        "lines": [{"sku": "s", "count": decimal.Decimal(2**63)}], "state": "PAID", "card": None, "cash": True, "weight": None,
    }  # fmt: skip


def test_undecodable_record_fails_the_query_or_is_null_with_the_reason(
    spark: Any, kafka_broker: KafkaBroker, topic: str, writers: Writers, tmp_path: Path
) -> None:
    """The query continues from where it failed, so nothing is lost."""
    schema = {
        "title": "Visit",
        "type": "object",
        "properties": {"page": {"type": "string"}, "seconds": {"type": "number"}},
    }
    (good,) = writers.json(f"{topic}-value", schema, [{"page": "/", "seconds": 2}])
    send(kafka_broker.options, topic, [good, good[:5] + b'{"page": 5}', b"plain text", good])
    more = {"schema.registry.url": writers.url, "valueFormat": "json", "startingOffsets": "earliest"}
    strict = source(spark.readStream, kafka_broker, topic, **more).load()
    with pytest.raises(
        StreamingQueryException, match=rf"{topic}/0 offset 1: the record can't be decoded: value: schema \d+"
    ):
        run(strict.selectExpr("value.page", "offset"), tmp_path)
    loose = source(spark.readStream, kafka_broker, topic, **more, mode="PERMISSIVE").load()
    run(loose.selectExpr("value.page", "offset", "decodeError"), tmp_path)
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
    assert [(row.page, row.decodeError is None) for row in found] == [
        ("/", True),
        (None, False),
        (None, False),
        ("/", True),
    ]
    assert "Expected `str | null`, got `int` - at `$.page`" in found[1].decodeError
    assert "begins with the byte 0x70" in found[2].decodeError


def test_unsupported_schema_is_refused_when_the_query_is_created(
    spark: Any, kafka_broker: KafkaBroker, topic: str, writers: Writers
) -> None:
    tree = {"type": "record", "name": "Tree", "fields": [{"name": "left", "type": ["null", "Tree"]}]}
    writers.register(f"{topic}-value", tree)
    more = {"schema.registry.url": writers.url, "valueFormat": "avro"}
    with pytest.raises(Exception, match=rf"version 1 of {topic}-value\): left can't be a column: Tree is recursive"):
        source(spark.read, kafka_broker, topic, **more).load()
    with pytest.raises(Exception, match=f"has no subject '{topic}-key'"):
        source(spark.read, kafka_broker, topic, **more, keyFormat="avro").load()


def test_registry_requests_carry_oauth_tokens_and_nothing_shows_the_secret(
    spark: Any, kafka_broker: KafkaBroker, topic: str, writers: Writers
) -> None:
    """For planner and tasks. If the endpoint refuses the secret, Spark's own error says so."""
    send(kafka_broker.options, topic, writers.avro(f"{topic}-value", ORDER, [order(1), order(2)]))
    with (
        TokenEndpoint("reader", SECRET, "schemas") as endpoint,
        RegistryFront(writers.url, endpoint.holds) as front,
    ):
        own = {
            "bearer.auth.client.id": "reader", "bearer.auth.client.secret": SECRET, "bearer.auth.scope": "schemas",
            "bearer.auth.issuer.endpoint.url": endpoint.url,
        }  # fmt: skip
        more = {"schema.registry.url": front.url, "valueFormat": "avro"}
        more |= {f"schema.registry.{name}": value for name, value in own.items()}
        frame = source(spark.read, kafka_broker, topic, **more).load()
        assert [row.id for row in frame.selectExpr("value.id").orderBy("id").collect()] == [1, 2]
        assert SECRET not in frame._jdf.queryExecution().toString()
        given, asked = len(endpoint.given), len(front.asked)
        wrong = {**more, "schema.registry.bearer.auth.client.secret": f"not-{SECRET}"}
        with pytest.raises(
            Exception, match=r"the token endpoint http://\S+/token of the .* refused a token: invalid_client"
        ) as no:
            source(spark.read, kafka_broker, topic, **wrong).load().collect()
        assert SECRET not in str(no.value)
        assert (len(endpoint.given), len(front.asked)) == (given, asked), (
            "no request to the registry was without a token"
        )
