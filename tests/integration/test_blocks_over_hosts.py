"""Spark's tasks and the blocks that other processes hold for them, through agents with mutual TLS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.http.client import Client
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import UnreachableError
from forebay.security.access import Access
from tests.integration.test_spark import await_spark
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster
from tests.support.servers.certificates import Authority

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

OTHER = "host-two"
#: a second output of each batch, which reads the one before it once more
AGAIN = """
def again(batch):
    assert batch.window(2).df.count() >= batch.records
"""


def test_tasks_get_blocks_of_an_agent_by_mutual_tls_and_cache_blocks_of_the_wal_on_their_host(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """r1 writes its copies on another host. r2 makes none: whatever is local was read from the WAL first, and stored back."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    (tmp_path / "second.py").write_text(AGAIN)
    authority = Authority(tmp_path)
    with Cluster(
        tmp_path, kafka_broker.options, [topic], engine="spark", start=False, agent={"store_back": True},
        receiver={"block_interval": "500ms", "local_copies": True},
        driver={"job": ["jobs:by_dataframe", "second:again"], "window_batches": 1, "batch_interval": "500ms"},
        spark={"small_batch": "0B"},  # what is tested here are tasks
        security={"ca_file": str(authority.ca_file), **authority.issue("host")},
    ) as cluster:  # fmt: skip
        for name in ("driver", "agent"):
            cluster.start(name)
        cluster.start_agent(OTHER)
        await_spark(cluster)
        there = {"FOREBAY__RECEIVER__HOST": OTHER, "FOREBAY__AGENT__BLOCKS": str(tmp_path / f"blocks-{OTHER}")}
        cluster.start("r1", environment=there)
        cluster.start("r2", environment={"FOREBAY__RECEIVER__LOCAL_COPIES": "false"})

        def each_tier_has_given() -> bool:
            status = cluster.status()
            return status is not None and min(status.tiers.get(tier, 0) for tier in ("wal", "agent", "local")) >= 4

        with Flow(kafka_broker.options, topic, rate=100) as flow:
            cluster.wait(each_tier_has_given, "blocks from the WAL, the other host's agent and the copies stored back")
        status = cluster.wait(cluster.status, "status")
        assert {name for name in status.tiers if ":" in name} <= {"local: missing"}, status.tiers
        assert not any(block.local for block in cluster.state().blocks.values() if block.meta.receiver_id == "r2")
        for agent in status.agents:
            assert agent.url.startswith("https://")
            without_token = Client(agent.url, 10.0, Access(ca_file=str(authority.ca_file)))
            with pytest.raises(UnreachableError):
                without_token.request("GET", "/v1/status")
            without_token.close()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
