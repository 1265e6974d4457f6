"""The batches that the job of a direct stream gets, with a real Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from direct import (
    DeadLetterSettings,
    DirectBatch,
    KafkaRecord,
    OffsetRange,
    PartitionRates,
    StreamSettings,
    Subscribe,
    create_direct_stream,
)
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.state.again import produce
from wal import dead_letters
from wal.storage import open_storage

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_job_gets_the_same_rows_in_each_form_and_a_restart_continues(
    spark: Any, kafka_broker: KafkaBroker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """INV-3: also after a failure, in this stream and in the next one."""
    tp = TopicPartition(topic_name(), 0)
    kafka_broker.create_topic(tp.topic, 1)
    produce(kafka_broker.options, tp, 20)
    seen: list[tuple[int, bool, list[OffsetRange], list[int]]] = []
    reported: list[object] = []

    def job(batch: DirectBatch) -> None:
        offsets = [row.offset for row in batch.df.collect()]
        seen.append((batch.id, batch.rerun, list(batch.ranges), offsets))
        if len(seen) == 1:
            raise ValueError("once")
        assert [record.value for record in batch.rdd.take(1)] == [f"value {offsets[0] % 20}"]
        assert sum(rows.num_rows for rows in batch.arrow.collect()) == batch.records == len(offsets)
        assert [row for rows in batch.read() for row in rows.column("offset").to_pylist()] == offsets
        decoded = batch.decode(lambda record: {"a": record.offset}, "a long")
        assert [row.a for row in decoded.collect()] == offsets
        batch.commit_async(callback=lambda offsets, errors: reported.append(offsets))
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
    assert reported == [{tp: 20}, {tp: 25}]


def test_batches_run_in_spark_at_the_same_time_and_empty_ones_have_no_rows(
    spark: Any, kafka_broker: KafkaBroker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """Each job waits for another one, so they run at the same time. INV-2: together they have each record once."""
    tp = TopicPartition(topic_name(), 0)
    kafka_broker.create_topic(tp.topic, 1)
    produce(kafka_broker.options, tp, 20)
    together = threading.Barrier(2)
    rows: dict[int, list[int]] = {}

    def job(batch: DirectBatch) -> None:
        if batch.number <= 2:
            together.wait(PATIENCE_SECONDS)
        rows[batch.number] = [row.offset for row in batch.df.collect()]
        assert batch.rdd.count() == batch.rdd.countApprox(1) == batch.records == len(rows[batch.number])
        assert sum(table.num_rows for table in batch.arrow.collect()) == len(rows[batch.number])
        if not batch.records:
            stream.stop()

    stream = create_direct_stream(
        spark,
        {**kafka_broker.options, "auto.offset.reset": "earliest"},
        Subscribe([tp.topic]),
        StreamSettings(
            "s", (tmp_path / "c").as_uri(), 0.1, concurrent_jobs=2, empty_batches=True,
            rates=lambda tp: PartitionRates(100.0),
        ),
    )  # fmt: skip
    stream.foreach_batch(job).start()  # type: ignore[arg-type]
    assert stream.await_termination(PATIENCE_SECONDS)
    assert [offset for number in sorted(rows) for offset in rows[number]] == list(range(20))
    assert [] in rows.values()


def test_undecodable_records_become_dead_letters_and_a_window_reads_the_batch_before(
    spark: Any, kafka_broker: KafkaBroker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """Like batches of an intake: the same dead letters and windows, also in a rerun (INV-3)."""
    tp = TopicPartition(topic_name(), 0)
    kafka_broker.create_topic(tp.topic, 1)
    produce(kafka_broker.options, tp, 6)
    seen: list[tuple[tuple[int, ...], list[int], list[int]]] = []

    def function(record: KafkaRecord) -> dict[str, int]:
        if record.offset % 3 == 2:
            raise ValueError("a third")
        return {"a": record.offset}

    def job(batch: DirectBatch) -> None:
        window = batch.window(2)
        rows = [row.a for row in batch.decode(function, "a long").collect()]
        seen.append((window.covered, [row.offset for row in window.df.collect()], rows))
        assert [record.offset for record in window.rdd.collect()] == seen[-1][1]
        if len(seen) == 2:
            raise ValueError("once")
        produce(kafka_broker.options, tp, 3)
        if len(seen) == 3:
            stream.stop()

    stream = create_direct_stream(
        spark,
        {**kafka_broker.options, "auto.offset.reset": "earliest"},
        Subscribe([tp.topic]),
        StreamSettings(
            "s", (tmp_path / "c").as_uri(), 0.1, retry_seconds=0.01, window_batches=1, max_queued_batches=1,
            dead_letters=DeadLetterSettings(url=(tmp_path / "letters").as_uri()),
        ),
    )  # fmt: skip
    stream.foreach_batch(job).start()  # type: ignore[arg-type]
    assert stream.await_termination(PATIENCE_SECONDS)
    first, failed, second = seen
    assert first == ((first[0][0],), list(range(6)), [0, 1, 3, 4])
    assert failed == second == ((*first[0], second[0][-1]), list(range(9)), [6, 7])
    found = dead_letters.counting(open_storage((tmp_path / "letters").as_uri()).list("s"))
    assert [(one.run.batch_id, one.done, sum(letters.records for letters in one.letters)) for one in found] == [
        (first[0][0], True, 2),
        (second[0][-1], True, 1),
    ]
