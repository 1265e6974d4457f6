"""The share of ranges that Spark's tasks read on their own host.

Three worker hosts, each with an agent, a receiver and a Spark worker; one host with Spark's master and the driver; one with
Kafka. They are network namespaces on this machine (``tests.support.spark.hosts``). Each worker has one slot, each batch has
three tasks, and ``spark.locality.wait`` is 5 s. Without locality the share would be about a third. Each run is a series of
batches of the same stream; the first series, during which executors start, is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.measured import Measured, Threshold, figure
from benchmarks.setup import Setup
from forebay.messages import StatusAnswer
from forebay.model.errors import UsageError
from tests.support.kafka.flow import Flow
from tests.support.processes.namespaces import Network, require_namespaces
from tests.support.spark.hosts import DRIVER, KAFKA, HostBroker, SparkHosts
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


def _refuse(message: str) -> None:
    raise UsageError(message)


def _all_at_work(status: StatusAnswer | None) -> bool:
    return status is not None and {r.host for r in status.managed if r.state == "active"} == set(WORKERS)


def _share(cluster: SparkHosts, records: int) -> float:
    """Return the share while this number of further records is completed."""
    before = cluster.wait(cluster.status, "status")
    cluster.await_records(before.records_completed + records)
    after = cluster.wait(cluster.status, "status")
    read = {tier: after.tiers.get(tier, 0) - before.tiers.get(tier, 0) for tier in TIERS}
    return read["local"] / sum(read.values())
