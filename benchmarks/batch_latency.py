"""Time from a record's append in Kafka to the call of the job that gets it: 10,000 records/s, batch interval 1 s.

A real Kafka stamps records when it appends them (``LogAppendTime``, milliseconds). A ``forebay receiver`` process and a driver
(engine ``local``, in this process) run with default settings. The job notes the time of its call, then reads its batch. Every
record counts except those of the first seconds. Recorded without a threshold: with an interval of 1 s, a record waits half a
second on average for its batch; block interval, storing and report add to this.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.measured import Measured, figure
from benchmarks.receiving import settings_text
from benchmarks.setup import PARTITIONS, Setup
from driver.batches.batch import Batch
from driver.context import IngestContext
from forebay.kafka.client.admin import KafkaAdmin
from forebay.process.clock import SystemClock
from forebay.settings.load import load

RATE = 10_000
#: of one run; the records of the first seconds, in which receiver and driver find each other, don't count
SECONDS = 10
WARM_UP_SECONDS = 5
_PATIENCE_SECONDS = 120.0


def measure(setup: Setup) -> Iterator[Measured]:
    seconds = SECONDS if setup.scale >= 1 else 2
    runs = _latencies_ms(setup, setup.runs, seconds)
    note = f"{sum(map(len, runs)):,} records, runs of {seconds} s"
    yield figure("latency", "median", [float(np.percentile(run, 50)) for run in runs], "ms", note=note)
    yield figure("latency", "99th percentile", [float(np.percentile(run, 99)) for run in runs], "ms", note=note)


def _latencies_ms(setup: Setup, runs: int, seconds: int) -> list[Any]:
    topic = "latency"
    with KafkaAdmin(setup.broker.options) as admin:
        admin.create_topic(topic, PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
    calls: list[tuple[int, Any]] = []
    taken = [0]
    clock = SystemClock()

    def job(batch: Batch) -> None:
        called_ms = clock.wall_ms()
        appended = [
            rows.column("timestamp").to_numpy().astype("datetime64[ms]").astype(np.int64) for rows in batch.read()
        ]
        calls.append((called_ms, np.concatenate(appended) if appended else np.empty(0, np.int64)))
        taken[0] += batch.records

    with setup.folder() as folder:
        config = folder / "forebay.toml"
        more = 'block_interval = "200ms"\n'
        text = settings_text(folder, setup.broker.options, topic, "http://127.0.0.1:0", more)
        config.write_text(text.replace("[agent]", 'engine = "local"\nbatch_interval = "1s"\n[agent]'))
        with IngestContext(None, load(config)) as intake:
            intake.foreach_batch(job)
            config.write_text(config.read_text().replace("http://127.0.0.1:0", intake.url))
            with (folder / "receiver.log").open("wb") as log:
                receiver = subprocess.Popen(
                    [sys.executable, "-m", "deploy.main", "--config", str(config), "receiver", "--id", "r1"],
                    stdout=log, stderr=subprocess.STDOUT,
                )  # fmt: skip
            try:
                total = WARM_UP_SECONDS + runs * seconds
                arguments = [setup.broker.address, topic, str(RATE), str(total)]
                subprocess.run([sys.executable, "-m", "benchmarks.producing", *arguments], check=True, timeout=600)
                deadline = time.monotonic() + _PATIENCE_SECONDS
                while taken[0] < total * RATE:
                    if time.monotonic() > deadline:
                        raise RuntimeError(f"{taken[0]} of {total * RATE} records came to the job")
                    intake.await_termination(0.2)
            finally:
                receiver.terminate()
                receiver.wait(60)
            intake.stop()
    appended = np.concatenate([times for _, times in calls])
    waited = np.concatenate([called - times for called, times in calls])
    begun = int(appended.min()) + WARM_UP_SECONDS * 1000
    windows = [begun + number * seconds * 1000 for number in range(runs + 1)]
    windows[-1] = int(appended.max()) + 1
    return [waited[(appended >= start) & (appended < end)] for start, end in pairwise(windows)]
