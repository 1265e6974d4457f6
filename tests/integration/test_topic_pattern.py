"""``kafka.pattern`` from end to end: the driver decides which topics match, and receivers subscribe to these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Truth, numbered, produce
from tests.support.processes.cluster import Cluster

pytestmark = pytest.mark.kafka


def test_stream_takes_in_exactly_the_topics_whose_whole_name_matches(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """In a syntax that librdkafka does not know, from no topic at all over new ones to a deleted one."""
    base = topic_name()
    first, second, late = f"{base}-ab1", f"{base}-ab12", f"{base}-ab7"
    others = [f"{base}-ab1x", f"x{base}-ab1", f"{base}-ab", f"__{base}-ab1"]
    kafka: dict[str, object] = {"topics": [], "pattern": rf"^(?:__)?(?:{base}-ab\d+)", "group": base}
    for topic in others:
        kafka_broker.create_topic(topic)
        produce(kafka_broker.options, topic, numbered(40), Truth())
    truth = Truth()
    with Cluster(tmp_path, kafka_broker.options, [], receivers=2, kafka=kafka) as cluster:
        cluster.wait(lambda: "no topic matches" in cluster.health(), "the driver to say that nothing matches")
        cluster.wait(
            lambda: (r := cluster.receiver("r1")) and "no topic matches" in r.detail, "the receiver to say so as well"
        )
        for topic in (first, second):
            kafka_broker.create_topic(topic)
            produce(kafka_broker.options, topic, numbered(400), truth)
        cluster.await_completed(truth.ends())
        # a rebalance may still move a partition, which has no owner meanwhile
        cluster.wait(lambda: {topic for topic, _ in cluster.owners()} == {first, second}, "an owner of each topic")
        kafka_broker.create_topic(late)
        produce(kafka_broker.options, late, numbered(400), truth)
        cluster.await_completed(truth.ends())
        with KafkaAdmin(kafka_broker.options) as admin:
            admin.delete_topic(first)
        cluster.wait(
            lambda: all(f"names: {second}, {late}" in cluster.log(name) for name in ("r1", "r2")),
            "the receivers to leave the deleted topic",
        )
        produce(kafka_broker.options, second, numbered(400, start=400), truth)
        cluster.await_completed(truth.ends())
        assert {p.topic for p in cluster.state().partitions.values()} == {first, second, late}
        cluster.check(truth)
