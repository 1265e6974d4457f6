"""A query over an intake with a destroyed block: all its copies and Kafka's records are deleted."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable

from forebay.kafka.consume.range_reader import forget_consumers
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import RangeNotHeldError
from forebay.model.values import TopicPartition
from tests.pyspark_forebay.intake.test_queries import batch, holds, query, rows
from tests.pyspark_forebay.intake.test_queries import offsets as read
from tests.pyspark_forebay.test_with_spark import offsets, run
from tests.support.kafka.log_cut import log_to_cut
from tests.support.processes.cluster import Cluster
from tests.support.state.again import produce
from tests.support.state.destroyed import SETTINGS, destroy, hold_a_batch

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


def test_query_stops_at_a_loss_until_it_is_accepted_or_may_be_omitted(
    spark: Any,
    kafka_broker: KafkaBroker,
    topic_name: Callable[[], str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """INV-3, INV-5: each record that is left once, and the range as text, with the real command."""
    tp = TopicPartition(topic_name(), 0)
    kafka_broker.create_topic(tp.topic, 1)
    produce(kafka_broker.options, tp, 10)
    with Cluster(tmp_path, kafka_broker.options, [tp.topic], receivers=1, **SETTINGS) as cluster:
        cluster.await_completed({(tp.topic, 0): 10})
        given = {"startingOffsets": json.dumps({tp.topic: {"0": 10}})}
        frame = spark.readStream.format("forebay").options(tracker=cluster.driver_url, **given).load()
        with query(cluster) as holding:
            holding.latestOffset(holding.initialOffset(), ReadAllAvailable())
            hold_a_batch(cluster, tp)
            batch_id, lost = destroy(cluster, tp)
            left = [offset for offset in range(10, 31) if not lost.from_offset <= offset < lost.until_offset]
            with pytest.raises(StreamingQueryException) as stopped:
                run(frame, tmp_path / "query")
            assert lost.label in str(stopped.value) and 'failOnDataLoss" to "false"' in str(stopped.value)
            with caplog.at_level(logging.WARNING, "forebay.source"):
                assert read(batch(cluster, **given, failOnDataLoss="false")) == {0: left}
            assert lost.label in caplog.text and "continuing with the remaining records" in caplog.text

            arguments = (
                "recover",
                "--accept-loss",
                str(batch_id),
                lost.label,
                "--because",
                "the disk is lost",
                "--yes",
            )
            accepted = cluster.command(*arguments)
            assert accepted.returncode == 0, accepted
            with caplog.at_level(logging.WARNING, "forebay.source"):
                assert read(batch(cluster, **given)) == {0: left}
            assert f"{lost.label} was lost after it was taken in: " in caplog.text and "the disk is lost" in caplog.text
            run(frame, tmp_path / "query")
    assert offsets(spark.read.parquet(str(tmp_path / "query" / "out"))) == {0: left}


def test_query_notices_that_kafkas_log_was_cut_back_below_what_the_intake_took_in(
    own_kafka_broker: KafkaBroker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """INV-5: the blocks of the offsets are deleted, no receiver has noticed the cut, and the topic has the same id."""
    broker, tp = own_kafka_broker, TopicPartition(topic_name(), 0)
    older = log_to_cut(broker, tp, tmp_path / "older")
    wal = {"segment_size": "1KB", "cleanup_interval": "200ms"}
    with Cluster(tmp_path / "cluster", broker.options, [tp.topic], receivers=1, wal=wal) as cluster:
        cluster.await_completed({(tp.topic, 0): 100})
        produce(broker.options, tp, 1)  # so that the segment of the records before is sealed
        cluster.await_completed({(tp.topic, 0): 101})
        cluster.wait(lambda: holds(cluster, tp.topic, 0) >= 100, "the first records to be deleted")
        cluster.kill9("r1")
        older.cut_back()
        produce(broker.options, tp, 120, key=b"later")
        given = {"endingOffsets": json.dumps({tp.topic: {"0": 100}})}
        with pytest.raises(
            RangeNotHeldError, match=r"0\[0, 100\): Kafka's log was cut back to offset 80.*failOnDataLoss"
        ):
            rows(batch(cluster, **given))
        forget_consumers()
        found = rows(batch(cluster, **given, failOnDataLoss="false"))
        assert [(row["offset"], row["key"]) for row in found] == [(offset, b"kept") for offset in range(80)]
    forget_consumers()
