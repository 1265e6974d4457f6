"""Spark's tasks and queries while leaders change, and while partitions have no leader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from direct import OffsetRange, create_rdd
from forebay.kafka.consume.range_reader import forget_consumers
from forebay.model.values import TopicPartition
from tests.conftest import require_kafka
from tests.support.kafka.flow import Flow, Truth, numbered, produce, read_topic
from tests.support.kafka.polling import PATIENCE_SECONDS, partitions_of
from tests.support.kafka.three_brokers import ThreeBrokers, three_brokers
from tests.support.state.columns import column_values

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

#: how each leader ends, before it returns
ENDS = ("kill9", "stop") * 2


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    require_kafka()
    with three_brokers(tmp_path_factory.mktemp("leaders")) as brokers:
        yield brokers
    forget_consumers()


def started(spark: Any, brokers: ThreeBrokers, topic: str, folder: Path, **options: object) -> Any:
    """A query of all of ``topic`` into Parquet files."""
    frame = (
        spark.readStream.format("forebay").option("kafka.bootstrap.servers", brokers.options["bootstrap.servers"])
        .option("subscribe", topic).option("startingOffsets", "earliest").options(**options).load()
    )  # fmt: skip
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(processingTime="200 milliseconds").start(str(folder / "out"))


def await_rows(query: Any, count: Callable[[], int]) -> None:
    """Until the query has committed so many rows."""
    wanted = count()
    waited = 0
    while sum(progress.numInputRows for progress in query.recentProgress) < wanted:
        assert query.isActive, query.exception()
        assert not query.awaitTermination(1), query.exception()
        waited += 1
        assert waited < PATIENCE_SECONDS, query.lastProgress


def written(spark: Any, folder: Path) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in spark.read.parquet(str(folder / "out")).select("partition", "offset").collect():
        found.setdefault(row.partition, []).append(row.offset)
    return {partition: sorted(offsets) for partition, offsets in found.items()}


def test_query_and_rdd_read_each_record_once_while_leaders_change(
    spark: Any, brokers: ThreeBrokers, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """INV-2; no attempt of the query fails."""
    partitions = partitions_of(topic_name(), 2)
    topic = partitions[0].topic
    brokers.create_topic(topic, [[2, 3, 1], [3, 2, 1]])
    whole = [OffsetRange(topic, number, 0, 100) for number in range(2)]
    with Flow(brokers.options, topic, partitions=[0, 1], rate=200) as flow:
        query = started(spark, brokers, topic, tmp_path)
        await_rows(query, lambda: 200)
        for end in ENDS:
            number = brokers.leader(partitions[0])
            getattr(brokers, end)(number)
            rdd = create_rdd(spark, brokers.options, whole, keep_consumers=False)
            assert sorted((record.partition, record.offset) for record in rdd.collect()) == [
                (span.partition, offset) for span in whole for offset in range(100)
            ]
            for tp in partitions:
                brokers.await_leader(tp, other_than=number)
            wanted = flow.records + 200
            await_rows(query, lambda wanted=wanted: wanted)  # type: ignore[misc]
            brokers.start(number)
            for tp in partitions:
                brokers.await_in_sync(tp, number)
        flow.stop()
        await_rows(query, lambda: len(flow.truth))
        query.stop()
    ends_at = {number: end for (_, number), end in flow.truth.ends().items()}
    assert written(spark, tmp_path) == {number: list(range(end)) for number, end in ends_at.items()}


def await_batches(query: Any, more: int = 2) -> None:
    """Until the query has completed so many more batches with rows in them."""

    def last() -> int:
        return max((progress.batchId for progress in query.recentProgress if progress.numInputRows), default=-1)

    wanted = last() + more
    waited = 0
    while last() < wanted:
        assert not query.awaitTermination(1), query.exception()
        waited += 1
        assert waited < PATIENCE_SECONDS, query.lastProgress


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "in-transactions"])
def test_writing_query_loses_no_row_while_leaders_change_and_repeats_none_in_transactions(
    spark: Any, brokers: ThreeBrokers, topic_name: Callable[[], str], tmp_path: Path, transactional: bool
) -> None:
    """No batch of the query fails. Each leader of what it reads, of what it writes and of its transactions ends once."""
    topic, into = topic_name(), topic_name()
    for number in (2, 3):
        brokers.start(number)
    for name in (topic, into):
        brokers.create_topic(name, [[2, 3, 1], [3, 2, 1]])
    places = [*partitions_of(topic, 2), *partitions_of(into, 2), TopicPartition("__transaction_state", 0)]
    servers = brokers.options["bootstrap.servers"]
    with Flow(brokers.options, topic, partitions=[0, 1], rate=200) as flow:
        frame = (
            spark.readStream.format("forebay").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
            .option("startingOffsets", "earliest").load().selectExpr("concat(partition, ' ', offset) as value")
        )  # fmt: skip
        writer = frame.writeStream.format("forebay").option("kafka.bootstrap.servers", servers).option("topic", into)
        writer = writer.option("transactional", str(transactional).lower()).option("groupIdPrefix", into)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        await_batches(query)
        for end in ENDS * 2:
            for number in (2, 3):
                brokers.start(number)
                for tp in places:
                    brokers.await_in_sync(tp, number)
            number = brokers.leader(places[-1])
            getattr(brokers, end)(number)
            for tp in places:
                brokers.await_leader(tp, other_than=number)
            await_batches(query)
        flow.stop()
        query.processAllAvailable()
        query.stop()
    expected = Counter(f"{number} {offset}" for (_, number), end in flow.truth.ends().items() for offset in range(end))
    read = read_topic(brokers.options, {(into, number): 1 for number in range(2)})
    found = Counter(value.decode() for value in column_values(read.table(), "value"))
    assert found == expected if transactional else found >= expected and found.keys() == expected.keys()


def test_rdd_batch_and_query_name_a_partition_without_a_leader(
    spark: Any, brokers: ThreeBrokers, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """INV-5: Spark's own error contains the next step; the query continues from its checkpoint."""
    tp = TopicPartition(topic_name(), 0)
    brokers.create_topic(tp.topic, [[2]])
    produce(brokers.options, tp.topic, numbered(50), Truth(), partitions=[0])
    once = {"fetchOffset.numRetries": 0, "kafkaConsumer.pollTimeoutMs": 2000}
    query = started(spark, brokers, tp.topic, tmp_path, **once)
    await_rows(query, lambda: 50)
    expected = f"{tp} has no leader until broker 2 is back"
    brokers.stop(2)
    with pytest.raises(Exception, match=expected):
        query.awaitTermination(PATIENCE_SECONDS)
    with pytest.raises(Exception, match=rf"returned no data of {tp}\[0, 50\) .*{expected}"):
        create_rdd(spark, brokers.options, [OffsetRange(tp.topic, 0, 0, 50)], timeout_seconds=2.0).collect()
    frame = spark.read.format("forebay").option("kafka.bootstrap.servers", brokers.options["bootstrap.servers"])
    with pytest.raises(Exception, match=expected):
        frame.option("subscribe", tp.topic).options(**once).load().collect()
    brokers.start(2)
    produce(brokers.options, tp.topic, numbered(50), Truth(), partitions=[0])
    query = started(spark, brokers, tp.topic, tmp_path, **once)
    await_rows(query, lambda: 50)
    query.stop()
    assert written(spark, tmp_path) == {0: list(range(100))}
