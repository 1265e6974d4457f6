"""Where Spark's tasks read their blocks: the share of ranges that they read on their own host.

Three worker hosts with an agent, a receiver and a Spark worker each, a host of Spark's master and the driver, and one of Kafka:
network namespaces on this machine (``tests.support.spark_hosts``), one slot on each worker, three tasks in each batch,
``spark.locality.wait`` 5 s. Without locality it would be about a third. Each run is a stretch of batches of the same stream;
the first one, while executors come, is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.measured import Measured, Threshold, figure
from benchmarks.setup import Setup
from forebay.messages import StatusAnswer
from forebay.model.errors import UsageError
from tests.support.flow import Flow
from tests.support.namespaces import Network, require_namespaces
from tests.support.spark_hosts import DRIVER, KAFKA, HostBroker, SparkHosts
from wal.reading import TIERS

WORKERS = ("w1", "w2", "w3")
TOPIC, PARTITIONS = "records", 6
#: taken in by each run
RECORDS = 20_000


def measure(setup: Setup) -> Iterator[Measured]:
    require_namespaces(_refuse)
    with (
        setup.folder() as folder,
        Network(folder, [DRIVER, KAFKA, *WORKERS], ["blocks"]) as network,
        HostBroker(folder / "kafka", network[KAFKA]) as broker,
    ):
        broker.create_topic(TOPIC, PARTITIONS)
        with (
            SparkHosts(folder, network, WORKERS, broker.options, [TOPIC]) as cluster,
            Flow(broker.options, TOPIC, partitions=range(PARTITIONS)),
        ):
            cluster.wait(lambda: _all_at_work(cluster.status()), "a receiver on each host")
            cluster.await_records(1000)
            shares = [_share(cluster, setup.records(RECORDS)) for _ in range(setup.runs)]
    yield figure(
        "locality", "ranges read on the task's own host, of 3", shares, "of all", Threshold(0.9, at_least=True)
    )


def _refuse(words: str) -> None:
    raise UsageError(words)


def _all_at_work(status: StatusAnswer | None) -> bool:
    return status is not None and {r.host for r in status.managed if r.state == "active"} == set(WORKERS)


def _share(cluster: SparkHosts, records: int) -> float:
    """While so many more records are completed."""
    before = cluster.wait(cluster.status, "status")
    cluster.await_records(before.records_completed + records)
    after = cluster.wait(cluster.status, "status")
    read = {tier: after.tiers.get(tier, 0) - before.tiers.get(tier, 0) for tier in TIERS}
    return read["local"] / sum(read.values())
