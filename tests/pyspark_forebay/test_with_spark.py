"""``format("forebay")`` as Spark's users write it, on a real Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from pyspark_forebay.progress import offsets_behind_latest
from tests.support.spark import planners
from tests.support.state.again import produce

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

SECRET = "s3cret-of-nobody"


def source(reader: Any, broker: KafkaBroker, topic: str, **more: str) -> Any:
    """``reader``: ``spark.read`` or ``spark.readStream``."""
    reader = reader.format("forebay").option("kafka.bootstrap.servers", broker.options["bootstrap.servers"])
    return reader.option("subscribe", topic).options(**more)


def offsets(frame: Any) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in frame.select("partition", "offset").orderBy("partition", "offset").collect():
        found.setdefault(row.partition, []).append(row.offset)
    return found


def to_its_end(writer: Any, *path: str) -> Any:
    """The query, ended: all that is there is read."""

    def run_once() -> Any:
        query = writer.trigger(availableNow=True).start(*path)
        query.awaitTermination()
        return query

    return planners.started(run_once)


def run(frame: Any, folder: Path) -> Any:
    """:func:`to_its_end` into Parquet files."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return to_its_end(writer, str(folder / "out"))


def test_spark_finds_the_source_without_registration_with_its_own_schema(
    spark: Any, kafka_broker: KafkaBroker, topic: str
) -> None:
    """It runs with more tasks than partitions, and no secret is in its plan."""
    more = {"MINPARTITIONS": "4", "includeHeaders": "true", "kafka.sasl.password": SECRET}
    frame = source(spark.read, kafka_broker, topic, **more).load()
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    assert frame.rdd.getNumPartitions() == 4
    assert offsets(frame) == {0: list(range(10)), 1: list(range(5))}
    row = frame.where("partition = 1 and offset = 3").first()
    assert (row.value, row.key, row.topic, row.timestampType) == (b"value 3", b"k3", topic, 0)
    assert [(header.key, header.value) for header in row.headers] == [("n", b"3")]
    assert SECRET not in frame._jdf.queryExecution().toString()


def test_rows_have_only_the_columns_of_the_option_columns(spark: Any, kafka_broker: KafkaBroker, topic: str) -> None:
    chosen = source(spark.read, kafka_broker, topic, columns="offset,value,headers", includeHeaders="true").load()
    assert chosen.schema.simpleString() == (
        "struct<offset:bigint,value:binary,headers:array<struct<key:string,value:binary>>>"
    )
    whole = source(spark.read, kafka_broker, topic, includeHeaders="true").load().select("offset", "value", "headers")
    assert sorted(chosen.collect()) == sorted(whole.collect())
    with pytest.raises(Exception, match="no column size"):
        source(spark.read, kafka_broker, topic, columns="size").load()


def test_refusal_names_the_reason_and_no_secret(
    spark: Any, kafka_broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    bad = {"kafka.auto.offset.reset": "latest", "kafka.sasl.password": SECRET}
    with pytest.raises(Exception, match="set the option startingOffsets") as caught:
        source(spark.read, kafka_broker, topic, **bad).load()
    assert SECRET not in str(caught.value)
    frame = source(spark.readStream, kafka_broker, topic, endingOffsets="latest").load()
    with pytest.raises(Exception, match="ending offset not valid in streaming queries") as caught:
        to_its_end(frame.writeStream.format("noop"))
    assert "UnboundLocalError" not in str(caught.value)
    updated = source(spark.readStream, kafka_broker, topic).load().writeStream.format("forebay").outputMode("update")
    with pytest.raises(Exception, match="forebay does not support Update mode"):
        to_its_end(updated.option("checkpointLocation", str(tmp_path)))
    with pytest.raises(Exception, match="forebay does not support continuous"):
        frame.writeStream.format("noop").trigger(continuous="1 second").start().awaitTermination()


def test_query_started_at_latest_misses_nothing_after_an_idle_stop(
    spark: Any, kafka_broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    frame = source(spark.readStream, kafka_broker, topic, maxOffsetsPerTrigger="4").load()
    run(frame, tmp_path)
    (entry,) = [path for path in (tmp_path / "checkpoint" / "offsets").iterdir() if path.name == "0"]
    written = json.loads(entry.read_text().splitlines()[-1])
    assert written[topic] == written["#start"][topic] == {"0": 10, "1": 5}
    produce(kafka_broker.options, TopicPartition(topic, 0), 6)
    query = run(frame, tmp_path)
    assert offsets(spark.read.parquet(str(tmp_path / "out"))) == {0: list(range(10, 16))}
    (progress,) = query.recentProgress[0].sources
    assert json.loads(progress.latestOffset) == {topic: {"0": 16, "1": 5}}
    assert offsets_behind_latest(progress) == {
        "minOffsetsBehindLatest": "0", "maxOffsetsBehindLatest": "2", "avgOffsetsBehindLatest": "1.0",
    }  # fmt: skip


def test_failed_first_batch_runs_again_from_the_same_start(
    spark: Any, kafka_broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """Spark asks for the start again, and "latest" and the first offset have changed by then."""
    checkpoint = str(tmp_path / "checkpoint")
    seen: list[dict[int, list[int]]] = []

    def job(frame: Any, batch: int) -> None:
        seen.append(offsets(frame))
        if len(seen) == 1:
            raise RuntimeError("the job failed")

    def start(**more: str) -> None:
        frame = source(spark.readStream, kafka_broker, topic, **more).load()
        to_its_end(frame.writeStream.foreachBatch(job).option("checkpointLocation", checkpoint))

    with pytest.raises(Exception, match="the job failed"):
        start(startingOffsets=json.dumps({topic: {"0": 4, "1": 2}}))
    produce(kafka_broker.options, TopicPartition(topic, 1), 3)
    with KafkaAdmin(kafka_broker.options) as admin:
        admin.delete_records({TopicPartition(topic, 0): 4})
    start(startingOffsets="latest")
    assert seen == [{0: [4, 5, 6, 7, 8, 9], 1: [2, 3, 4]}] * 2 + [{1: [5, 6, 7]}]


def test_error_of_lost_offsets_names_the_range(
    spark: Any, kafka_broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """INV-5: the first run reads nothing, so no worker keeps a consumer that already has them."""
    run(source(spark.readStream, kafka_broker, topic).load(), tmp_path)
    produce(kafka_broker.options, TopicPartition(topic, 0), 4)
    with KafkaAdmin(kafka_broker.options) as admin:
        admin.delete_records({TopicPartition(topic, 0): 12})
    with pytest.raises(Exception, match=r"/0\[10, 14\).*it holds offsets 12 to 14"):
        run(source(spark.readStream, kafka_broker, topic).load(), tmp_path)
    run(source(spark.readStream, kafka_broker, topic, failOnDataLoss="false").load(), tmp_path)
    assert offsets(spark.read.parquet(str(tmp_path / "out"))) == {0: [12, 13]}


def test_complete_output_is_appended_to_a_topic(
    spark: Any, kafka_broker: KafkaBroker, topic: str, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """Words of one topic are counted into another, in the output mode complete."""
    into = topic_name()
    kafka_broker.create_topic(into, 1)
    records = source(spark.readStream, kafka_broker, topic, startingOffsets="earliest").load()
    counted = records.selectExpr("explode(split(cast(value as string), ' ')) as key").groupBy("key").count()
    rows = counted.where("count > 2").selectExpr("key", "cast(count as string) as value")
    writer = rows.writeStream.format("forebay").outputMode("complete").option("topic", into)
    writer = writer.option("kafka.bootstrap.servers", kafka_broker.options["bootstrap.servers"])
    to_its_end(writer.option("checkpointLocation", str(tmp_path)))
    found = source(spark.read, kafka_broker, into).load().selectExpr("cast(key as string)", "cast(value as string)")
    assert found.collect() == [("value", "15")]
