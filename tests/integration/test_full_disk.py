"""A small disk that fills up under the WAL, the local copies and the journal in turn.

Processes that need space wait and report it, nothing is lost, and freed space is enough to continue.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.settings.schema import WalSettings
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster

pytestmark = pytest.mark.kafka

DISK_BYTES = 4_000_000


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A filesystem of DISK_BYTES at ``folder``."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("NOT TESTED: a small filesystem is mounted by root on Linux alone; run as root to test a full disk")
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"NOT TESTED: a small filesystem can't be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """A file that takes all that is left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for portion in (65536, 4096, 1):
            try:
                while file.write(b"x" * portion) == portion:
                    pass
            except OSError:
                continue
    return filler


def finish(cluster: Cluster, flow: Flow, killed: str = "") -> None:
    target = flow.records + 200
    cluster.wait(lambda: flow.records >= target, "more records")
    flow.stop()
    cluster.await_completed(flow.truth.ends())
    cluster.check(flow.truth)
    assert all(cluster.starts(name) == 1 + (name == killed) for name in cluster.names), "lack of space ends nothing"


def test_receivers_wait_for_space_in_the_wal_and_report_it(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """Lack of space is not a store timeout (rule 7): it lasts longer than ``store_timeout`` here."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        small_disk(tmp_path / "disk") as disk,
        Flow(kafka_broker.options, topic) as flow,
        Cluster(
            tmp_path, kafka_broker.options, [topic], receivers=1,
            wal={"url": f"file://{disk}/wal"}, receiver={"store_timeout": "1s"},
        ) as cluster,
    ):  # fmt: skip
        cluster.await_records(100)
        filler = fill(disk)
        cluster.wait(
            lambda: (r := cluster.receiver("r1")) and "no space" in r.detail, "the receiver to say that it waits"
        )
        stuck = cluster.wait(cluster.status, "status")
        target = flow.records + 1500
        cluster.wait(lambda: flow.records >= target, "records while the disk is full")
        cluster.wait(lambda: (r := cluster.receiver("r1")) and r.state == "waiting", "the receiver to wait still")
        assert cluster.wait(cluster.status, "status").batches_completed >= stuck.batches_completed
        filler.unlink()
        finish(cluster, flow)


def test_completed_batches_leave_the_wal_before_their_time_where_the_disk_is_small(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """With the default retention a disk smaller than ``wal.retention_free`` keeps none of them, and intake goes on."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    retention = {
        key: getattr(WalSettings(url="none"), key)
        for key in ("retention", "retention_size", "retention_blocks", "retention_free")
    }
    with (
        small_disk(tmp_path / "disk") as disk,
        Flow(kafka_broker.options, topic, rate=1_000, padding=1_000) as flow,
        Cluster(
            tmp_path, kafka_broker.options, [topic], receivers=1,
            wal={
                **retention, "retention": f"{retention['retention']:g}s", "retention_size": f"{retention['retention_size']}B",
                "retention_free": f"{retention['retention_free']}B", "url": f"file://{disk}/wal", "reserve": "1MB",
            },
            receiver={"local_copies": False, "block_size": "100KB"},
        ) as cluster,
    ):  # fmt: skip
        cluster.wait(lambda: flow.records * 1_000 >= 4 * DISK_BYTES, "four times as many records as the disk holds")
        finish(cluster, flow)


def test_local_copies_are_skipped_for_lack_of_space_and_counted(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """The WAL has every block: intake goes on, batches read from it."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        small_disk(tmp_path / "disk") as disk,
        Flow(kafka_broker.options, topic) as flow,
        Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, agent={"blocks": f"{disk}/blocks"}) as cluster,
    ):
        cluster.await_records(100)
        fill(disk)
        cluster.wait(
            lambda: (r := cluster.receiver("r1")) and r.counters.get("local_copies_given_up"),
            "copies skipped, and counted",
        )
        cluster.wait(lambda: (s := cluster.status()) and s.tiers.get("wal"), "batches read from the WAL")
        finish(cluster, flow)


def test_driver_waits_for_space_in_the_journal_and_reports_it(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """Nothing is answered that is not durable; the readiness check says why."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        small_disk(tmp_path / "disk") as disk,
        Flow(kafka_broker.options, topic) as flow,
        Cluster(
            tmp_path, kafka_broker.options, [topic], receivers=1, driver={"journal": f"file://{disk}/journal"}
        ) as cluster,
    ):
        cluster.await_records(100)
        filler = fill(disk)
        cluster.wait(lambda: "journal waits for space" in cluster.health(), "the driver to say that it waits")
        result = cluster.command("status")
        assert result.returncode == 1 and "journal waits for space" in result.stderr, result.stderr
        target = flow.records + 1000
        cluster.wait(lambda: flow.records >= target, "records while the disk is full")
        filler.unlink()
        finish(cluster, flow)


def test_a_disk_that_receivers_filled_up_to_the_reserve_is_freed_by_completing(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """WAL and journal on one disk. While a job is held the WAL grows to its reserve; a driver that is killed then opens on
    that disk; and completions, archive and clean-up, which need room themselves, make room without anybody's help."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        small_disk(tmp_path / "disk") as disk,
        Flow(kafka_broker.options, topic, rate=1_000, padding=400) as flow,
        Cluster(
            tmp_path, kafka_broker.options, [topic], receivers=1,
            wal={"url": f"file://{disk}/wal", "reserve": "2MB"},
            driver={"journal": f"file://{disk}/journal", "journal_reserve": "1MB"},
            receiver={"local_copies": False, "block_size": "100KB"},
        ) as cluster,
    ):  # fmt: skip
        cluster.await_records(100)
        (tmp_path / "hold").touch()
        cluster.wait(
            lambda: (r := cluster.receiver("r1")) and "(wal.reserve)" in r.detail, "the receiver to leave the reserve"
        )
        free = os.statvfs(disk)
        assert free.f_bavail * free.f_frsize > 1_000_000, "the reserve is not for blocks"
        cluster.kill9("driver")
        cluster.restart("driver")
        status = cluster.wait(cluster.status, "a driver that opens on the full disk")
        assert status.timeline == 1
        (tmp_path / "hold").unlink()
        finish(cluster, flow, killed="driver")


def test_a_driver_down_to_its_reserve_completes_batches_and_takes_nothing_in(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """Receivers keep what they hold, and say so; when there is room again, all goes on."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        small_disk(tmp_path / "disk") as disk,
        Flow(kafka_broker.options, topic) as flow,
        Cluster(
            tmp_path, kafka_broker.options, [topic], receivers=1,
            driver={"journal": f"file://{disk}/journal", "journal_reserve": "1MB"},
        ) as cluster,
    ):  # fmt: skip
        cluster.await_records(100)
        filler = fill(disk)
        with filler.open("r+b") as file:
            file.truncate(filler.stat().st_size - 700_000)
        cluster.wait(lambda: "down to its reserve" in cluster.health(), "the driver to say that it takes nothing in")
        cluster.wait(
            lambda: (
                (s := cluster.status()) and not s.waiting_blocks and not any(b.state != "completed" for b in s.batches)
            ),
            "all that was taken in to be completed",
        )
        result = cluster.command("status")
        assert result.returncode == 1
        assert "down to its reserve" in result.stdout and "down to its reserve" in result.stderr
        before = cluster.wait(cluster.status, "status").records_completed
        target = flow.records + 300
        cluster.wait(lambda: flow.records >= target, "records while nothing is taken in")
        assert cluster.wait(cluster.status, "status").records_completed == before
        filler.unlink()
        finish(cluster, flow)
