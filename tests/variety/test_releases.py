"""Upgrades from earlier releases and the way back, by their real processes, which are killed in the middle of a batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import UsageError
from tests.conftest import missing
from tests.support.kafka.flow import Flow
from tests.support.processes import witness
from tests.support.processes.cluster import Cluster
from tests.support.processes.services import COMMAND
from tests.support.run.releases import RELEASES, Release

pytestmark = [pytest.mark.long, pytest.mark.variety, pytest.mark.kafka]


def kill_in_the_middle(cluster: Cluster) -> int:
    """Kill all processes while a job is held and blocks wait behind it; return the batch of the job."""
    batch = cluster.hold_a_job()
    cluster.wait(lambda: cluster.state().waiting, "blocks that wait behind the batch")
    for name in cluster.names:
        cluster.kill9(name)
    return batch


def start(cluster: Cluster, command: Path, job: str) -> None:
    """Start all processes with the release of ``command``. Jobs are not held any more."""
    for name in cluster.names:
        cluster.install(name, command)
    (cluster.folder / "jobs.py").write_text(job)
    (cluster.folder / "hold").unlink(missing_ok=True)
    cluster.start_all()


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_release_is_upgraded_in_the_middle_of_a_batch_and_goes_back_or_refuses(
    release: Release, tmp_path: Path, own_kafka_broker: KafkaBroker
) -> None:
    """INV-2, INV-3, INV-5: the batch is completed by the next release with the same rows. The earlier release continues
    what this one wrote, or it refuses with a message that names the newer format; then this one continues."""
    try:
        old = release.unpack()
    except UsageError as error:
        missing(str(error))
    broker = own_kafka_broker
    broker.create_topic("flowing")
    with (
        Flow(broker.options, "flowing", rate=300) as flow,
        Cluster(tmp_path / "stream", broker.options, ["flowing"], start=False) as cluster,
    ):
        start(cluster, old, release.job)
        first = kill_in_the_middle(cluster)
        start(cluster, Path(COMMAND), witness.JOB)
        cluster.wait(lambda: first in cluster.completed_batches(), "this release completes the batch")
        second = kill_in_the_middle(cluster)
        start(cluster, old, release.job)
        refused = cluster.wait(
            lambda: ended(cluster) or ("went back" if second in cluster.completed_batches() else ""),
            "the earlier release completes the batch, or refuses the journal",
            may_end=cluster.names,
        )
        if refused != "went back":
            assert "newer" in refused, refused
        for name in cluster.names:
            cluster.kill9(name)
        start(cluster, Path(COMMAND), witness.JOB)
        cluster.wait(lambda: second in cluster.completed_batches(), "this release completes the batch")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check_audit()
        witness.assert_same_records(cluster.records_seen(), flow.truth.table())
        cluster.check_commits()
    print(f"{release.name}: {flow.records} records, {refused}")


def test_release_without_pauses_refuses_a_journal_with_a_pause_and_says_so(
    tmp_path: Path, own_kafka_broker: KafkaBroker
) -> None:
    """INV-5: it would go on with batches that an operator has stopped. After `forebay resume` and a restart it goes back."""
    try:
        old = RELEASES[0].unpack()
    except UsageError as error:
        missing(str(error))
    broker = own_kafka_broker
    broker.create_topic("flowing")
    with (
        Flow(broker.options, "flowing", rate=300) as flow,
        Cluster(tmp_path / "stream", broker.options, ["flowing"], start=False) as cluster,
    ):
        start(cluster, Path(COMMAND), witness.JOB)
        cluster.await_records(1)
        assert cluster.command("pause").returncode == 0
        assert cluster.terminate("driver") == 0
        cluster.install("driver", old)
        cluster.start("driver")
        assert cluster.await_end("driver") == 1
        assert "newer" in ended_with(cluster)
        cluster.install("driver", Path(COMMAND))
        for step in ("resume", "status"):
            cluster.start("driver")
            cluster.wait(cluster.status, "this release leads")
            assert cluster.command(step).returncode == 0
            assert cluster.terminate("driver") == 0
        for name in ("agent", "r1", "r2"):
            cluster.kill9(name)
        start(cluster, old, RELEASES[0].job)
        before = len(cluster.completed_batches())
        cluster.wait(lambda: len(cluster.completed_batches()) > before + 1, "the earlier release completes batches")
        flow.stop()


def ended_with(cluster: Cluster) -> str:
    return cluster.log("driver").splitlines()[-1]


def ended(cluster: Cluster) -> str:
    """Return the driver's last line if the driver has ended."""
    return ended_with(cluster) if cluster.process("driver").poll() is not None else ""
