"""``format("forebay")`` in a session of Spark Connect: reading, writing, and queries over an intake."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from direct import StreamSettings, Subscribe, create_direct_stream, create_rdd
from driver import IngestContext
from forebay.kafka.embedded.broker import KafkaBroker, MockBroker
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from pyspark_forebay.progress import kafka_progress
from tests.pyspark_forebay.test_with_spark import SECRET, offsets, run, source, to_its_end
from tests.support.kafka.polling import committed_values
from tests.support.processes.cluster import Cluster
from tests.support.processes.running_driver import local_settings
from tests.support.state.again import produce

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def connect(spark: Any) -> Iterator[Any]:
    """A client's session, of a Spark Connect server in the JVM of ``spark``."""
    from pyspark.sql.connect.session import SparkSession

    service = getattr(getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    service.start(spark._jsc.sc())
    session = SparkSession.builder.remote(f"sc://127.0.0.1:{service.localPort()}").create()
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session.stop()
        none = spark._jvm.scala.Option.empty()
        service.stop(none, none)


def test_query_over_connect_reads_as_any_other_and_its_checkpoint_continues_without_connect(
    connect: Any, spark: Any, kafka_broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    frame = source(connect.read, kafka_broker, topic, includeHeaders="true").load()
    assert offsets(frame) == {0: list(range(10)), 1: list(range(5))}
    assert frame.where("partition = 1 and offset = 3").first().headers[0].value == b"3"
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "6"}
    query = run(source(connect.readStream, kafka_broker, topic, **options).load(), tmp_path)
    assert offsets(connect.read.parquet(str(tmp_path / "out"))) == {0: list(range(10)), 1: list(range(5))}
    (first,) = kafka_progress(query.recentProgress[0])["sources"]
    assert (first["endOffset"], first["latestOffset"]) == ({topic: {"0": 4, "1": 2}}, {topic: {"0": 10, "1": 5}})
    assert first["metrics"] == {
        "minOffsetsBehindLatest": "3", "maxOffsetsBehindLatest": "6", "avgOffsetsBehindLatest": "4.5",
    }  # fmt: skip
    produce(kafka_broker.options, TopicPartition(topic, 0), 2)
    run(source(spark.readStream, kafka_broker, topic).load(), tmp_path)
    assert offsets(spark.read.parquet(str(tmp_path / "out"))) == {0: list(range(12)), 1: list(range(5))}


def test_refusal_reaches_the_client_with_its_reason_and_no_secret(
    connect: Any, kafka_broker: KafkaBroker, topic: str
) -> None:
    bad = {"kafka.auto.offset.reset": "latest", "kafka.sasl.password": SECRET}
    with pytest.raises(Exception, match="set the option startingOffsets") as caught:
        source(connect.read, kafka_broker, topic, **bad).load().collect()
    assert SECRET not in str(caught.value)
    frame = source(connect.readStream, kafka_broker, topic, endingOffsets="latest").load()
    with pytest.raises(Exception, match="ending offset not valid in streaming queries"):
        to_its_end(frame.writeStream.format("noop"))


def test_each_batch_is_written_once_over_connect(
    connect: Any, kafka_broker: KafkaBroker, topic: str, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """Spark runs the last batch again, whose entry is missing in the checkpoint as after a kill."""
    once, each = topic_name(), topic_name()
    for name in (once, each):
        kafka_broker.create_topic(name, 1)
    servers = kafka_broker.options["bootstrap.servers"]
    frame = source(connect.readStream, kafka_broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger="9").load()
    rows = frame.selectExpr("concat(partition, ' ', offset) as value").writeStream.format("forebay")
    rows = rows.option("kafka.bootstrap.servers", servers).option("topic", once).option("groupIdPrefix", once)
    checkpoint = tmp_path / "checkpoint"
    rows = rows.option("transactional", "true").option("checkpointLocation", str(checkpoint))
    to_its_end(rows)
    expected = sorted(b"%d %d" % (partition, offset) for partition, end in ((0, 10), (1, 5)) for offset in range(end))
    assert sorted(committed_values(kafka_broker, once, 1)) == expected
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    for path in (checkpoint / "commits").glob(f"*{last}*"):
        path.unlink()
    again = to_its_end(rows)
    assert again.recentProgress[0].batchId == last
    assert sorted(committed_values(kafka_broker, once, 1)) == expected

    def write(frame: Any, batch: int) -> None:
        to = frame.select("key", "value").write.format("forebay").option("kafka.bootstrap.servers", servers)
        to.option("topic", each).mode("append").save()

    to_its_end(frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "each")))
    assert offsets(source(connect.read, kafka_broker, each).load()) == {0: list(range(15))}


def test_queries_over_an_intake_through_connect(
    connect: Any, kafka_broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    with Cluster(tmp_path, kafka_broker.options, [topic], receivers=1) as cluster:
        cluster.await_completed({(topic, 0): 10, (topic, 1): 5})
        options = {"tracker": cluster.driver_url, "startingOffsets": "earliest"}
        assert offsets(connect.read.format("forebay").options(**options).load()) == {0: [*range(10)], 1: [*range(5)]}
        stream = connect.readStream.format("forebay").options(**options).load()
        run(stream, tmp_path / "query")
        produce(kafka_broker.options, TopicPartition(topic, 0), 6)
        cluster.await_completed({(topic, 0): 16})
        query = run(stream, tmp_path / "query")
        assert offsets(connect.read.parquet(str(tmp_path / "query" / "out"))) == {0: [*range(16)], 1: [*range(5)]}
        (last,) = kafka_progress(query.recentProgress[0])["sources"]
        assert last["endOffset"] == {topic: {"0": 16, "1": 5}}
        (entry,) = (tmp_path / "query" / "checkpoint" / "offsets").glob("0")
        assert json.loads(entry.read_text().splitlines()[-1])["#cursor"].startswith("query-")


def test_jobs_refuse_a_session_of_connect_with_the_reason(
    connect: Any, mock_broker: MockBroker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    reason = 'belongs to Spark Connect: it has no SparkContext.*format\\("forebay"\\) with the option tracker'
    params = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}
    with pytest.raises(UsageError, match=reason):
        IngestContext(connect, local_settings(tmp_path, mock_broker, topic_name()))
    with pytest.raises(UsageError, match=reason):
        create_direct_stream(connect, params, Subscribe(["t"]), StreamSettings("s", tmp_path.as_uri()))
    with pytest.raises(UsageError, match=reason):
        create_rdd(connect, params, [])
