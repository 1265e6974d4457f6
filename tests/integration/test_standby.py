"""A standby takes over under load from a killed driver, and from a paused one that resumes after it has lost its lease."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.http.client import Client
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import ForebayError
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster

pytestmark = pytest.mark.kafka


def health(url: str) -> str:
    client = Client(url, timeout_seconds=3.0)
    try:
        client.request("GET", "/v1/health")
    except ForebayError as error:
        return str(error)
    finally:
        client.close()
    return ""


def test_standby_takes_over_from_a_killed_driver_and_the_next_one_from_a_paused_one(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-4. Receivers and agent, never restarted, find the one that leads. The paused one is held in the middle of a job, and
    wakes when others have gone on: it changes nothing and exits with 4. Each batch is completed once."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(tmp_path, kafka_broker.options, [topic], start=False, driver={"lease_duration": "5s"}) as cluster,
    ):
        first = cluster.driver_url
        urls = [first, cluster.another_url(), cluster.another_url()]
        cluster.write_settings(driver={"urls": urls})
        for name in ("agent", "r1", "r2"):
            cluster.start(name, keep=False)
        cluster.start("driver", keep=False)
        cluster.await_records(100)
        cluster.start_rival("second", "driver", "--standby", url=urls[1])
        cluster.wait(lambda: f"{first} (host" in health(urls[1]), "the standby to say who leads")
        asked = cluster.command("status", environment={"FOREBAY__DRIVER__URL": urls[2]})
        assert asked.returncode == 0, asked.stderr  # no process listens at the third, and the second stands by

        cluster.kill9("driver")
        cluster.await_records(flow.records)  # asked of the second
        assert "taking over" in cluster.log("second")

        cluster.start_rival("third", "driver", "--standby", url=urls[2])
        cluster.wait(lambda: f"{urls[1]} (host" in health(urls[2]), "the next standby to say who leads")
        cluster.hold_a_job()
        cluster.pause("second")
        cluster.wait(lambda: "leads stream" in cluster.log("third"), "the next standby to take over")
        (tmp_path / "hold").unlink()
        cluster.await_records(flow.records)
        cluster.wake("second")
        assert cluster.await_end("second") == 4
        target = flow.records + 300
        cluster.wait(lambda: flow.records >= target, "more records")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
        assert all(cluster.starts(name) == 1 for name in ("agent", "r1", "r2", "third"))
