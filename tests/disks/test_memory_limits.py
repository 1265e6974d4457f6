"""Services in cgroups: the kernel kills each at its worst moment, and a driver with many blocks keeps within its limit."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.journal_opening import BLOCKS, write
from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.faulty.limits import MemoryGroup, memory_group
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import AHEAD, Cluster
from tests.support.processes.copied import SECOND, copying, end_without_copies
from tests.support.processes.services import _Service

pytestmark = [pytest.mark.kafka, pytest.mark.long]

#: of a driver's own process; a Spark engine's JVM comes on top
DRIVER_BYTES = 512 * 1024 * 1024
ROUNDS = 2
#: what a process may use beyond what it has when its limit begins
STARVED_BYTES = 256 * 1024


def test_services_killed_by_the_kernel_for_lack_of_memory_lose_and_repeat_nothing(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-1, INV-2, INV-3. A receiver dies while it holds blocks that the driver has not accepted. A driver dies in the middle
    of a job with batches behind it."""
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
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
        assert {name: cluster.starts(name) for name in cluster.names} == {
            "r1": 1 + ROUNDS, "driver": 1 + ROUNDS, "agent": 1,
        }  # fmt: skip


def test_an_agent_killed_by_the_kernel_in_the_middle_of_a_copy_loses_and_repeats_nothing(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-1, INV-2, INV-8. The copy has all its bytes, and not its name yet."""
    with copying(tmp_path, kafka_broker, topic_name()) as (cluster, flow):
        cluster.await_records(50)
        cluster.kill9(SECOND)
        cluster.restart(SECOND, failpoints="agent.before-copy-kept=hold")
        cluster.await_hit("agent.before-copy-kept")
        starve(cluster, SECOND, failpoints="")
        go_on(cluster)
        cluster.wait(lambda: any(b.other_hosts for b in cluster.state().blocks.values()), "copies after the kill")
        end_without_copies(cluster, flow)


def test_a_driver_killed_by_the_kernel_while_it_opens_the_journal_loses_and_repeats_nothing(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-2, INV-3. The first one dies after its claim, the next one after its snapshot. A batch is unfinished."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic, rate=2_000, padding=400) as flow,
        Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, driver=AHEAD) as cluster,
    ):
        cluster.await_records(100)
        cluster.killed_behind_a_held_job(flow, "driver")
        marks = ("journal.opening", "journal.after-snapshot")
        cluster.restart("driver", failpoints=f"{marks[0]}=hold")
        cluster.await_hit(marks[0])
        starve(cluster, "driver", failpoints=f"{marks[1]}=hold", held=marks[0])
        cluster.await_hit(marks[1])
        starve(cluster, "driver", failpoints="", held=marks[1])
        (tmp_path / "hold").unlink()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
        assert cluster.starts("driver") == 4


def starve(cluster: Cluster, name: str, failpoints: str | None = None, held: str = "") -> None:
    """Let the kernel kill a process as soon as it needs more memory, and start it again. ``held``: where it is held."""
    process = cluster.process(name)
    with memory_group() as group:
        group.limit(STARVED_BYTES)
        group.add(process.pid)
        if held:
            cluster.release_hold(held)
        cluster.wait(lambda: process.poll() is not None, f"the kernel to kill {name}", may_end=[name])
        assert process.wait() == -signal.SIGKILL, cluster.describe()
        assert group.kills == 1
    cluster.restart(name, failpoints)


def go_on(cluster: Cluster) -> None:
    """Wait until each partition has completed records that were taken in from now on."""
    status = cluster.wait(cluster.status, "status")
    positions = {(p.topic, p.partition): p.position for p in status.partitions}

    def done() -> bool:
        now = cluster.status()
        return now is not None and all(p.completed > positions[p.topic, p.partition] for p in now.partitions)

    cluster.wait(done, "each partition to go on")


class LimitedCluster(Cluster):
    """Each process is in a group of the kernel from its first page on."""

    forks = False

    def __init__(self, group: MemoryGroup, *given: Any, **settings: Any) -> None:
        self._group = group
        super().__init__(*given, **settings)

    def _on_its_host(self, service: _Service, command: Sequence[str]) -> Sequence[str]:
        return self._group.command(command)


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
        with LimitedCluster(
            group, tmp_path, kafka_broker.options, [topic], receivers=0, stream="bench", job="jobs:none", start=False
        ) as cluster:
            with (tmp_path / "jobs.py").open("a") as jobs:
                jobs.write("\n\ndef none(batch):\n    pass\n")
            cluster.start("driver")
            cluster.wait(
                lambda: (s := cluster.status()) and not s.waiting_blocks and s.batches_completed,
                "the blocks to be completed",
            )
            cluster.wait(
                lambda: (s := cluster.state()).archived_number == 1 and len(s.copies) == 2 and not s.uncovered,
                "the batch in the history, and in both snapshot copies",
            )
            cluster.kill9("driver")
            cluster.restart("driver")
            cluster.wait(lambda: (s := cluster.status()) and s.batches_completed, "the next driver to lead")
            assert not group.kills and cluster.starts("driver") == 2
            assert [batch.number for batch in cluster.finished_batches()] == [1]
        print(f"{BLOCKS} blocks: at most {group.peak_bytes / 1e6:.0f} MB of {DRIVER_BYTES / 1e6:.0f} MB")
