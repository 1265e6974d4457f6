"""The whole way with Spark: Kafka, receivers, WAL, driver, agent, and a job over a DataFrame or Arrow batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.cluster import Cluster
from tests.support.flow import Flow

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.mark.parametrize("job", ["by_dataframe", pytest.param("by_arrow", marks=pytest.mark.long)])
def test_a_driver_killed_in_the_middle_of_a_spark_job_runs_it_again_with_the_same_rows(
    job: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-3: same id, rows, order and packing. The job that ran before the kill had read its rows already."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with Cluster(
        tmp_path, kafka_broker.options, [topic], receivers=1, engine="spark", job=f"jobs:{job}",
        driver={"batch_interval": "500ms"},
    ) as cluster:  # fmt: skip
        await_spark(cluster)
        assert [line for line in cluster.log("driver").splitlines() if "WARN" in line] == [], (
            "a normal start warns of nothing"
        )
        with Flow(kafka_broker.options, topic) as flow:
            kill_in_the_middle_of_a_job(cluster, flow)


def await_spark(cluster: Cluster) -> None:
    cluster.wait(lambda: (s := cluster.status()) and s.state == "running", "Spark's start", seconds=250.0)


def kill_in_the_middle_of_a_job(cluster: Cluster, flow: Flow) -> None:
    cluster.await_records(100)
    batch = cluster.hold_a_job()
    cluster.kill9("driver")
    cluster.restart("driver")
    (cluster.folder / "hold").unlink()
    await_spark(cluster)
    target = flow.records + 300
    cluster.wait(lambda: flow.records >= target, "more records")
    flow.stop()
    cluster.await_completed(flow.truth.ends())
    assert batch in cluster.completed_batches()
    cluster.check(flow.truth)
    assert cluster.starts("driver") == 2
