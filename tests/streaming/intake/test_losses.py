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

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from tests.streaming.intake.test_queries import batch, query
from tests.streaming.intake.test_queries import offsets as read
from tests.streaming.test_with_spark import offsets, run
from tests.support.again import produce
from tests.support.cluster import Cluster
from tests.support.destroyed import SETTINGS, destroy, hold_a_batch

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

            words = ("recover", "--accept-loss", str(batch_id), lost.label, "--because", "the disk is lost", "--yes")
            accepted = cluster.command(*words)
            assert accepted.returncode == 0, accepted
            with caplog.at_level(logging.WARNING, "forebay.source"):
                assert read(batch(cluster, **given)) == {0: left}
            assert f"{lost.label} was lost after it was taken in: " in caplog.text and "the disk is lost" in caplog.text
            run(frame, tmp_path / "query")
    assert offsets(spark.read.parquet(str(tmp_path / "query" / "out"))) == {0: left}
