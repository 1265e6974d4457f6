"""Spark engine: time from the kill of a driver to the end of the next DataFrame batch, after a restart and by a standby.

One receiver takes in 1,000 records/s, the batch interval is 200 ms, and each batch is an aggregate over `batch.df`. The standby
runs on the same machine, so it sees the leader's end without waiting for the lease; on another machine the lease's duration is
added. Spark's own start is measured in the same run, by a PySpark program with the same options and without Forebay. It lasts
until the end of the same aggregate over a DataFrame that is made of columns in the driver, as a small batch's is. The program has
no archive of Spark's classes. The result of a restart is its time less Spark's own start. Its time less that of the session
alone is recorded too. After the restart and after the take-over, the first batch is compared with the tenth.

The driver's log says where the time goes: until it leads (start of the process, lease, journal), until its engine runs, and until
the first job has ended. The archive of classes is made before, as a driver does after its first start,
and kept beside the installed Spark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks.measured import Measured, Threshold, figure, ratio
from benchmarks.setup import PARTITIONS, Setup
from driver.spark.java.class_archive import ClassArchive
from tests.support.processes.cluster import Cluster

RATE = 1_000
#: seconds beyond the lease, or beyond Spark's own start
EXTRA_MAX = 3.0
#: the first batch against the tenth
FIRST_MAX = 2.0
_BATCHES = 10
_JOB = """
import json, time
from pathlib import Path

def aggregate(batch):
    begun = time.time()
    batch.df.groupBy("topic").count().collect()
    with Path("ends.txt").open("a") as ends:
        ends.write(json.dumps([begun, time.time()]) + "\\n")
"""
_PLAIN = """
import json, sys, time
import pyarrow as pa
from pyspark.sql import SparkSession
builder = SparkSession.builder
for key, value in json.loads(sys.argv[1]).items():
    builder = builder.config(key, value)
session = builder.getOrCreate()
print(time.time(), flush=True)
rows = pa.table({"topic": ["t"] * 12_000, "value": [b"v" * 200] * 12_000})
session.createDataFrame(rows).groupBy("topic").count().collect()
print(time.time(), flush=True)
session.stop()
"""
_SPARK = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.memory": "512m"}
#: blocks and segments of a usual size: the tests' own are so small that reading them is most of a batch
_RECEIVER = {"block_interval": "200ms"}
_WAL = {"segment_size": "64MB", "retention": "1h"}
#: what the driver logs when it leads, and when its engine has started
_LEADS, _STARTED = "driver.service.driver: leads stream", "driver.service.driver: the engine runs"


class Phases(NamedTuple):
    """Where the time goes, in seconds: until the driver leads, from then until its engine runs, and from then until the end of
    the first job."""

    lead: float
    engine: float
    job: float

    @property
    def total(self) -> float:
        return sum(self)


class Started(NamedTuple):
    """A driver after a kill: where the time until the end of its first job went, and the seconds of each of its jobs."""

    phases: Phases
    jobs: list[float]

    @property
    def first_and_tenth(self) -> tuple[float, float]:
        return self.jobs[0], self.jobs[_BATCHES - 1]


def measure(setup: Setup) -> Iterator[Measured]:
    starts: list[float] = []
    plain_jobs: list[float] = []
    restarts: list[Started] = []
    take_overs: list[Started] = []
    archive = ClassArchive(Path(sys.prefix) / "spark-classes", _SPARK)  # kept for later runs
    archive.make(threading.Event())
    for run in range(setup.runs):
        session_seconds, job_seconds = _plain_start()
        starts.append(session_seconds)
        plain_jobs.append(job_seconds)
        with setup.folder() as folder:
            restarted, took_over = _killed_twice(setup, folder, f"take-over-{run}", archive.folder)
        restarts.append(restarted)
        take_overs.append(took_over)
    limit = Threshold(EXTRA_MAX, at_least=False)
    beyond_session = [total - start for total, start in zip(_totals(restarts), starts, strict=True)]
    beyond = [seconds - job for seconds, job in zip(beyond_session, plain_jobs, strict=True)]
    yield figure(
        "take-over", "killed leader to the standby's next batch, without the lease", _totals(take_overs), "s", limit
    )
    yield figure(
        "take-over", "restart to the next batch, beyond a Spark session and its first DataFrame job", beyond, "s", limit
    )
    yield figure("take-over", "the same, beyond the session alone", beyond_session, "s")
    yield figure("take-over", "start of a Spark session", starts, "s")
    yield figure("take-over", "its first DataFrame job, in Spark alone", plain_jobs, "s")
    for name, found in (("restart", restarts), ("standby", take_overs)):
        pairs = [one.first_and_tenth for one in found]
        yield ratio("take-over", f"{name}: first batch / tenth", pairs, "s", Threshold(FIRST_MAX, at_least=False))
        yield figure("take-over", f"{name}: until it leads", [one.phases.lead for one in found], "s")
        yield figure("take-over", f"{name}: then until the engine runs", [one.phases.engine for one in found], "s")
        yield figure("take-over", f"{name}: then until the first job has ended", [one.phases.job for one in found], "s")


def _totals(found: list[Started]) -> list[float]:
    return [one.phases.total for one in found]


def _plain_start() -> tuple[float, float]:
    """Return the seconds until a session exists, and those of its first job."""
    begun = time.time()
    options = {**_SPARK, "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", _PLAIN, json.dumps(options)], stdout=subprocess.PIPE, text=True, check=True, timeout=300,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    there, ended = map(float, done.stdout.split())
    return there - begun, ended - there


def _killed_twice(setup: Setup, folder: Path, topic: str, archive: Path) -> tuple[Started, Started]:
    """Return the driver that was restarted after its kill, and the standby that then took over."""
    setup.broker.create_topic(topic, PARTITIONS)
    cluster = Cluster(
        folder, setup.broker.options, [topic], receivers=1, engine="spark", job="measured:aggregate", start=False,
        spark={**_SPARK, "class_archive": str(archive)}, receiver=_RECEIVER, wal=_WAL,
    )  # fmt: skip
    producer = subprocess.Popen([
        sys.executable, "-m", "benchmarks.producing", setup.broker.address, topic, str(RATE), "600",
    ])  # fmt: skip
    try:
        with cluster:
            (folder / "measured.py").write_text(_JOB)  # in place of the cluster's own job
            urls = [cluster.driver_url, cluster.another_url()]
            cluster.write_settings(driver={"urls": urls})
            for name in ("agent", "r1", "driver"):
                cluster.start(name, keep=False)
            _jobs_since(cluster, 0.0, 1)
            cluster.kill9("driver")
            killed = time.time()
            cluster.restart("driver")
            restarted = _started(cluster, "driver", killed)
            cluster.start_rival("second", "driver", "--standby", url=urls[1])
            cluster.wait(lambda: "Spark is warm" in cluster.log("second"), "a warm standby")
            cluster.kill9("driver")
            return restarted, _started(cluster, "second", time.time())
    finally:
        producer.kill()
        producer.wait()


def _started(cluster: Cluster, driver: str, killed: float) -> Started:
    """Wait for ten jobs after a kill. The log of ``driver`` says where the time before the first one went."""
    jobs = _jobs_since(cluster, killed, _BATCHES)
    leads, started = (_last(cluster.log(driver), text) for text in (_LEADS, _STARTED))
    phases = Phases(leads - killed, started - leads, jobs[0][1] - started)
    return Started(phases, [ended - begun for begun, ended in jobs])


def _last(log: str, text: str) -> float:
    line = [line for line in log.splitlines() if text in line][-1]
    return datetime.fromisoformat(line.split()[0].replace("Z", "+00:00")).timestamp()


def _jobs_since(cluster: Cluster, since: float, count: int) -> list[tuple[float, float]]:
    """Wait until ``count`` jobs have ended that began after ``since``, and return when each began and ended."""
    ends = cluster.folder / "ends.txt"

    def found() -> list[tuple[float, float]]:
        lines = ends.read_text().splitlines() if ends.exists() else []
        jobs = [(begun, ended) for begun, ended in map(json.loads, lines) if begun > since]
        return jobs if len(jobs) >= count else []

    return cluster.wait(found, f"{count} batches")
