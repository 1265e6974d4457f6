"""A direct stream with a real Spark: what its job is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from direct import DirectBatch, OffsetRange, StreamSettings, Subscribe, create_direct_stream
from forebay.errors import UsageError
from forebay.kafka.broker import KafkaBroker
from forebay.values import TopicPartition
from tests.support.again import produce
from tests.support.kafka import PATIENCE_SECONDS

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_a_job_is_given_the_same_rows_in_each_form_and_a_restart_goes_on(
    spark: Any, kafka_broker: KafkaBroker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """INV-3: also after a failure, by this stream and by the next one."""
    tp = TopicPartition(topic_name(), 0)
    kafka_broker.create_topic(tp.topic, 1)
    produce(kafka_broker.options, tp, 20)
    seen: list[tuple[int, bool, list[OffsetRange], list[int]]] = []
    told: list[object] = []

    def job(batch: DirectBatch) -> None:
        offsets = [row.offset for row in batch.df.collect()]
        seen.append((batch.id, batch.rerun, list(batch.ranges), offsets))
        if len(seen) == 1:
            raise ValueError("once")
        assert [record.value for record in batch.rdd.take(1)] == [f"value {offsets[0] % 20}"]
        assert sum(rows.num_rows for rows in batch.arrow.collect()) == batch.records == len(offsets)
        assert [row for rows in batch.read() for row in rows.column("offset").to_pylist()] == offsets
        with pytest.raises(UsageError, match="has no decode"):
            batch.decode(lambda record: None, "a int")
        batch.commit_async(callback=lambda offsets, errors: told.append(offsets))
        stream.stop()

    for _ in range(2):
        stream = create_direct_stream(
            spark,
            {**kafka_broker.options, "group.id": f"g-{tp.topic}", "auto.offset.reset": "earliest"},
            Subscribe([tp.topic]),
            StreamSettings("s", (tmp_path / "c").as_uri(), 0.1, min_partitions=2, retry_seconds=0.01),
            value_deserializer="string",
        )
        stream.foreach_batch(job).start()  # type: ignore[arg-type]
        assert stream.await_termination(PATIENCE_SECONDS)
        produce(kafka_broker.options, tp, 5)
    first, again, second = seen
    assert first[0] == again[0] and first[2:] == again[2:] and again[1]
    assert [range_.until_offset for range_ in first[2]] == [10, 20]
    assert [*again[3], *second[3]] == list(range(25))
    assert told == [{tp: 20}, {tp: 25}]
