"""The word count example has the same counts in both styles."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from deploy.examples.word_count import direct_stream, structured
from forebay.kafka.embedded.broker import KafkaBroker
from tests.pyspark_forebay.test_with_spark import to_its_end
from tests.support.kafka.polling import PATIENCE_SECONDS

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

LINES = ("hello owen", "hello lemon", "byebye", "", "hello  again")
COUNTS = {"hello": 3, "owen": 1, "lemon": 1, "byebye": 1, "again": 1}


@pytest.fixture
def lines(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> str:
    topic = topic_name()
    kafka_broker.create_topic(topic, 2)
    producer = Producer(kafka_broker.options)
    for number, line in enumerate(LINES):
        producer.produce(topic, line.encode(), partition=number % 2)
    assert producer.flush(PATIENCE_SECONDS) == 0
    return topic


def test_structured_streaming_has_the_counts(spark: Any, kafka_broker: KafkaBroker, lines: str, tmp_path: Path) -> None:
    found: list[dict[str, int]] = []
    frame = structured.counts(spark, kafka_broker.options["bootstrap.servers"], lines)
    writer = frame.writeStream.outputMode("complete").option("checkpointLocation", str(tmp_path))
    to_its_end(writer.foreachBatch(lambda rows, _: found.append({row.word: row["count"] for row in rows.collect()})))
    assert found[-1] == COUNTS


def test_a_direct_stream_has_the_counts(spark: Any, kafka_broker: KafkaBroker, lines: str, tmp_path: Path) -> None:
    counted = threading.Event()
    count = direct_stream.WordCount.__call__

    class NotifyingWordCount(direct_stream.WordCount):
        def __call__(self, batch: Any) -> None:
            count(self, batch)
            counted.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct_stream, "WordCount", NotifyingWordCount)
        stream = direct_stream.stream(spark, kafka_broker.options["bootstrap.servers"], lines, tmp_path)
    stream.start()
    assert counted.wait(PATIENCE_SECONDS)
    stream.stop()
    assert stream.await_termination(PATIENCE_SECONDS)
    assert direct_stream.totals(tmp_path / "counts") == COUNTS
