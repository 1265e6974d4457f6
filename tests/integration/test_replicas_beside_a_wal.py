"""A stream with a WAL and replicas, by real processes and a real Kafka: what tasks read when a host is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import AHEAD, Cluster
from tests.support.processes.copied import SECOND, copying, end_without_copies

pytestmark = pytest.mark.kafka


def test_blocks_of_a_lost_host_are_read_from_their_replicas_and_not_from_the_wal(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-2, INV-3, INV-8: blocks do not wait for a replica host. When there is one, the receiver's host is lost with all its
    copies. In the end no replica is left."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    settings: dict[str, Any] = {"receiver": {"copies": 2}, "driver": AHEAD}
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, start=False, **settings) as cluster,
    ):
        for name in ("driver", "agent"):
            cluster.start(name)
        cluster.start("r1")
        cluster.await_records(50)
        cluster.start_agent(SECOND)
        cluster.wait(
            lambda: any(block.other_hosts for block in cluster.state().blocks.values()), "replicas on the other host"
        )
        cluster.allocate_behind_a_held_job()
        flow.stop()
        cluster.wait(
            lambda: (
                (s := cluster.status())
                and {(p.topic, p.partition): p.position for p in s.partitions} == flow.truth.ends()
            ),
            "all to be taken in",
        )
        for name in ("agent", "r1"):
            cluster.kill9(name)
        shutil.rmtree(tmp_path / "blocks")
        lost = cluster.state()
        held = {block_id for batch in lost.unfinished()[1:] for block_id in batch.block_ids}
        assert held and all(lost.blocks[block_id].other_hosts == (SECOND,) for block_id in held)
        read = cluster.wait(cluster.status, "status").tiers
        (tmp_path / "hold").unlink()
        cluster.await_completed(flow.truth.ends())
        tiers = cluster.wait(cluster.status, "status").tiers
        assert tiers["agent"] > read.get("agent", 0)
        assert tiers.get("wal", 0) == read.get("wal", 0)
        cluster.check(flow.truth)
        cluster.wait(lambda: not list((tmp_path / f"blocks-{SECOND}").rglob("*.copy")), "no replica to be left")


@pytest.mark.parametrize("killed", ["receiver.after-local-write", "agent.before-copy-kept"])
def test_kill_during_a_replica_loses_and_repeats_nothing(
    killed: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-1, INV-2, INV-8: the receiver is killed between its copies and its report, or the agent that gets a replica before the
    replica has its name. Replicas are made again afterwards, and in the end none is left."""
    failpoints = f"{killed}=kill@2" if killed.startswith("receiver") else ""
    with copying(tmp_path, kafka_broker, topic_name(), failpoints=failpoints) as (cluster, flow):
        if killed.startswith("agent"):
            cluster.await_records(50)
            cluster.kill9(SECOND)
            cluster.restart(SECOND, failpoints=f"{killed}=kill")
            assert cluster.await_end(SECOND) < 0
            cluster.restart(SECOND, failpoints="")
        cluster.await_hit(killed)
        before = cluster.wait(cluster.status, "status").records_completed
        cluster.await_records(before + 50)
        cluster.wait(
            lambda: any(block.other_hosts for block in cluster.state().blocks.values()), "replicas after the kill"
        )
        end_without_copies(cluster, flow)
