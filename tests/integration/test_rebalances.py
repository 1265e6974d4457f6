"""A rebalance during a block, held by a failpoint: records taken in are reported first, or refused; none is in two batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range", "roundrobin"])
def test_a_rebalance_in_mid_block_loses_and_repeats_nothing(
    strategy: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """Rule 6. The block is open when the group takes partitions away: its interval is far longer than the test."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(
            tmp_path, kafka_broker.options, [topic], start=False,
            kafka={"partition.assignment.strategy": strategy}, receiver={"block_interval": "2s"},
        ) as cluster,
    ):  # fmt: skip
        for name in ("driver", "agent"):
            cluster.start(name)
        cluster.start("r1", failpoints="receiver.revoke=hold")
        cluster.await_records(1)
        cluster.start("r2")
        cluster.await_hit("receiver.revoke")
        held = cluster.wait(lambda: cluster.receiver("r1"), "r1 in status")
        target = flow.records + 100
        cluster.wait(lambda: flow.records >= target, "more records while the rebalance is held")
        cluster.release_hold("receiver.revoke")
        cluster.wait(lambda: set(cluster.owners().values()) == {"r1", "r2"}, "both to own partitions")
        target = flow.records + 300
        cluster.wait(lambda: flow.records >= target, "more records")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
        assert held.epoch == cluster.wait(lambda: cluster.receiver("r1"), "r1 in status").epoch


def test_late_report_after_a_revocation_beyond_the_session_is_refused(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """An eager group waits for its members to release everything first: the one that does not is thrown out in mid-callback,
    r2 goes on, and the callback then reports its open block: too late (INV-4)."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    kafka = {
        "partition.assignment.strategy": "range",
        "max.poll.interval.ms": "3000",
        "session.timeout.ms": "3000",
    }
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(
            tmp_path, kafka_broker.options, [topic], start=False, kafka=kafka, receiver={"block_interval": "1s"}
        ) as cluster,
    ):
        for name in ("driver", "agent"):
            cluster.start(name)
        cluster.start("r1", failpoints="receiver.revoke=hold")
        cluster.await_records(1)
        cluster.start("r2")
        cluster.await_hit("receiver.revoke")
        cluster.wait(lambda: list(cluster.owners().values()).count("r2") == 4, "r2 to own all")
        cluster.release_hold("receiver.revoke")
        cluster.wait(lambda: set(cluster.owners().values()) == {"r1", "r2"}, "both to own partitions")
        target = flow.records + 300
        cluster.wait(lambda: flow.records >= target, "more records")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
