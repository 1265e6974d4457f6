"""Wall clocks that are set ahead by an hour under running services, and a standby whose clock is right.

Nothing is deleted before its time, no lease is lost or taken, and a certificate that seems expired makes its reader wait.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.certificates import Authority
from tests.support.faulty.machine import FaultyCluster
from tests.support.flow import Flow

pytestmark = [pytest.mark.kafka, pytest.mark.long]

HOUR = 3600.0
HALF_AN_HOUR_IN_DAYS = 1 / 48


def test_clocks_that_are_set_ahead_delete_fence_and_lose_nothing(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-2, INV-4, INV-8. ``wal.retention`` is half an hour, and so is the validity of the certificate."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    authority = Authority(tmp_path)
    home = tmp_path / "stream"
    home.mkdir()
    cluster = FaultyCluster(
        home, kafka_broker.options, [topic], receivers=1,
        wal={"retention": "30m", "retention_size": "0B", "retention_blocks": 0, "retention_free": "0B"},
        driver={"lease_duration": "1s"},
        security={"ca_file": str(authority.ca_file), **authority.issue("stream", valid_days=HALF_AN_HOUR_IN_DAYS)},
    )  # fmt: skip
    url = cluster.another_url()
    cluster.write_settings(driver={"urls": [cluster.driver_url, url]})
    with Flow(kafka_broker.options, topic, rate=300) as flow, cluster:
        cluster.await_records(200)
        first_segments = segments(home)
        for shim in cluster.shims.values():
            shim.set_clock(HOUR)
        go_on(cluster)
        cluster.start_rival("standby", "driver", "--standby", environment={"FOREBAY__DRIVER__URL": url})
        cluster.wait(lambda: "standby: looking for" in cluster.log("standby"), "a standby an hour behind the driver")
        go_on(cluster)
        assert "taking over" not in cluster.log("standby"), cluster.describe()

        cluster.kill9("driver")
        cluster.wait(lambda: "taking over" in cluster.log("standby"), "the standby to take over")
        cluster.listen_to(url)
        cluster.wait(lambda: "certificate has expired" in cluster.log("r1"), "the receiver to name the certificate")
        authority.issue("stream")
        go_on(cluster)
        assert first_segments <= segments(home), "completed batches stay for wal.retention"
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
        assert all(cluster.starts(name) == 1 for name in cluster.names), cluster.describe()


def go_on(cluster: FaultyCluster) -> None:
    """Wait until records that were taken in from now on are completed."""
    status = cluster.wait(cluster.status, "status")
    cluster.await_records(status.records_completed + 150)


def segments(home: Path) -> set[str]:
    return {str(path) for path in (home / "wal").glob("stream/blocks/**/*.seg")}
