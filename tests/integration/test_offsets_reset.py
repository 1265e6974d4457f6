"""``forebay offsets reset`` and ``forebay lag`` beside receivers that take in records of a real Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster

pytestmark = pytest.mark.kafka


def test_a_topic_is_read_again_from_its_beginning_while_records_come_in(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-2, INV-4: the receiver hands over what it has, the old incarnations end there, the new ones begin at the first
    offset, and the audit accounts for both."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(tmp_path, kafka_broker.options, [topic], receivers=1) as cluster,
    ):
        cluster.await_records(200)
        dry = cluster.command("offsets", "reset", topic, "--to", "earliest", "--json")
        assert dry.returncode == 0 and "--apply" in dry.stderr
        assert {p["start"] for p in json.loads(dry.stdout)["partitions"]} == {0}
        assert {p.incarnation.number for p in cluster.state().partitions.values()} == {1}

        done = cluster.command("offsets", "reset", topic, "--to", "earliest", "--apply", "--because", "again")
        assert done.returncode == 0, done.stderr
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        assert cluster.audit().clean
        for partition in cluster.state().partitions.values():
            first, second = partition.incarnations
            assert first.end is not None and first.end > 0
            assert (second.start, partition.position) == (0, flow.truth.ends()[partition.topic, partition.partition])
            assert "reset to earliest" in second.cause and "again" in second.cause
        status = cluster.wait(cluster.status, "status")
        assert status.records_completed == len(flow.truth) + sum(
            p.incarnations[0].end or 0 for p in cluster.state().partitions.values()
        )
        behind = cluster.command("lag", "--max-records", "0", "--json")
        assert behind.returncode == 0, behind.stderr
        assert json.loads(behind.stdout)["processed"] == {"records": 0, "bytes": 0, "seconds": 0.0}

        (tmp_path / "hold").touch()
        with Flow(kafka_broker.options, topic, total=40) as more:
            cluster.wait(lambda: more.finished, "more records")
        behind = cluster.command("lag", "--max-records", "0", "--json")
        assert behind.returncode == 1, behind.stdout
        shown = json.loads(behind.stdout)["processed"]
        assert shown["records"] > 0 and shown["bytes"] > 0 and shown["seconds"] > 0
        (tmp_path / "hold").unlink()
