"""Services in cgroups: the kernel kills each at its worst moment, and a driver with many blocks keeps within its limit."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.journal_opening import BLOCKS, write
from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.faulty.limits import MemoryGroup, memory_group
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import AHEAD, Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.long]

#: of a driver's own process; a Spark engine's JVM comes on top
DRIVER_BYTES = 512 * 1024 * 1024
ROUNDS = 2
#: what a process may use beyond what it has when its limit begins
STARVED_BYTES = 256 * 1024


def test_services_killed_by_the_kernel_for_lack_of_memory_lose_and_repeat_nothing(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-1, INV-2, INV-3. A receiver dies while it holds blocks that the driver has not accepted, the driver in the middle of a
    job with batches behind it, and the agent under load."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic, rate=2_000, padding=400) as flow,
        Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, driver=AHEAD) as cluster,
    ):
        cluster.await_records(100)
        for _ in range(ROUNDS):
            cluster.pause("driver")
            starve(cluster, "r1")
            cluster.wake("driver")
            go_on(cluster)
            cluster.allocate_behind_a_held_job()
            starve(cluster, "driver")
            (tmp_path / "hold").unlink()
            go_on(cluster)
            starve(cluster, "agent")
            go_on(cluster)
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
        assert all(cluster.starts(name) == 1 + ROUNDS for name in cluster.names)


def starve(cluster: Cluster, name: str) -> None:
    """Let the kernel kill a process as soon as it needs more memory, and start it again."""
    process = cluster.process(name)
    with memory_group() as group:
        group.limit(STARVED_BYTES)
        group.add(process.pid)
        cluster.wait(lambda: process.poll() is not None, f"the kernel to kill {name}", may_end=[name])
        assert process.wait() == -signal.SIGKILL, cluster.describe()
        assert group.kills == 1
    cluster.restart(name)


def go_on(cluster: Cluster) -> None:
    """Wait until records that were taken in from now on are completed."""
    status = cluster.wait(cluster.status, "status")
    cluster.await_records(status.records_completed + 500)


def test_a_driver_opens_completes_and_archives_a_hundred_thousand_waiting_blocks_within_its_limit(
    tmp_path: Path, kafka_broker: KafkaBroker
) -> None:
    """INV-6. The driver opens the journal, allocates the blocks in one batch, completes it, moves it to the history, and writes
    the snapshot copies that clean-up waits for, within its limit. So does the next driver, which opens one large snapshot."""
    topic = "records"  # as the journal names it
    kafka_broker.create_topic(topic)
    write(tmp_path / "written", BLOCKS)
    shutil.move(tmp_path / "written", tmp_path / "journal")
    with memory_group() as group:
        group.limit(DRIVER_BYTES)
        with Cluster(
            tmp_path, kafka_broker.options, [topic], receivers=0, stream="bench", job="jobs:none", start=False
        ) as cluster:
            with (tmp_path / "jobs.py").open("a") as jobs:
                jobs.write("\n\ndef none(batch):\n    pass\n")
            start_limited(cluster, group)
            cluster.wait(
                lambda: (s := cluster.status()) and not s.waiting_blocks and s.batches_completed,
                "the blocks to be completed",
            )
            cluster.wait(
                lambda: (s := cluster.state()).archived_number == 1 and len(s.copies) == 2 and not s.uncovered,
                "the batch in the history, and in both snapshot copies",
            )
            cluster.kill9("driver")
            start_limited(cluster, group)
            cluster.wait(lambda: (s := cluster.status()) and s.batches_completed, "the next driver to lead")
            assert not group.kills and cluster.starts("driver") == 2
            assert [batch.number for batch in cluster.finished_batches()] == [1]
        print(f"{BLOCKS} blocks: at most {group.peak_bytes / 1e6:.0f} MB of {DRIVER_BYTES / 1e6:.0f} MB")


def start_limited(cluster: Cluster, group: MemoryGroup) -> None:
    """Start the driver as a process of its own, all of whose memory counts."""
    cluster.start("driver", environment={"LD_PRELOAD": ""})
    group.add(cluster.process("driver").pid)
