"""The options that select the schemas of keys and values."""

from __future__ import annotations

import pytest

from forebay.kafka.registry.client import AVRO, PROTOBUF, RegistryAccess
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from forebay.schemas.decoder import ReaderSchema
from pyspark_forebay.decoding import _access, _reader, find_decoding
from pyspark_forebay.options.source import read_options
from pyspark_forebay.options.subscription import Subscription

URL = {"schema.registry.url": "http://r"}
ORDERS = Subscription(topics=("orders",))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ReaderSchema(AVRO, "orders-value")),
        (
            {"subjectnamestrategy": "Record", "valuerecord": "shop.Order"},
            ReaderSchema(AVRO, "shop.Order", message="shop.Order"),
        ),
        (
            {"subjectnamestrategy": "topicRecord", "valuerecord": "shop.Order"},
            ReaderSchema(AVRO, "orders-shop.Order", message="shop.Order"),
        ),
        ({"valuesubject": "any", "valueschemaversion": "3"}, ReaderSchema(AVRO, "any", 3)),
        ({"valueschemaversion": " Latest "}, ReaderSchema(AVRO, "orders-value")),
        ({"valueschemaid": "0", "valuesubject": "any"}, ReaderSchema(AVRO, number=0)),
    ],
)
def test_options_select_the_subject_and_version_of_a_column(options: dict[str, str], expected: ReaderSchema) -> None:
    assert _reader("value", AVRO, options, ORDERS) == expected


def test_key_has_its_own_subject_and_assigned_partitions_of_one_topic_have_one() -> None:
    assigned = Subscription(partitions=frozenset({TopicPartition("orders", 0), TopicPartition("orders", 1)}))
    assert _reader("key", PROTOBUF, {"keyrecord": "K"}, assigned) == ReaderSchema(PROTOBUF, "orders-key", message="K")


@pytest.mark.parametrize(
    "subscription", [Subscription(topics=("a", "b")), Subscription(pattern="a.*"), Subscription()], ids=str
)
def test_subject_must_be_named_for_several_topics(subscription: Subscription) -> None:
    with pytest.raises(UsageError, match=r"set the option valueSubject or valueSchemaId"):
        _reader("value", AVRO, {}, subscription)
    assert _reader("value", AVRO, {"valuesubject": "s"}, subscription).subject == "s"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"valueformat": "xml", **URL}, "option valueFormat: 'xml': allowed are avro, json, protobuf"),
        ({"valueformat": "avro", **URL, "mode": "DROPMALFORMED"}, "option mode: 'dropmalformed': allowed are FAILFAST"),
        ({"valueformat": "avro"}, "option schema.registry.url must say where the schema registry is"),
        (
            {"valueformat": "avro", **URL, "schema.registry.ssl.truststore.location": "x"},
            "ssl.truststore.location is not known",
        ),
        ({"valueformat": "avro", **URL, "schema.registry.retries": "-1"}, "schema.registry.retries: '-1': allowed"),
        ({"valueformat": "avro", **URL, "subjectnamestrategy": "x"}, "allowed are topic, record, topicRecord"),
        ({"keyformat": "avro", **URL, "subjectnamestrategy": "record"}, "needs the option keyRecord"),
        ({"valueformat": "avro", **URL, "valueschemaversion": "0"}, "option valueSchemaVersion: '0': allowed"),
        ({"valueformat": "avro", **URL, "valueschemaid": "x"}, "option valueSchemaId: 'x': allowed"),
    ],
)
def test_invalid_options_are_refused_before_the_registry_is_asked(options: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        find_decoding(options, ORDERS, False)


def test_options_configure_the_registry_client() -> None:
    options = {
        **URL,
        "schema.registry.timeout.ms": "500",
        "schema.registry.retries": "0",
        "schema.registry.proxy": "http://p",
    }
    assert _access(options) == RegistryAccess("http://r", (("proxy", "http://p"),), 0.5, 1)
    assert _access(URL) == RegistryAccess("http://r", (), 10.0, 6)
    assert find_decoding(URL, ORDERS, False) is None


def test_registry_options_without_a_format_log_a_warning() -> None:
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "orders", "Schema.Registry.URL": "http://r"}
    warnings = read_options(given, streaming=True).warnings
    assert warnings == ("option schema.registry.url is ignored without keyFormat or valueFormat",)
