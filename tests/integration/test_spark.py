"""The whole way with Spark: Kafka, receivers, WAL, driver, agent, and a job over a DataFrame or Arrow batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster

#: in the log of a driver whose engine is warm
WARM = "Spark is warm"

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_a_standby_with_a_warm_spark_takes_over_in_the_middle_of_a_job_and_runs_it_with_the_same_rows(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-3, INV-4. The standby has started and warmed Spark before the leader is killed, and uses this one application."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        spark_cluster(tmp_path, kafka_broker, topic, "by_dataframe") as cluster,
        Flow(kafka_broker.options, topic) as flow,
    ):
        urls = [cluster.driver_url, cluster.another_url()]
        cluster.write_settings(driver={"urls": urls})
        for name in ("agent", "r1", "driver"):
            cluster.start(name, keep=False)
        await_spark(cluster)
        assert warnings(cluster, "driver") == [], "a normal start warns of nothing"
        cluster.await_records(100)
        cluster.start_rival("second", "driver", "--standby", url=urls[1])
        cluster.wait(lambda: WARM in cluster.log("second"), "a warm standby")
        batch = cluster.hold_a_job()
        cluster.kill9("driver")
        (cluster.folder / "hold").unlink()
        go_on(cluster, flow, batch)
        log = cluster.log("second")
        assert log.index(WARM) < log.index("taking over"), "the standby warmed Spark only when it led"
        assert log.count(WARM) == 1
        assert [line for line in warnings(cluster, "second") if "Spark" in line or "engine" in line] == []


@pytest.mark.long
def test_a_driver_killed_in_the_middle_of_a_spark_job_runs_it_again_with_the_same_rows(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-3: same id, rows, order and packing. The job that ran before the kill had read its rows already."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with spark_cluster(tmp_path, kafka_broker, topic, "by_arrow") as cluster, Flow(kafka_broker.options, topic) as flow:
        cluster.start_all()
        await_spark(cluster)
        cluster.await_records(100)
        batch = cluster.hold_a_job()
        cluster.kill9("driver")
        cluster.restart("driver")
        (cluster.folder / "hold").unlink()
        await_spark(cluster)
        go_on(cluster, flow, batch)
        assert cluster.starts("driver") == 2


def spark_cluster(folder: Path, broker: KafkaBroker, topic: str, job: str) -> Cluster:
    return Cluster(
        folder, broker.options, [topic], receivers=1, engine="spark", job=f"jobs:{job}", start=False,
        driver={"batch_interval": "500ms", "lease_duration": "20s"},  # it may be renewed late while another Spark starts
    )  # fmt: skip


def warnings(cluster: Cluster, name: str) -> list[str]:
    return [line for line in cluster.log(name).splitlines() if "WARN" in line]


def await_spark(cluster: Cluster) -> None:
    cluster.wait(lambda: (s := cluster.status()) and s.state == "running", "Spark's start", seconds=250.0)


def go_on(cluster: Cluster, flow: Flow, batch: int) -> None:
    target = flow.records + 300
    cluster.wait(lambda: flow.records >= target, "more records")
    flow.stop()
    cluster.await_completed(flow.truth.ends())
    assert batch in cluster.completed_batches()
    cluster.check(flow.truth)
