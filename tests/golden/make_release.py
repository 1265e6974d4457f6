"""Writes the golden files of a release: ``python -m tests.golden.make_release NAME…`` (names: tests/support/run/releases.py).

Its driver, agent and receivers run on a real Kafka, and all are killed while a job runs and blocks wait. As in ``make_v1``,
existing golden files are never edited or overwritten.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Truth, numbered, produce
from tests.support.processes.cluster import Cluster
from tests.support.run.releases import RELEASES, Release

PORTION = 200
TOPIC = "t"


def make(release: Release, folder: Path, broker: KafkaBroker) -> None:
    if release.golden.exists():
        raise SystemExit(f"{release.golden} exists: golden files are never written over")
    # without a clean-up, because a kill during one would leave files that no journal names
    with Cluster(folder, broker.options, [TOPIC], start=False, driver={"batch_interval": "1s"}) as cluster:
        for name in cluster.names:
            cluster.install(name, release.unpack())
        (folder / "jobs.py").write_text(release.job)
        truth = Truth()
        produce(broker.options, TOPIC, numbered(PORTION), truth)
        cluster.start_all()
        cluster.wait(lambda: list(cluster.seen.glob("*.arrow")), "the first batch")
        (folder / "hold").touch()
        produce(broker.options, TOPIC, numbered(PORTION, PORTION), truth)
        cluster.wait(lambda: list(cluster.seen.glob("*.held")), "a job held in the middle")
        produce(broker.options, TOPIC, numbered(PORTION, 2 * PORTION), truth)
        ends = truth.ends()
        cluster.wait(
            lambda: all(cluster.state().partitions[f"{t}/{p}"].position == end for (t, p), end in ends.items()),
            "all records in the journal",
        )
        for name in cluster.names:
            cluster.kill9(name)
    for name in ("journal", "wal"):
        shutil.copytree(folder / name, release.golden / name)


if __name__ == "__main__":
    for release in RELEASES:
        if release.name in sys.argv[1:]:
            with tempfile.TemporaryDirectory() as work, KafkaBroker(Path(work) / "kafka") as broker:
                broker.create_topic(TOPIC)
                make(release, Path(work) / "stream", broker)
            print(release.golden)
