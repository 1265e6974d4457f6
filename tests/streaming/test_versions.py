"""An intake with Spark, a query, the sink and a streaming query, as far as this release of pyspark has them.

``make test-matrix`` runs it with each release of Python, pyspark and confluent-kafka that pyproject.toml claims.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest

from driver import IngestContext
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.settings.load import load
from tests.integration.test_kafka_mistakes import configured, receiver
from tests.support import planners
from tests.support.kafka import PATIENCE_SECONDS

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

RELEASE = tuple(map(int, pyspark.__version__.split(".")[:2]))


def test_intake_queries_and_sink_work_with_this_release(
    spark: Any, kafka_broker: KafkaBroker, topic: str, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    config = configured(tmp_path, kafka_broker.options, topic, topic)
    found: list[tuple[int, int]] = []
    arrived = threading.Condition()

    def job(batch: Any) -> None:
        rows = [(row.partition, row.offset) for row in batch.df.select("partition", "offset").collect()]
        with arrived:
            found.extend(rows)
            arrived.notify_all()

    expected = [(0, offset) for offset in range(10)] + [(1, offset) for offset in range(5)]
    with IngestContext(spark, load(config)).foreach_batch(job):
        running = receiver(load(config))
        with arrived:
            assert arrived.wait_for(lambda: len(found) >= len(expected), PATIENCE_SECONDS), found
        running.service.drain()
        assert running.ended() == 0
    assert sorted(found) == expected

    options = {"kafka.bootstrap.servers": kafka_broker.options["bootstrap.servers"], "subscribe": topic}
    frame = spark.read.format("forebay").options(**options).load()
    assert sorted((row.partition, row.offset) for row in frame.collect()) == expected
    if RELEASE >= (4, 1):
        target = topic_name()
        kafka_broker.create_topic(target, 1)
        sink = frame.select("key", "value").write.format("forebay").mode("append")
        sink.options(**{**options, "topic": target}).save()
        copied = spark.read.format("forebay").options(**{**options, "subscribe": target}).load()
        assert sorted(row.value for row in copied.collect()) == sorted(row.value for row in frame.collect())
    stream = spark.readStream.format("forebay").options(startingOffsets="earliest", **options).load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))

    def run() -> None:
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()

    if RELEASE >= (4, 2):
        planners.started(run)
        assert spark.read.parquet(str(tmp_path / "out")).count() == len(expected)
    else:
        with pytest.raises(Exception, match=r"streaming queries need PySpark 4\.2 or newer"):
            planners.started(run)
