"""Time from a record's append in Kafka to the call of the job that gets it, with and without a batch interval.

A real Kafka stamps records when it appends them (``LogAppendTime``, milliseconds). A ``forebay receiver`` process runs, and a
driver in this process. The job notes the time of its call, and counts the records of each millisecond of its batch. Every record
counts except those of the first seconds.

With the engine ``local`` the job reads its rows. With Spark it is a DataFrame job, an aggregation with a shuffle. Spark's own
time for this job is measured at the end of the same run: the job is repeated on the DataFrame of the last batch. A record waits
for the job before it, so latencies are given beyond that time. Beside it Spark's own Kafka source (``tests.support.jvm_spark``)
reads the same records by ``foreachBatch`` with ``processingTime = "0 seconds"``, its fastest trigger, and runs the same job.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measured import Measured, Threshold, figure, ratio
from benchmarks.receiving import settings_text
from benchmarks.setup import PARTITIONS, Setup
from driver.batches.batch import Batch
from driver.context import IngestContext
from forebay.kafka.client.admin import KafkaAdmin
from forebay.process.clock import SystemClock
from forebay.settings.load import load
from tests.support.jvm_spark import SparkProcess, make
from tests.support.queries import appended_times

#: seconds of one run; the records of the first seconds, in which receiver and driver find each other, don't count
SECONDS = 10
WARM_UP_SECONDS = 5
SPARK_WARM_UP_SECONDS = 12
#: repetitions of the DataFrame job for Spark's own time
_OWN_RUNS = 9
_PATIENCE_SECONDS = 120.0
_SPARK = """
[spark]
"spark.master" = "local[2]"
"spark.ui.enabled" = "false"
"spark.sql.shuffle.partitions" = "2"
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One stream. ``driver``: lines of ``[driver]``. ``rate``: records/s. ``job_seconds``: what the job takes longer. ``limits``:
    thresholds of median and 99th percentile (ms), None: recorded."""

    name: str
    driver: str
    rate: int = 10_000
    block_interval: str = "200ms"
    job_seconds: float = 0.0
    limits: tuple[float, float] | None = None


CONTINUOUS = 'batch_interval = "0s"'
LOCAL = (
    Case(name="interval 1 s", driver='batch_interval = "1s"'),
    Case(name="interval 50 ms", driver='batch_interval = "50ms"', block_interval="20ms", limits=(40, 80)),
    Case(name="no interval, 1,000 records/s", driver=CONTINUOUS, rate=1_000, limits=(40, 80)),
    Case(name="no interval, 10,000 records/s", driver=CONTINUOUS, limits=(40, 80)),
    Case(name="no interval, 100,000 records/s", driver=CONTINUOUS, rate=100_000, limits=(40, 80)),
    Case(name="no interval, beyond a job of 0.3 s", driver=CONTINUOUS, job_seconds=0.3, limits=(40, 80)),
)
SPARK = tuple(
    Case(name=f"Spark, no interval, {rate:,} records/s", driver=CONTINUOUS, rate=rate, limits=(150, 300))
    for rate in (1_000, 10_000, 100_000)
)


@dataclass(slots=True)
class Seen:
    """What jobs saw: for each call its time, and the times of its records. ``own_ms``: what the job itself takes."""

    calls: list[tuple[int, Any]] = field(default_factory=list)
    records: int = 0
    own_ms: float = 0.0

    def note(self, called_ms: int, appended_ms: Any) -> None:
        self.calls.append((called_ms, appended_ms))
        self.records += len(appended_ms)

    def windows(self, warm_up_seconds: int, runs: int, seconds: int) -> list[Any]:
        """Return the latencies (ms) of each run, less ``own_ms``."""
        appended = np.concatenate([times for _, times in self.calls])
        waited = np.concatenate([called - times for called, times in self.calls]) - self.own_ms
        begun = int(appended.min()) + warm_up_seconds * 1000
        edges = [begun + number * seconds * 1000 for number in range(runs + 1)]
        edges[-1] = int(appended.max()) + 1
        return [waited[(appended >= start) & (appended < end)] for start, end in pairwise(edges)]


def measure(setup: Setup) -> Iterator[Measured]:
    seconds = SECONDS if setup.scale >= 1 else 2
    for case in LOCAL:
        runs = local_latencies(setup, case, setup.runs, seconds)
        yield from _figures(case, runs, "")
    for case in SPARK:
        seen, peer = beside_spark(setup, case, setup.runs, seconds)
        ours = seen.windows(SPARK_WARM_UP_SECONDS, setup.runs, seconds)
        yield from _figures(case, ours, f"Spark's own time for the job {seen.own_ms:.0f} ms")
        theirs = peer.windows(SPARK_WARM_UP_SECONDS, setup.runs, seconds)
        for what, rank in (("median", 50), ("99th percentile", 99)):
            pairs = [
                (float(np.percentile(one, rank)) + seen.own_ms, float(np.percentile(other, rank)))
                for one, other in zip(ours, theirs, strict=True)
            ]
            name = f"{case.name}, {what}, against Spark's Kafka source"
            yield ratio("latency", name, pairs, "ms", Threshold(1.0, at_least=False))


def _figures(case: Case, runs: list[Any], note: str) -> Iterator[Measured]:
    for place, (what, rank) in enumerate((("median", 50), ("99th percentile", 99))):
        limit = Threshold(case.limits[place], at_least=False) if case.limits is not None else None
        values = [float(np.percentile(run, rank)) for run in runs]
        yield figure("latency", f"{case.name}, {what}", values, "ms", limit, note=note)


def local_latencies(setup: Setup, case: Case, runs: int, seconds: int) -> list[Any]:
    """Return the latencies of the engine ``local``."""
    seen = Seen(own_ms=case.job_seconds * 1000)
    never = threading.Event()
    clock = SystemClock()

    def job(batch: Batch) -> None:
        called_ms = clock.wall_ms()
        times = [rows.column("timestamp").to_numpy().astype("datetime64[ms]").astype(np.int64) for rows in batch.read()]
        never.wait(case.job_seconds)
        seen.note(called_ms, np.concatenate(times))

    total = WARM_UP_SECONDS + runs * seconds
    topic = _topic(setup)
    with setup.folder() as folder:
        _run(setup, case, folder, topic, total, job, seen, "local")
    return seen.windows(WARM_UP_SECONDS, runs, seconds)


def beside_spark(setup: Setup, case: Case, runs: int, seconds: int) -> tuple[Seen, Seen]:
    """Return what a DataFrame job saw, and then what Spark's Kafka source saw of as many records."""
    make()
    total = SPARK_WARM_UP_SECONDS + runs * seconds
    seen, peer = Seen(), Seen()
    clock = SystemClock()
    with setup.folder() as folder:

        def job(batch: Batch) -> None:
            called_ms = clock.wall_ms()
            frame = batch.df
            times = appended_times(frame)
            if seen.records + len(times) == total * case.rate:
                seen.own_ms = median(_seconds(lambda: appended_times(frame)) for _ in range(_OWN_RUNS)) * 1000
            seen.note(called_ms, np.array(times, np.int64))

        _run(setup, case, folder, _topic(setup), total, job, seen, "spark")
        topic = _topic(setup)
        with SparkProcess("kafka", folder / "kafka") as side:
            asked = threading.Thread(target=lambda: _ask(side, setup, folder, topic, total * case.rate, peer))
            asked.start()
            _produce(setup, topic, case.rate, total)
            asked.join(_PATIENCE_SECONDS)
    if peer.records != total * case.rate:
        raise RuntimeError(f"Spark's Kafka source read {peer.records} of {total * case.rate} records")
    return seen, peer


def _ask(side: SparkProcess, setup: Setup, folder: Path, topic: str, records: int, peer: Seen) -> None:
    options = {"kafka.bootstrap.servers": setup.broker.address, "startingOffsets": "earliest", "subscribe": topic}
    question = {"kind": "latency", "options": options, "checkpoint": str(folder / "checkpoint"), "records": records}
    for called_ms, times in side.ask(question)["calls"]:
        peer.note(called_ms, np.repeat([at for at, _ in times], [count for _, count in times]))


def _topic(setup: Setup) -> str:
    name = f"latency-{time.monotonic_ns()}"
    with KafkaAdmin(setup.broker.options) as admin:
        admin.create_topic(name, PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
    return name


def _produce(setup: Setup, topic: str, rate: int, seconds: int) -> None:
    arguments = [setup.broker.address, topic, str(rate), str(seconds)]
    subprocess.run([sys.executable, "-m", "benchmarks.producing", *arguments], check=True, timeout=600)


def _seconds(call: Callable[[], object]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


def _run(
    setup: Setup, case: Case, folder: Path, topic: str, seconds: int, job: Callable[[Batch], None], seen: Seen,
    engine: str,
) -> None:  # fmt: skip
    """Run the stream of ``case`` until the job has seen ``seconds`` of records."""
    config = folder / "forebay.toml"
    more = f'block_interval = "{case.block_interval}"\n'
    text = settings_text(folder, setup.broker.options, topic, "http://127.0.0.1:0", more)
    config.write_text(text.replace("[agent]", f'engine = "{engine}"\n{case.driver}\n[agent]') + _SPARK)
    with IngestContext(None, load(config)) as intake:
        intake.foreach_batch(job)
        config.write_text(config.read_text().replace("http://127.0.0.1:0", intake.url))
        with (folder / "receiver.log").open("wb") as log:
            receiver = subprocess.Popen(
                [sys.executable, "-m", "deploy.main", "--config", str(config), "receiver", "--id", "r1"],
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            _produce(setup, topic, case.rate, seconds)
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while seen.records < seconds * case.rate:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{seen.records} of {seconds * case.rate} records came to the job")
                intake.await_termination(0.2)
        finally:
            receiver.terminate()
            receiver.wait(60)
        intake.stop()
