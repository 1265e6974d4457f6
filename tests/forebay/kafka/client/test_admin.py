"""Requests to Kafka without membership of a group."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from forebay.kafka.client.admin import Committed, KafkaAdmin
from forebay.kafka.client.starting import Timestamp
from forebay.kafka.embedded.broker import KafkaBroker, MockBroker
from forebay.kafka.embedded.loader import FLIGHTS, Pace, flights, load
from forebay.model.errors import UnreachableError, UsageError
from forebay.model.values import TopicPartition
from tests.support.kafka.polling import Commit, Reader, partitions_of, poll_until


@pytest.mark.kafka
def test_every_starting_policy_resolves(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> None:
    topic, group = topic_name(), topic_name()
    kafka_broker.create_topic(topic, 2)
    one, two = partitions_of(topic, 2)
    load(kafka_broker.options, topic, [(b"k", b"v")] * 30, partition=0)
    with KafkaAdmin(kafka_broker.options) as admin:
        admin.delete_records({one: 5})
        assert admin.publish(group, {one: Commit(12, 0, "forebay:1:1")}) == {}
        assert admin.committed(group, [one, two]) == {one: Committed(12, 0, "forebay:1:1")}
        assert TopicPartition("__consumer_offsets", 0) in admin.partitions(["__consumer_offsets"])
        assert not any(tp.topic.startswith("__") for tp in admin.partitions(pattern=".*"))

        def resolve(policy: str | dict[str, int]) -> dict[TopicPartition, int]:
            return admin.starting_offsets(policy, [one, two], group)

        assert resolve("earliest") == {one: 5, two: 0}
        assert resolve("latest") == {one: 30, two: 0}
        assert resolve("committed") == {one: 12, two: 0}
        assert resolve({"timestamp": 1000}) == {one: 5, two: 0}
        assert resolve({"timestamp": 32_503_680_000_000}) == {one: 30, two: 0}
        assert resolve({str(one): 7}) == {one: 7, two: 0}
        with pytest.raises(UsageError, match=r"Kafka holds offsets 5 to 30"):
            resolve({str(one): 4})
        assert admin.partitions(pattern=f"^{re.escape(topic)[:-1]}.") == {one, two}
        assert admin.partitions([topic, "absent"]) == {one, two}
        with pytest.raises(UsageError, match="exists already"):
            admin.create_topic(topic, 2)


@pytest.mark.parametrize("time_ms", [-1, -2, -3, 2**63, 1.5, "1"])
def test_time_that_kafka_would_take_as_an_end_is_refused(time_ms: Any) -> None:
    """No request is made. -1 is Kafka's number for the end of a partition, and -2 for its beginning."""
    refused = f"time {re.escape(repr(time_ms))}: allowed are milliseconds since 1970 UTC, from 0"
    tp = TopicPartition("t", 0)
    with KafkaAdmin({"bootstrap.servers": "127.0.0.1:1"}, timeout_seconds=0.2) as admin:
        with pytest.raises(UsageError, match=refused):
            admin.starting_offsets({"timestamp": time_ms}, [tp], "g")
        with pytest.raises(UsageError, match=refused):
            admin.places({tp: time_ms})
    with pytest.raises(UsageError, match=refused):
        Timestamp(time_ms)
    assert Timestamp(0) == Timestamp(ms=0)


def test_mock_without_topic_ids_is_not_waited_for(mock_broker: MockBroker, topic_name: Callable[[], str]) -> None:
    topic = topic_name()
    mock_broker.create_topic(topic)
    with KafkaAdmin(mock_broker.options) as admin:
        assert admin.topic_ids([topic]) == {topic: ""}
        assert admin.partitions([topic]) == set(partitions_of(topic))
        with pytest.raises(UsageError, match="4 partitions"):
            mock_broker.create_topic(topic_name(), 3)


def test_listed_topic_that_a_broker_does_not_know_yet_has_no_id_to_begin_with(
    kafka_broker: KafkaBroker, mock_broker: MockBroker, topic_name: Callable[[], str]
) -> None:
    """INV-5: a stream that began without the id would not notice that the topic is created again."""
    topic, unknown = topic_name(), topic_name()
    kafka_broker.create_topic(topic)
    with KafkaAdmin(kafka_broker.options) as admin:
        assert admin.listed_topic_ids([topic]) == admin.topic_ids([topic])
        assert admin.topic_ids([unknown]) == {unknown: ""}
        with pytest.raises(UnreachableError, match=f"brokers do not agree about topics {unknown} yet"):
            admin.listed_topic_ids([topic, unknown])
    with KafkaAdmin(mock_broker.options) as admin:
        assert admin.listed_topic_ids([unknown]) == {unknown: ""}


def test_error_names_unreachable_broker() -> None:
    with (
        KafkaAdmin({"bootstrap.servers": "127.0.0.1:1"}) as admin,
        pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"),
    ):
        admin.check(1.0)


def test_paced_loader_stays_close_to_its_group(mock_broker: MockBroker, topic_name: Callable[[], str]) -> None:
    """The mock drops records that are not read in time, so no partition may get further ahead of the commits than allowed."""
    topic, group = topic_name(), topic_name()
    mock_broker.create_topic(topic)
    furthest = 0
    with KafkaAdmin(mock_broker.options) as admin:

        def follow(_: int) -> None:
            nonlocal furthest
            partitions = partitions_of(topic)
            held = admin.watermarks(partitions)
            done = admin.committed(group, partitions)
            furthest = max(furthest, *(high - (done[tp].offset if tp in done else 0) for tp, (_, high) in held.items()))
            admin.publish(group, {tp: Commit(high) for tp, (_, high) in held.items()})

        loaded = load(mock_broker.options, topic, flights(20_000), pace=Pace(group, 3000), progress=follow)
        ends = {tp.partition: high for tp, (_, high) in admin.watermarks(partitions_of(topic)).items()}
    assert loaded.records == 20_000
    assert loaded.ends == {number: end for number, end in ends.items() if end}
    assert sum(loaded.counts.values()) == 20_000
    assert furthest <= 3000 + 2000  # its bound and one chunk


def test_flights_are_json_keyed_by_tail_number() -> None:
    count, without_key, first = 0, 0, None
    for key, value in flights():
        first = first or (key, value)
        count += 1
        without_key += key is None
    assert count == FLIGHTS
    assert without_key == 2512
    assert first is not None
    assert first[0] == b"N14228"
    assert first[1] is not None
    assert b'"carrier":"UA"' in first[1]


@pytest.mark.kafka
def test_killed_broker_restarts_on_same_ports_with_its_data(
    own_kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    broker, topic = own_kafka_broker, topic_name()
    broker.create_topic(topic, 1)
    load(broker.options, topic, [(None, b"kept")] * 10)
    address = broker.address
    broker.kill9()
    with KafkaAdmin(broker.options) as admin, pytest.raises(UnreachableError):
        admin.check(1.0)
    broker.start()
    assert broker.address == address
    with KafkaAdmin(broker.options) as admin:
        assert admin.watermarks([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): (0, 10)}


@pytest.mark.kafka
def test_offsets_of_group_without_members_are_set_per_partition(
    kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """librdkafka reports one partition's error for all of a commit, but callers need the partition."""
    topic, group = topic_name(), topic_name()
    kafka_broker.create_topic(topic, 2)
    one, two = partitions_of(topic, 2)
    absent = TopicPartition(topic_name(), 0)
    with KafkaAdmin(kafka_broker.options) as admin:
        refused = admin.publish(group, {one: Commit(3), two: Commit(4, metadata="x" * 5_000), absent: Commit(5)})
        assert refused.keys() == {two, absent}
        assert "too large" in refused[two] and "Unknown topic" in refused[absent]
        assert admin.committed(group, [one, two]) == {one: Committed(3, -1, "")}
        with Reader(kafka_broker.options, group, [topic]) as member:
            poll_until(lambda: member.source.owned, member)
            refused = admin.publish(group, {one: Commit(1), two: Commit(1)})
            assert refused.keys() == {one, two}
            assert "Unknown member" in refused[one]
        assert admin.committed(group, [one, two]) == {one: Committed(3, -1, "")}
        assert admin.publish(group, {one: Commit(1), two: Commit(1)}) == {}
