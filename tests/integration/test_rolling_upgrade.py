"""A new release replaces an old one process by process while records flow, by the steps of docs/operations/upgrade.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster
from tests.support.run.wheel import build_wheel, install_wheel

pytestmark = pytest.mark.kafka

OLD, NEW = "7.1.0", "7.2.0"


def releases(cluster: Cluster) -> dict[str, str]:
    """Return process → release from `forebay status`, for processes that have sent a heartbeat."""
    status = cluster.status()
    if status is None:
        return {}
    found = {r.receiver_id: r.release for r in status.receivers if r.state in ("active", "waiting") and r.release}
    agents = dict.fromkeys(("agent",) if status.agents else (), "".join(a.release for a in status.agents))
    return {**found, **agents, "driver": status.release}


def test_receivers_agent_and_driver_are_upgraded_one_after_another_and_nothing_is_lost(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-1, INV-2, INV-3. Two installed copies of the code; every step is seen in the status before the next."""
    commands = {
        version: install_wheel(build_wheel(tmp_path / "wheels", version), tmp_path / f"release-{version}")
        for version in (OLD, NEW)
    }
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(tmp_path / "stream", kafka_broker.options, [topic], start=False) as cluster,
    ):
        urls = [cluster.driver_url, cluster.another_url()]
        cluster.write_settings(driver={"urls": urls, "lease_duration": "20s"})  # it may be renewed late
        for name in cluster.names:
            cluster.install(name, commands[OLD])
        cluster.start_all()
        everybody = ["agent", "driver", "r1", "r2"]
        cluster.wait(lambda: releases(cluster) == dict.fromkeys(everybody, OLD), "all at the old release")
        cluster.await_records(100)

        # what reads is upgraded before what writes: the driver first, by a standby of the new release
        cluster.start_rival("second", "driver", "--standby", url=urls[1], command=commands[NEW])
        cluster.wait(lambda: "(host" in cluster.health(), "the new driver to stand by")
        assert cluster.terminate("driver") == 0
        cluster.wait(lambda: releases(cluster).get("driver") == NEW, "the new driver to lead")
        completed = cluster.wait(cluster.status, "status").records_completed
        cluster.await_records(completed + 200)  # of the old receivers

        for name in ("agent", "r1", "r2"):
            cluster.install(name, commands[NEW])
            assert cluster.terminate(name) == 0  # receivers drain
            cluster.restart(name)
            cluster.wait(lambda name=name: releases(cluster).get(name) == NEW, f"{name} at the new release")
            cluster.await_records(flow.records)
        cluster.wait(lambda: releases(cluster) == dict.fromkeys(everybody, NEW), "all at the new release")
        assert NEW in cluster.command("status").stdout and OLD not in cluster.command("status").stdout
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
