"""Services in a container's sandbox: a read-only root, a fresh ``/tmp``, no capability, and no way to gain one.

No container runtime is needed: the mounts are those of ``deploy/docker/compose.yaml``, made in a mount namespace.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

from forebay.kafka.embedded.broker import KafkaBroker
from tests.conftest import missing
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster
from tests.support.processes.services import _Service
from tests.support.run.wheel import ROOT

#: arguments: the folder that the service may write to, the folder of the code, the command
SANDBOX = """
set -eu
data=$1 code=$2
shift 2
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/data /mnt/code
mount --bind "$data" /mnt/data
mount --bind "$code" /mnt/code
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir -p "$data" "$code"
mount --bind /mnt/data "$data"
mount --bind /mnt/code "$code"
mount -o remount,bind,ro "$code"
umount /mnt/data /mnt/code /mnt
mount -o remount,bind,ro /
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs -- "$@"
"""


class SandboxedCluster(Cluster):
    """Each service has a mount namespace, in which it can write to the stream's folder and to ``/tmp``."""

    forks = False

    def _on_its_host(self, service: _Service, command: Sequence[str]) -> Sequence[str]:
        return ["unshare", "--mount", "sh", "-c", SANDBOX, "sh", str(self.folder), str(ROOT), *command]


@pytest.mark.kafka
@pytest.mark.spark
def test_services_and_spark_run_with_a_read_only_root_and_no_capability(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv"))):
        missing("a read-only root needs root, unshare and setpriv")
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic) as flow,
        SandboxedCluster(
            tmp_path, kafka_broker.options, [topic], receivers=1, engine="spark", job="jobs:by_dataframe",
            driver={"batch_interval": "500ms"},
        ) as cluster,
    ):  # fmt: skip
        cluster.wait(lambda: (s := cluster.status()) and s.state == "running", "Spark's start", seconds=250.0)
        cluster.await_records(100)
        for name in cluster.names:
            process = Path("/proc", str(cluster.process(name).pid))
            assert "ro" in _options(process, "/"), name
            assert "rw" in _options(process, "/tmp"), name
            status = yaml.safe_load((process / "status").read_text().replace("\t", " "))
            assert (int(str(status["CapEff"]), 16), status["NoNewPrivs"]) == (0, 1), name
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)


def _options(process: Path, place: str) -> list[str]:
    """Return the options of the mount at ``place``, as the process sees it."""
    mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    return next(fields[5].split(",") for fields in reversed(mounts) if fields[4] == place)
