"""``forebay offsets export|import`` against a real Kafka: the stream's groups, another group, and a group with members."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.client.admin import Committed, KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from tests.support.kafka.flow import Truth, numbered, produce
from tests.support.processes.cluster import Cluster

pytestmark = pytest.mark.kafka


def test_committed_offsets_are_set_from_a_file_and_from_the_journal(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-1: for the stream's own groups nothing beyond the journal; the stream goes on afterwards as if nothing had been."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    truth = Truth()
    with (
        KafkaAdmin(kafka_broker.options) as admin,
        Cluster(tmp_path, kafka_broker.options, [topic], receivers=1) as cluster,
    ):
        produce(kafka_broker.options, topic, numbered(200), truth)
        cluster.await_completed(truth.ends())
        file = tmp_path / "offsets.json"
        assert cluster.command("offsets", "export", "--file", str(file)).returncode == 0
        refused = cluster.command("offsets", "import", str(file), "--group", cluster.group, "--yes")
        assert refused.returncode == 1, refused.stderr
        assert cluster.group in refused.stderr
        assert "Traceback" not in refused.stderr
        cluster.drain()
        ends = {TopicPartition(t, p): end for (t, p), end in truth.ends().items()}
        own = (cluster.group, f"{cluster.group}.completed")
        for group in own:
            admin.publish(group, {tp: Committed(1, -1, "") for tp in ends})
        dry = cluster.command("offsets", "import", str(file))
        assert dry.returncode == 0
        assert "would set 8 offsets" in dry.stderr
        assert {c.offset for c in admin.committed(own[0], ends).values()} == {1}
        for arguments in ((str(file),), ()):
            done = cluster.command("offsets", "import", *arguments, "--group", own[0], "--yes")
            assert done.returncode == 0, done.stderr
            assert {tp: (c.offset, c.metadata) for tp, c in admin.committed(own[0], ends).items()} == {
                tp: (end, "forebay:1:1") for tp, end in ends.items()
            }
        assert cluster.command("offsets", "import", "--group", f"{topic}-another", "--yes").returncode == 0
        assert {tp: c.offset for tp, c in admin.committed(f"{topic}-another", ends).items()} == ends
        document = json.loads(file.read_text())
        document["partitions"][0]["position"] += 1
        file.write_text(json.dumps(document))
        beyond = cluster.command("offsets", "import", str(file), "--yes")
        assert beyond.returncode == 1
        assert "INV-1" in beyond.stderr
        for name in cluster.names:
            cluster.start(name)
        produce(kafka_broker.options, topic, numbered(200, 200), truth)
        cluster.await_completed(truth.ends())
        cluster.check(truth)
