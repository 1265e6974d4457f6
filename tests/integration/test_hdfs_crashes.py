"""Kill -9 at random moments, of the stream's processes and of HDFS's, with WAL and journal on HDFS.

Every offset is in exactly one completed batch, and counted once in a keyed state. The seed is printed
(tests/integration/test_random_crashes.py).
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.integration.test_random_crashes import crash_on, draw_seed
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster
from tests.support.state.counting import JOB_NAME, SETTINGS, check_counts, write_job
from tests.support.stores.hdfs import DATA_NODE, NAME_NODE, HdfsServer

pytestmark = [pytest.mark.kafka, pytest.mark.hdfs]


def on_hdfs(folder: Path, broker: KafkaBroker, topic: str, server: HdfsServer, **wal: str) -> Cluster:
    """Return a cluster whose job counts records in a keyed state."""
    root = f"{server.url}/{folder.name}"
    write_job(folder)
    return Cluster(
        folder, broker.options, [topic], job=JOB_NAME,
        wal={**SETTINGS["wal"], "url": f"{root}/wal", **wal},
        driver={**SETTINGS["driver"], "journal": f"{root}/journal"},
    )  # fmt: skip


def test_random_kills_and_restarts_of_name_node_and_data_node_lose_and_repeat_nothing(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str], hdfs_server: HdfsServer
) -> None:
    """INV-1, INV-2, INV-3, INV-4 over real processes and a real HDFS."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    draw = random.Random(draw_seed())
    with (
        Flow(kafka_broker.options, topic, rate=500) as flow,
        on_hdfs(tmp_path, kafka_broker, topic, hdfs_server) as cluster,
    ):
        cluster.await_records(1)
        killed = crash_on(cluster, flow, draw, kills=2)
        for node in draw.sample([NAME_NODE, DATA_NODE], 2):
            hdfs_server.restart(node)
            killed += crash_on(cluster, flow, draw, kills=1)
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
        check_counts(cluster, flow.truth)
        cluster.drain()
    print(f"{flow.records} records, {dict(killed)} killed, both nodes killed once: each record in exactly one batch")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_random_kills_on_hdfs_lose_and_repeat_nothing(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str], hdfs_server: HdfsServer
) -> None:
    """The long run: FOREBAY_CRASH_RECORDS and FOREBAY_CRASH_KILLS make it another size."""
    records = int(os.environ.get("FOREBAY_CRASH_RECORDS", "200000"))
    kills = int(os.environ.get("FOREBAY_CRASH_KILLS", "30"))
    topic = topic_name()
    kafka_broker.create_topic(topic)
    draw = random.Random(draw_seed())
    began = time.monotonic()
    with (
        Flow(kafka_broker.options, topic, rate=2000) as flow,
        on_hdfs(tmp_path, kafka_broker, topic, hdfs_server, segment_size="1MB") as cluster,
    ):
        cluster.await_records(1)
        killed: Counter[str] = Counter()
        while killed.total() < kills:
            killed += crash_on(cluster, flow, draw, kills=5)
            hdfs_server.restart(draw.choice([NAME_NODE, DATA_NODE]))
            due = records * killed.total() // kills
            cluster.wait(lambda due=due: flow.records >= due, f"{due} records", seconds=600.0)
        flow.stop()
        cluster.await_completed(flow.truth.ends(), seconds=300.0)
        report = cluster.check(flow.truth)
        check_counts(cluster, flow.truth)
        cluster.drain()
    print(
        f"{flow.records} records, {killed.total()} kills {dict(killed)}, {report.batches_completed} batches, "
        f"{time.monotonic() - began:.0f} s: duplicates 0, missing 0"
    )
