"""Queries over an intake of a topic that was deleted and created again, twice: times, rows and offsets in each incarnation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from tests.pyspark_forebay.intake.test_queries import ALL, _forget, batch, query, rows  # noqa: F401 - a fixture
from tests.support.processes.cluster import Cluster
from tests.support.state.again import produce

pytestmark = [pytest.mark.kafka, pytest.mark.filterwarnings("ignore::ResourceWarning")]

#: of the first record, in ms; what the topic begins with has a millisecond for each record
TIME = 1_700_000_000_000


@pytest.fixture
def cluster(tmp_path: Path, kafka_broker: KafkaBroker, topic: str) -> Iterator[Cluster]:
    """An intake that goes on with each new topic by itself, and deletes what nothing needs within a second or two."""
    wal = {"segment_size": "1KB", "cleanup_interval": "200ms"}
    with Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, kafka={"on_gap": "record"}, wal=wal) as cluster:
        cluster.await_completed({(topic, 0): 10, (topic, 1): 5})
        yield cluster


def await_places(cluster: Cluster, topic: str, *places: tuple[int, int]) -> None:
    """Until the intake's partitions are at these incarnations and offsets."""

    def reached() -> bool:
        known = [cluster.state().partitions[f"{topic}/{number}"] for number in range(len(places))]
        return tuple((one.incarnation.number, one.position) for one in known) == places

    cluster.wait(reached, f"{places} of {topic}")


def begin_again(broker: KafkaBroker, topic: str) -> None:
    with KafkaAdmin(broker.options) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, 2)


def read(reader: Any, *between: dict[str, Any]) -> dict[int, list[tuple[int, int]]]:
    """partition → offsets, and times since the first."""
    found: dict[int, list[tuple[int, int]]] = {}
    for row in rows(reader, *between):
        time_ms = round(row["timestamp"].timestamp() * 1000) - TIME
        found.setdefault(row["partition"], []).append((row["offset"], time_ms))
    return {partition: sorted(own) for partition, own in found.items()}


def test_times_and_offsets_select_places_in_incarnations(
    cluster: Cluster, kafka_broker: KafkaBroker, topic: str
) -> None:
    """INV-2, INV-5: each record of each incarnation once; deleted incarnations are not searched."""
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    first = [(offset, offset) for offset in range(10)]
    second = [(offset, 100) for offset in range(4)]
    third = [(0, 5), (1, 5), (2, 5), (3, 200), (4, 200), (5, 200)]  # times need not rise
    with query(cluster, startingTimestamp=str(TIME + 3), maxOffsetsPerTrigger="2") as reader:
        limit = ReadMaxRows(2)
        at = reader.latestOffset(reader.initialOffset(), limit)  # holds all from its start on
        assert at["#start"] == {topic: {"0": 3, "1": 3}} and "#start-lives" not in at
        taken = [read(reader, {}, at)]
        begin_again(kafka_broker, topic)
        produce(kafka_broker.options, one, 4, timestamp=TIME + 100)
        await_places(cluster, topic, (2, 4), (2, 0))
        begin_again(kafka_broker, topic)
        produce(kafka_broker.options, one, 3, timestamp=TIME + 5)
        produce(kafka_broker.options, one, 3, timestamp=TIME + 200)
        produce(kafka_broker.options, two, 2, timestamp=TIME + 200)
        await_places(cluster, topic, (3, 6), (3, 2))

        def between(start: int, **more: str) -> dict[int, list[tuple[int, int]]]:
            return read(batch(cluster, startingTimestamp=str(TIME + start), **more))

        ends = [(0, 200), (1, 200)]
        assert between(4) == {0: sorted([*first[4:], *second, *third]), 1: sorted([(4, 4), *ends])}
        assert between(50) == {0: sorted([*second, *third]), 1: ends}
        assert between(150) == {0: third[3:], 1: ends}
        assert between(4, endingTimestamp=str(TIME + 100)) == {0: first[4:], 1: [(4, 4)]}
        each = {"startingOffsetsByTimestamp": json.dumps({topic: {"0": TIME + 101, "1": TIME + 4}})}
        assert read(batch(cluster, **each)) == {0: third[3:], 1: sorted([(4, 4), *ends])}
        with pytest.raises(UsageError, match=f"has no record at or after {TIME + 300} ms"):
            between(300)

        incarnations = []
        while (end := reader.latestOffset(at, limit)) != at:
            incarnations.append((end[topic], end.get("#lives")))
            taken.append(read(reader, at, end))
            at = end
        assert incarnations[:2] == [
            ({"0": 0, "1": 0}, {topic: {"0": 2, "1": 2}}),  # the ended incarnation whole, whatever the limit
            ({"0": 0, "1": 0}, {topic: {"0": 3, "1": 3}}),
        ]
        assert incarnations[-1] == ({"0": 6, "1": 2}, {topic: {"0": 3, "1": 3}})
        assert all(sum(map(len, portion.values())) <= 3 for portion in taken[3:])
        assert sorted(row for portion in taken for row in portion.get(0, [])) == sorted([*first[3:], *second, *third])
        assert sorted(row for portion in taken for row in portion.get(1, [])) == sorted([(3, 3), (4, 4), *ends])
        with query(cluster, "late", startingTimestamp=str(TIME + 50)) as late:
            begun = late.latestOffset({}, ALL)
            assert (begun["#start"], begun["#start-lives"]) == (
                {topic: {"0": 0, "1": 0}},
                {topic: {"0": 2, "1": 3}},
            )
            reader.commit(at)
            late.commit(late.latestOffset(late.latestOffset(begun, ALL), ALL))
        cluster.wait(lambda: incarnations_held(cluster, one) <= {3}, "the ended incarnations to be deleted")
        assert between(3) == {0: third, 1: ends}


def incarnations_held(cluster: Cluster, tp: TopicPartition) -> set[int]:
    """Of the partition's lives those that the journal names blocks of."""
    ranges = (r for block in cluster.state().blocks.values() for r in block.meta.ranges)
    return {r.incarnation for r in ranges if r.tp == tp}
