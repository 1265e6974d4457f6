"""A stream without a WAL, by real processes and a real Kafka: blocks exist only as the hosts' copies."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import AHEAD, Cluster
from tests.support.processes.copied import SECOND, copying

pytestmark = pytest.mark.kafka

NO_WAL = {"url": "none"}


def copies(folder: Path) -> list[Path]:
    return [path for suffix in ("block", "copy") for path in folder.rglob(f"*.{suffix}")]


def forget_in_kafka(options: dict[str, str], cluster: Cluster) -> None:
    """Kafka holds nothing any more of what was taken in."""
    taken = {TopicPartition(p.topic, p.partition): p.position for p in cluster.state().partitions.values()}
    with KafkaAdmin(options) as admin:
        admin.delete_records({tp: position for tp, position in taken.items() if position})


def test_every_record_is_in_one_batch_and_copies_go_when_nothing_needs_them(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-1 to INV-3, INV-8: receiver, agent and driver are killed meanwhile, the receiver also between its copy and its
    report; in the end no copy is left, and the journal names no block."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(tmp_path, kafka_broker.options, [topic], wal=NO_WAL, start=False) as cluster,
    ):
        for name in ("driver", "agent", "r2"):
            cluster.start(name)
        cluster.start("r1", failpoints="receiver.before-report=kill")
        cluster.await_hit("receiver.before-report")
        for name in ("driver", "r2", "agent"):
            cluster.await_records(flow.records)
            cluster.kill9(name)
            cluster.restart(name)
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.wait(lambda: not cluster.state().blocks, "the journal to name no block")
        assert not (tmp_path / "wal").exists()
        assert "there is no WAL" in cluster.log_file("driver").read_text()
        assert "there is no WAL" in cluster.log_file("r1").read_text()
        cluster.check(flow.truth)


def test_a_batch_whose_only_copies_are_lost_stops_until_the_loss_is_accepted(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-5: with copies = 1 a lost block directory is an alert with the exact ranges, never an empty partition."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic, partitions=[0]) as flow,
        Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, wal=NO_WAL, driver=AHEAD) as cluster,
    ):
        cluster.await_records(100)
        state = cluster.killed_behind_a_held_job(flow, "agent", "r1", "driver")
        lost = [r for block in state.blocks.values() if block.id in state.batch_of for r in block.meta.ranges]
        lost += [r for block_id in state.waiting for r in state.blocks[block_id].meta.ranges]
        forget_in_kafka(kafka_broker.options, cluster)
        shutil.rmtree(tmp_path / "blocks")
        (tmp_path / "hold").unlink()
        for name in ("agent", "driver"):
            cluster.restart(name)
        stopped = cluster.wait(
            lambda: next((b for s in [cluster.status()] if s for b in s.batches if b.state == "unreadable"), None),
            "the unreadable batch in status",
        )
        assert any(r.label in stopped.detail for r in lost), stopped.detail

        def gone_on() -> bool:
            status = cluster.wait(cluster.status, "status")
            for batch in status.batches:
                if batch.state == "unreadable":
                    held = cluster.state().batches[batch.batch_id]
                    labels = [r.label for b in held.block_ids for r in cluster.state().blocks[b].meta.ranges]
                    cluster.command("recover", "--accept-loss", str(batch.batch_id), *labels, "--yes")
            return not status.batches or all(b.state == "completed" for b in status.batches)

        cluster.wait(gone_on, "the batches to go on")
        report = cluster.check_audit()
        accepted = {label for incarnation in report.incarnations for label in incarnation.accepted_losses}
        assert accepted <= {r.label for r in lost}
        assert accepted


@pytest.mark.parametrize("killed", ["receiver.after-local-write", "agent.before-copy-kept"])
def test_with_a_replica_a_lost_host_costs_nothing(
    killed: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-1, INV-5: the receiver is killed between its copy and its report, or the replica host's agent as it takes one; then the
    receiver's host loses its folder, and Kafka all that was taken in."""
    topic = topic_name()
    failpoints = f"{killed}=kill" if killed.startswith("receiver") else ""
    settings: dict[str, Any] = {"wal": NO_WAL, "receiver": {"local_copies": True}, "driver": AHEAD}
    with copying(tmp_path, kafka_broker, topic, failpoints=failpoints, **settings) as (cluster, flow):
        if killed.startswith("agent"):
            cluster.await_records(100)
            cluster.kill9(SECOND)
            cluster.wait(
                lambda: (r := cluster.receiver("r1")) and "no replica host" in r.detail,
                "the receiver to say why it waits",
            )
            cluster.restart(SECOND, failpoints=f"{killed}=kill")
            assert cluster.await_end(SECOND) < 0
            cluster.restart(SECOND, failpoints="")
        cluster.await_hit(killed)
        before = cluster.wait(cluster.status, "status").records_completed
        cluster.await_records(before + 100)
        cluster.allocate_behind_a_held_job()
        flow.stop()
        cluster.wait(
            lambda: (
                (s := cluster.status())
                and {(p.topic, p.partition): p.position for p in s.partitions} == flow.truth.ends()
            ),
            "all to be taken in",
        )
        for name in ("agent", "r1", "driver"):
            cluster.kill9(name)
        forget_in_kafka(kafka_broker.options, cluster)
        shutil.rmtree(tmp_path / "blocks")
        (tmp_path / "hold").unlink()
        for name in ("agent", "driver"):
            cluster.restart(name)
        cluster.await_completed(flow.truth.ends())
        cluster.wait(lambda: not cluster.state().blocks, "the journal to name no block")
        assert cluster.wait(cluster.status, "status").tiers.get("agent", 0) > 0
        cluster.check(flow.truth)
        # what was sent to a host and not reported is a stray there for a minute; nothing else is left
        assert len(copies(tmp_path / f"blocks-{SECOND}")) <= 1
