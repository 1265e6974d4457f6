"""Time from a record's append in Kafka to the call of the job that gets it, with and without a batch interval.

A real Kafka stamps records when it appends them (``LogAppendTime``, milliseconds). A ``forebay receiver`` process runs, and a
driver in this process with the engine ``local``. The job notes the time of its call, and reads its rows. Every record counts
except those of the first seconds. ``benchmarks.batch_latency_spark`` does the same with Spark.
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
from typing import Any

import numpy as np

from benchmarks.measured import Measured, Threshold, figure
from benchmarks.receiving import settings_text
from benchmarks.setup import PARTITIONS, Setup
from driver.batches.job.batch import Batch
from driver.context import IngestContext
from forebay.kafka.client.admin import KafkaAdmin
from forebay.process.clock import SystemClock
from forebay.process.garbage import freeze_present
from forebay.settings.reading.load import load

#: seconds of one run; the records of the first seconds, in which receiver and driver find each other, don't count
SECONDS, SMALL_SECONDS = 10, 2
WARM_UP_SECONDS = 5
#: what is shown of the latencies, and its percentile
SHOWN = (("median", 50), ("99th percentile", 99))
CONTINUOUS = 'batch_interval = "0s"'
PATIENCE_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One stream. ``driver``: lines of ``[driver]``. ``rate``: records/s. ``job_seconds``: what the job takes longer. ``limits``:
    thresholds of median and 99th percentile (ms) beyond the time of the job, None: recorded. ``more``: further sections."""

    name: str
    driver: str
    rate: int = 10_000
    block_interval: str = "200ms"
    job_seconds: float = 0.0
    limits: tuple[float, float] | None = None
    more: str = ""


CASES = (
    Case(name="interval 1 s", driver='batch_interval = "1s"'),
    Case(name="interval 50 ms", driver='batch_interval = "50ms"', block_interval="20ms", limits=(40, 80)),
    Case(name="no interval, 1,000 records/s", driver=CONTINUOUS, rate=1_000, limits=(40, 80)),
    Case(name="no interval, 10,000 records/s", driver=CONTINUOUS, limits=(40, 80)),
    Case(name="no interval, 100,000 records/s", driver=CONTINUOUS, rate=100_000, limits=(40, 80)),
    Case(name="no interval, a job of 0.3 s", driver=CONTINUOUS, job_seconds=0.3, limits=(40, 150)),
)
#: the cases of a small run
CASES_SMALL = (CASES[0], CASES[3])


@dataclass(slots=True)
class Seen:
    """What jobs saw: for each call its time, and the times of its records."""

    calls: list[tuple[int, Any]] = field(default_factory=list)
    records: int = 0

    def note(self, called_ms: int, appended_ms: Any) -> None:
        self.calls.append((called_ms, appended_ms))
        self.records += len(appended_ms)

    def latencies(self, warm_up_seconds: int, runs: int, seconds: int) -> list[Any]:
        """Return the latencies (ms) of the records of each run."""
        appended = np.concatenate([times for _, times in self.calls])
        waited = np.concatenate([called - times for called, times in self.calls])
        begun = int(appended.min()) + warm_up_seconds * 1000
        edges = [begun + number * seconds * 1000 for number in range(runs + 1)]
        edges[-1] = int(appended.max()) + 1
        return [waited[(appended >= start) & (appended < end)] for start, end in pairwise(edges)]


def measure(setup: Setup) -> Iterator[Measured]:
    is_small = setup.scale < 1
    for case in CASES_SMALL if is_small else CASES:
        runs = local_latencies(setup, case, setup.runs, SMALL_SECONDS if is_small else SECONDS)
        yield from figures("latency", case, runs, case.job_seconds * 1000)


def figures(benchmark: str, case: Case, runs: list[Any], job_ms: float, note: str = "") -> Iterator[Measured]:
    """Return the figures of the latencies of each run. ``job_ms``: the time of the job, which its thresholds allow too."""
    for place, (what, rank) in enumerate(SHOWN):
        limit = Threshold(round(case.limits[place] + job_ms), at_least=False) if case.limits is not None else None
        values = [float(np.percentile(run, rank)) for run in runs]
        yield figure(benchmark, f"{case.name}, {what}", values, "ms", limit, note=note)


def local_latencies(setup: Setup, case: Case, runs: int, seconds: int) -> list[Any]:
    """Return the latencies of the engine ``local``."""
    seen = Seen()
    never = threading.Event()
    clock = SystemClock()

    def job(batch: Batch) -> None:
        called_ms = clock.wall_ms()
        times = [rows.column("timestamp").to_numpy().astype("datetime64[ms]").astype(np.int64) for rows in batch.read()]
        never.wait(case.job_seconds)
        seen.note(called_ms, np.concatenate(times))

    with setup.folder() as folder:
        run_stream(setup, case, folder, WARM_UP_SECONDS + runs * seconds, job, seen, "local")
    return seen.latencies(WARM_UP_SECONDS, runs, seconds)


def new_topic(setup: Setup) -> str:
    """Create a topic whose records Kafka stamps when it appends them."""
    name = f"latency-{time.monotonic_ns()}"
    with KafkaAdmin(setup.broker.options) as admin:
        admin.create_topic(name, PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
    return name


def produce(setup: Setup, topic: str, rate: int, seconds: int) -> None:
    """Produce at a steady rate, in a process of its own."""
    arguments = [setup.broker.address, topic, str(rate), str(seconds)]
    subprocess.run([sys.executable, "-m", "benchmarks.producing", *arguments], check=True, timeout=600)


def run_stream(
    setup: Setup, case: Case, folder: Path, seconds: int, job: Callable[[Batch], None], seen: Seen, engine: str
) -> None:
    """Run the stream of ``case`` until the job has seen ``seconds`` of records."""
    topic = new_topic(setup)
    config = folder / "forebay.toml"
    more = f'block_interval = "{case.block_interval}"\n'
    text = settings_text(folder, setup.broker.options, topic, "http://127.0.0.1:0", more)
    config.write_text(text.replace("[agent]", f'engine = "{engine}"\n{case.driver}\n[agent]') + case.more)
    with IngestContext(None, load(config)) as intake:
        intake.foreach_batch(job)
        config.write_text(config.read_text().replace("http://127.0.0.1:0", intake.url))
        freeze_present()  # as the service does
        with (folder / "receiver.log").open("wb") as log:
            receiver = subprocess.Popen(
                [sys.executable, "-m", "deploy.main", "--config", str(config), "receiver", "--id", "r1"],
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            produce(setup, topic, case.rate, seconds)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while seen.records < seconds * case.rate:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{seen.records} of {seconds * case.rate} records came to the job")
                intake.await_termination(0.2)
        finally:
            receiver.terminate()
            receiver.wait(60)
        intake.stop()
