"""A cluster of several hosts with a real Spark and a real Kafka: where tasks read, and the effect of lost hosts and cut links.

Whatever happens, each record is in exactly one batch, and the audit is clean (INV-2, INV-3).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.conftest import missing, require_kafka
from tests.integration.test_managed_receivers import managed, on_hosts
from tests.integration.test_spark import await_spark
from tests.support.kafka.flow import Flow
from tests.support.processes.namespaces import Network, require_namespaces
from tests.support.processes.witness import seen_by
from tests.support.spark.hosts import DRIVER, KAFKA, HostBroker, SparkHosts
from tests.support.state.states import read_past_the_driver
from tests.support.stores import s3
from tests.support.stores.contract import require_s3

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

WORKERS = ("w1", "w2", "w3")
TOPIC = "flights"
PARTITIONS = 6


#: the first Python worker of an executor takes seconds to start where much else runs, and its host's next task waits meanwhile
SPARK = {"spark.locality.wait": "20s"}

#: of some batches, so that most take no longer than they do without a state
BATCHES_PER_COUNT = 10
#: the workers write the shards of the state. The function is in a module that they have not installed
JOB = f"""
import pyarrow as pa

import jobs


def count(batch):
    jobs.by_dataframe(batch)
    if batch.id % {BATCHES_PER_COUNT} == 0:
        state = batch.state("counts", "partition int, count bigint, sum bigint", "partition", shards=3)
        state.update(batch.df.select("partition", "offset"), add)


def add(known, rows):
    new = rows.group_by("partition").aggregate([("offset", "count"), ("offset", "sum")])
    new = new.rename_columns({{"offset_count": "count", "offset_sum": "sum"}}).select(known.column_names)
    both = pa.concat_tables([known, new.cast(known.schema)]).group_by("partition")
    total = both.aggregate([("count", "sum"), ("sum", "sum")]).rename_columns({{"count_sum": "count", "sum_sum": "sum"}})
    return total.join(new.select(["partition"]), "partition", join_type="inner")
"""


@dataclass
class Scene:
    cluster: SparkHosts
    flow: Flow
    counts: bool

    @property
    def network(self) -> Network:
        return self.cluster.network

    def go_on(self, records: int = 300) -> None:
        """Until so many more records are completed, of those taken in from now on."""
        status = self.cluster.status()
        begun = self.flow.records
        self.cluster.await_records(max(begun, status.records_completed if status else 0) + records)

    def all_at_work(self, after: str) -> None:
        """Until the receivers run, wherever they were placed, own all partitions, and more is completed."""

        def found() -> bool:
            receivers = managed(self.cluster).values()
            owners = self.cluster.owners()
            return (
                len([r for r in receivers if r.state == "active" and r.pid and not r.moves_to]) == len(WORKERS)
                and len(owners) == PARTITIONS
                and set(owners.values()) == {r.receiver_id for r in receivers}
            )

        self.cluster.wait(found, f"all to run again after the cut {after}")
        self.go_on()

    def lose_for_good(self, name: str) -> None:
        """Batches go on, and its receiver runs elsewhere."""
        self.cluster.lose(name)
        one, other = (worker for worker in WORKERS if worker != name)
        elsewhere = [(one, one, other), (one, other, other)]
        self.cluster.wait(
            lambda: next((True for hosts in elsewhere if on_hosts(self.cluster, *hosts)), None),
            "its receiver elsewhere",
        )
        self.go_on()

    def end(self) -> None:
        """All is completed, each record once."""
        self.flow.stop()
        self.cluster.await_completed(self.flow.truth.ends())
        self.cluster.check(self.flow.truth)
        if self.counts:
            counted = read_past_the_driver(self.cluster.wal_storage, self.cluster.state(), "counts")
            assert counted.equals(self.expected_counts())

    def expected_counts(self) -> pa.Table:
        """Of the rows that the job saw in the completed batches that it counts."""
        batches = [batch for batch in self.cluster.completed_batches() if batch % BATCHES_PER_COUNT == 0]
        found = (
            seen_by(self.cluster.seen, batches)
            .group_by("partition")
            .aggregate([("offset", "count"), ("offset", "sum")])
        )
        return found.rename_columns({"offset_count": "count", "offset_sum": "sum"}).sort_by("partition")


@contextmanager
def scene_of(
    folder: Path, *, counts: bool = False, on_s3: bool = False, **settings: Mapping[str, Any]
) -> Iterator[Scene]:
    """``counts``: the job also counts records in a keyed state. ``on_s3``: WAL and journal are on S3, on Kafka's host."""
    require_kafka()
    require_namespaces(missing)
    with (
        Network(folder, [DRIVER, KAFKA, *WORKERS], ["blocks"]) as network,
        HostBroker(folder / "kafka", network[KAFKA]) as broker,
        ExitStack() as more,
    ):
        if on_s3:
            (folder / "s3").mkdir()
            server = more.enter_context(s3.s3_server(folder / "s3", network[KAFKA]))
            urls = {"wal": {"url": f"s3://{s3.BUCKET}/wal"}, "driver": {"journal": f"s3://{s3.BUCKET}/journal"}}
            settings |= {"storage": s3.options(server.url)}
            settings |= {name: {**settings.get(name, {}), **own} for name, own in urls.items()}
        broker.create_topic(TOPIC, PARTITIONS)
        (folder / "counting.py").write_text(JOB)
        with SparkHosts(
            folder,
            network,
            WORKERS,
            broker.options,
            [TOPIC],
            job="counting:count" if counts else "jobs:by_dataframe",
            # what is tested are tasks: the driver would read these batches itself
            **{**settings, "spark": {**SPARK, "small_batch": "0B", **settings.get("spark", {})}},
        ) as cluster:
            cluster.wait(lambda: on_hosts(cluster, *WORKERS), "a receiver on each host")
            await_spark(cluster)
            cluster.await_executors()
            with Flow(broker.options, TOPIC, partitions=range(PARTITIONS)) as flow:
                yield Scene(cluster, flow, counts)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    spark = {"modules": ["counting", "jobs"]}
    with scene_of(tmp_path, counts=True, agent={"store_back": True}, spark=spark) as scene:
        yield scene


def stored_back(cluster: SparkHosts, *hosts: str) -> set[str]:
    """Ids of the blocks whose copies the agents of ``hosts`` were given."""
    return {path.stem for host in hosts for path in (cluster.folder / "hosts" / host / "blocks").rglob("*.copy")}


def behind_the_held_job(cluster: SparkHosts, host: str) -> set[str]:
    """Ids of the blocks that ``host`` wrote and that batches behind the one in work need."""
    state = cluster.state()
    _, *behind = state.unfinished()
    blocks = {block_id for batch in behind for block_id in batch.block_ids}
    return {block_id for block_id in blocks if state.blocks[block_id].meta.host == host}


def share_of_local_reads(cluster: SparkHosts) -> float:
    status = cluster.wait(cluster.status, "status")
    assert status.tiers
    return status.tiers.get("local", 0) / sum(status.tiers.values())


@pytest.mark.timeout(1200)  # five Javas start, and the machine may be busy with other tests
def test_tasks_read_what_their_host_holds_and_cut_lines_and_a_lost_host_cost_no_batch(scene: Scene) -> None:
    """All cuts are in the long form, below. What lay on the lost host is read from the WAL, and stored back where it was read.
    A keyed state that tasks on all hosts write counts each record once."""
    cluster, network = scene.cluster, scene.network
    scene.go_on(1000)
    assert share_of_local_reads(cluster) >= 0.9, cluster.describe()
    shown = cluster.command("status")
    assert re.search(r"\((9\d|100) % local\)", shown.stdout), shown.stdout + shown.stderr

    network.cut_way("w2", KAFKA)
    cluster.allocate_behind_a_held_job()
    held = cluster.wait(lambda: behind_the_held_job(cluster, "w3"), "blocks of the host that is cut off behind the job")
    network.cut_off("w3")
    (cluster.folder / "hold").unlink()
    # clean-up takes them away soon after
    cluster.wait(lambda: stored_back(cluster, "w1", "w2") & held, "some of them to be stored back")
    scene.go_on()
    network.restore_way("w2", KAFKA)
    scene.lose_for_good("w3")
    scene.end()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_keyed_state_on_s3_that_tasks_of_all_hosts_write_counts_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-3: also when one of the hosts is lost."""
    require_s3()
    for name, value in s3.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    spark = {"modules": ["counting", "jobs"]}
    with scene_of(tmp_path, counts=True, on_s3=True, spark=spark) as scene:
        scene.go_on(1000)
        scene.network.cut_off("w3")
        scene.go_on()
        scene.lose_for_good("w3")
        scene.end()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_without_a_wal_and_with_a_replica_a_lost_host_costs_no_batch(tmp_path: Path) -> None:
    """INV-1, INV-5: blocks of the lost host are read from their replicas, not from Kafka."""
    settings: dict[str, Any] = {"wal": {"url": "none"}, "receiver": {"copies": 2}, "kafka": {"read_blocks": False}}
    with scene_of(tmp_path, **settings) as scene:
        scene.go_on(1000)
        assert share_of_local_reads(scene.cluster) >= 0.9, scene.cluster.describe()
        scene.network.cut_off("w3")
        scene.go_on()
        scene.lose_for_good("w3")
        scene.go_on(1000)
        scene.end()
        tiers = scene.cluster.wait(scene.cluster.status, "status").tiers
        # a replica is local to the tasks on its host: Spark prefers that host
        assert tiers and not tiers.keys() & {"wal", "kafka"}, tiers
        assert not (tmp_path / "wal").exists()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_without_a_wal_a_batch_whose_two_copies_are_lost_with_their_hosts_stops_and_is_never_empty(
    tmp_path: Path,
) -> None:
    """INV-5: an alert that names the ranges; the job is not called with what is left of the batch."""
    settings: dict[str, Any] = {"wal": {"url": "none"}, "receiver": {"copies": 2}, "kafka": {"read_blocks": False}}
    with scene_of(tmp_path, **settings) as scene:
        cluster = scene.cluster
        scene.go_on()
        cluster.allocate_behind_a_held_job()
        scene.flow.stop()
        state = cluster.state()
        batch = max((b for b in state.batches.values() if b.completed_ms is None), key=lambda b: b.number)
        block = state.blocks[batch.block_ids[0]]
        assert len(set(block.hosts)) == 2
        for host in block.hosts:
            cluster.lose(host)
        (tmp_path / "hold").unlink()
        stopped = cluster.wait(
            lambda: next((b for s in [cluster.status()] if s for b in s.batches if b.state == "unreadable"), None),
            "a batch that can't be read",
        )
        lost = {r.label for b in state.blocks.values() if set(b.hosts) == set(block.hosts) for r in b.meta.ranges}
        assert any(label in stopped.detail for label in lost), stopped.detail
        shown = cluster.command("status")
        assert "unreadable" in shown.stdout, shown.stdout + shown.stderr
        assert stopped.batch_id not in cluster.completed_batches()
        assert not (cluster.seen / f"{stopped.batch_id}.begun").exists()
        assert cluster.audit().clean


CUTS = [("w1", DRIVER), (DRIVER, "w1"), ("w2", KAFKA), (KAFKA, "w2"), (DRIVER, KAFKA), (KAFKA, DRIVER)]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_cut_of_any_link_loses_and_repeats_nothing(scene: Scene) -> None:
    """Between a receiver's host and the driver (which is its agent's and executor's line too), that host and Kafka, driver and
    Kafka: each way alone and both; an agent alone; a host from all others, which then comes back; each longer than every
    time-out."""
    cluster, network = scene.cluster, scene.network
    scene.go_on()
    for source, target in CUTS:
        network.cut_way(source, target)
        scene.go_on(3000)
        network.restore_way(source, target)
        scene.all_at_work(f"{source} → {target}")
    for one, other in CUTS[::2]:
        network.cut(one, other)
        scene.go_on(3000)
        network.restore(one, other)
        scene.all_at_work(f"{one} – {other}")
    kept = processes(cluster)
    cluster.pause("w2")
    scene.go_on(6000)
    assert processes(cluster) == kept, "a silent agent costs no receiver that still sends heartbeats"
    cluster.wake("w2")
    scene.all_at_work("w2's agent – all others")
    assert processes(cluster) == kept
    network.cut_off("w3")
    scene.go_on(3000)
    network.put_back("w3")
    scene.all_at_work("w3 – all others")
    scene.end()


def processes(cluster: SparkHosts) -> dict[str, tuple[str, int]]:
    """Receiver → host and process."""
    return {name: (receiver.host, receiver.pid) for name, receiver in managed(cluster).items()}
