"""RDDs over exact offsets, with a real Spark and a real Kafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from direct import KafkaRecord, OffsetRange, PreferBrokers, PreferConsistent, PreferFixed, create_rdd
from direct.rdd.deserializers import BY_NAME, deserializer
from direct.rdd.locations import places
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import SettingsError, UsageError
from forebay.model.values import TopicPartition
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.run.pythons import bare_python
from tests.support.run.wheel import ROOT
from tests.support.state.again import produce

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

COUNTS = {0: 300, 1: 40, 2: 0}


@pytest.fixture(scope="module")
def topic(kafka_broker: KafkaBroker) -> str:
    """Three partitions with 300, 40 and no records."""
    name = f"rdd-of-three-{os.getpid()}-1"
    kafka_broker.create_topic(name, 3)
    for partition, count in COUNTS.items():
        produce(kafka_broker.options, TopicPartition(name, partition), count)
    return name


@pytest.fixture
def params(kafka_broker: KafkaBroker) -> dict[str, object]:
    return {**kafka_broker.options, "group.id": "g", "enable.auto.commit": True, "fetch.max.wait.ms": 100}


def whole(topic: str) -> list[OffsetRange]:
    return [OffsetRange(topic, partition, 0, count) for partition, count in COUNTS.items()]


def test_rdd_has_each_record_of_its_ranges_once_in_order(spark: Any, topic: str, params: dict[str, object]) -> None:
    ranges = [OffsetRange(topic, 0, 100, 250), OffsetRange(topic, 1, 0, 40), OffsetRange(topic, 2, 0, 0)]
    rdd = create_rdd(spark, params, ranges, value_deserializer="string")
    assert list(rdd.offset_ranges) == ranges
    assert rdd.getNumPartitions() == 2, "one of them is empty"
    found = rdd.collect()
    assert [(record.partition, record.offset) for record in found] == [
        *((0, offset) for offset in range(100, 250)),
        *((1, offset) for offset in range(40)),
    ]
    assert found[0] == KafkaRecord(b"k100", "value 100", topic, 0, 100, 1_700_000_000_100, 0)  # type: ignore[arg-type]
    assert rdd.map(lambda record: record.offset).sum() == sum(range(100, 250)) + sum(range(40))


def test_large_ranges_are_divided_into_more_partitions(spark: Any, topic: str, params: dict[str, object]) -> None:
    rdd = create_rdd(spark, params, whole(topic), min_partitions=5, headers=True)
    parts = rdd.glom().collect()
    assert [len(part) for part in parts] == [75, 75, 75, 75, 40]
    assert parts[1][0].headers == [("n", b"75")]
    batches = rdd.arrow().collect()
    assert sum(batch.num_rows for batch in batches) == 340
    assert batches[0].schema.names[-1] == "headers"


def test_count_and_is_empty_do_not_read_kafka(spark: Any, topic: str) -> None:
    unreachable: dict[str, object] = {"bootstrap.servers": "127.0.0.1:1"}
    rdd = create_rdd(spark, unreachable, whole(topic))
    assert (rdd.count(), rdd.isEmpty(), rdd.take(0)) == (340, False, [])
    assert rdd.countApprox(1) == 340
    for gaps_allowed in (False, True):
        empty = create_rdd(spark, unreachable, whole(topic)[2:], allow_offset_gaps=gaps_allowed)
        assert (empty.isEmpty(), empty.take(3), empty.collect()) == (True, [], [])
    assert empty.count() == 0


def test_take_reads_only_the_records_that_it_returns(spark: Any, topic: str, params: dict[str, object]) -> None:
    """Kafka no longer has the second range, so reading any of it would fail."""
    rdd = create_rdd(spark, params, [OffsetRange(topic, 0, 290, 300), OffsetRange(topic, 1, 1000, 2000)])
    assert [record.offset for record in rdd.take(4)] == [290, 291, 292, 293]
    assert rdd.first().offset == 290
    with pytest.raises(Exception, match=r"OutOfRangeError: .*/1\[1000, 1001\).* it holds offsets 0 to 40"):
        rdd.take(11)


def test_records_are_counted_if_offset_gaps_are_allowed(
    spark: Any, kafka_broker: KafkaBroker, params: dict[str, object], topic_name: Callable[[], str]
) -> None:
    tp = TopicPartition(topic_name(), 0)
    kafka_broker.create_topic(tp.topic, 1)
    producer = Producer({**kafka_broker.options, "transactional.id": tp.topic})
    producer.init_transactions(PATIENCE_SECONDS)
    for outcome in ("abort", "commit"):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(tp.topic, outcome.encode(), partition=0)
        producer.flush(PATIENCE_SECONDS)
        getattr(producer, f"{outcome}_transaction")(PATIENCE_SECONDS)
    log = [OffsetRange(tp.topic, 0, 0, 8)]
    rdd = create_rdd(spark, params, log, allow_offset_gaps=True)
    assert (rdd.count(), rdd.isEmpty()) == (3, False)
    assert [record.offset for record in rdd.take(8)] == [4, 5, 6]
    assert create_rdd(spark, params, [OffsetRange(tp.topic, 0, 0, 4)], allow_offset_gaps=True).isEmpty()
    with pytest.raises(Exception, match=r"OffsetGapError: .*/0\[0, 8\): from offset 0 on the next record is 4"):
        create_rdd(spark, params, log).collect()


def test_error_names_the_record_that_cannot_be_deserialized(spark: Any, topic: str, params: dict[str, object]) -> None:
    rdd = create_rdd(spark, params, [OffsetRange(topic, 1, 7, 9)], value_deserializer="json")
    with pytest.raises(Exception, match=rf"{topic}/1 offset 7: cannot deserialize the value: JSONDecodeError"):
        rdd.collect()


def test_spark_shows_no_password(spark: Any, topic: str, params: dict[str, object]) -> None:
    """Neither in a failed task, nor in the RDD's description and its debug string."""
    secret = {**params, "sasl.password": "s3cret", "sasl.username": "u"}
    rdd = create_rdd(spark, secret, [OffsetRange(topic, 1, 1000, 2000)])
    with pytest.raises(Exception, match="OutOfRangeError") as failed:
        rdd.collect()
    assert "s3cret" not in f"{failed.value} {rdd} {rdd.toDebugString()!r} {rdd._how}"


def test_invalid_parameters_are_refused_before_anything_runs(spark: Any, topic: str) -> None:
    for params, message in (
        ({}, "bootstrap.servers"),
        ({"bootstrap.servers": "b:1", "ssl.protocol": "TLS"}, "'ssl.protocol': refused"),
        ({"bootstrap.servers": "b:1", "no.such.thing": "1"}, "no.such.thing"),
    ):
        with pytest.raises(SettingsError, match=message):
            create_rdd(spark, params, whole(topic))
    with pytest.raises(UsageError, match=r"'group\.id': the value is a list: allowed are texts"):
        create_rdd(spark, {"bootstrap.servers": "b:1", "group.id": []}, whole(topic))
    with pytest.raises(UsageError, match=r"'kafka\.bootstrap\.servers': write 'bootstrap\.servers'"):
        create_rdd(spark, {"kafka.bootstrap.servers": "b:1"}, whole(topic))
    with pytest.raises(UsageError, match=r"\('t', 0, 0, 2\) is not an OffsetRange"):
        create_rdd(spark, {"bootstrap.servers": "b:1"}, [("t", 0, 0, 2)])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="value_deserializer: 'avro': allowed are bytes"):
        create_rdd(spark, {"bootstrap.servers": "b:1"}, whole(topic), value_deserializer="avro")


@pytest.mark.parametrize("strategy", [PreferConsistent(), PreferBrokers(), PreferFixed({})])
def test_location_strategy_does_not_change_the_records(
    spark: Any, topic: str, params: dict[str, object], strategy: Any
) -> None:
    rdd = create_rdd(spark, params, [OffsetRange(topic, 1, 0, 4)], strategy)
    assert [record.offset for record in rdd.collect()] == [0, 1, 2, 3]


# ---- decisions -------------------------------------------------------------------------------------------------------

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
RANGES = [OffsetRange("t", 0, 0, 5), OffsetRange("t", 1, 0, 5), OffsetRange("t", 0, 5, 9)]
EXECUTORS = [("h2", "1"), ("h1", "2"), ("h1", "0")]


def test_partition_prefers_the_same_executor_every_time() -> None:
    first = places(PreferConsistent(), RANGES, EXECUTORS, {})
    assert first == places(PreferConsistent(), RANGES, EXECUTORS[::-1], {})
    assert first[0] == first[2]
    assert all(place[0] in {f"executor_{host}_{name}" for host, name in EXECUTORS} for place in first)
    many = places(PreferConsistent(), [OffsetRange("t", number, 0, 1) for number in range(60)], EXECUTORS, {})
    assert len(set(many)) == 3
    assert places(PreferConsistent(), RANGES, [], {}) == [(), (), ()]


def test_hosts_without_an_executor_are_not_preferred() -> None:
    assert places(PreferBrokers(), RANGES, EXECUTORS, {A: "h1", B: "elsewhere"}) == [("h1",), (), ("h1",)]
    fixed = places(PreferFixed({A: "h2"}), RANGES, EXECUTORS, {})
    assert fixed[0] == fixed[2] == ("h2",)
    assert fixed[1] == places(PreferConsistent(), RANGES, EXECUTORS, {})[1]
    assert places(PreferFixed({A: "gone"}), RANGES, EXECUTORS, {})[0] == ()


@pytest.mark.parametrize(
    ("name", "data", "value"),
    [
        ("bytes", b"x", b"x"),
        ("string", "é".encode(), "é"),
        ("json", b'{"a": 1}', {"a": 1}),
        ("short", b"\x01\x02", 258),
        ("integer", b"\xff\xff\xff\xff", -1),
        ("long", b"\x00" * 7 + b"\x07", 7),
        ("float", b"\x3f\x80\x00\x00", 1.0),
        ("double", b"\x3f\xf0" + b"\x00" * 6, 1.0),
    ],
)
def test_named_deserializer_reads_the_bytes_of_javas_serializer(name: str, data: bytes, value: object) -> None:
    assert name in BY_NAME
    function = deserializer("value_deserializer", name)
    assert (function(data) if function else data) == value
    assert deserializer("k", "json:loads") is BY_NAME["json"]


_PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession
from direct import OffsetRange, create_rdd
session = (
    SparkSession.builder.master("local-cluster[1,1,512]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.executor.memory", "512m").config("spark.executorEnv.PYTHONPATH", "")
    .config("spark.executor.extraJavaOptions", os.environ["SPARK_SUBMIT_OPTS"]).getOrCreate()
)
session.sparkContext.setLogLevel("OFF")
rdd = create_rdd(session, json.loads(sys.argv[1]), [OffsetRange(sys.argv[2], 0, 100, 250)], value_deserializer="string")
print("RESULT", [record.offset for record in rdd.collect()] == list(range(100, 250)))
"""


@pytest.mark.long
def test_executors_without_this_project_receive_its_code(topic: str, params: dict[str, object], tmp_path: Path) -> None:
    """In a session of the user, without a stream, with a Python that has all other packages."""
    (tmp_path / "program.py").write_text(_PROGRAM)
    environment = {**os.environ, "PYSPARK_PYTHON": bare_python(tmp_path / "bare"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "program.py", json.dumps(params), topic],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "RESULT True" in done.stdout, done.stderr[-3000:]
