"""``benchmarks.batch_latency`` with Spark and a DataFrame job, without and with a batch interval, beside Spark's Kafka source.

The job is an aggregation with a shuffle: the number of records of each millisecond. Spark's own time for it is measured at the
end of the same run: the job is repeated on the rows of the last batch, which Spark holds in memory then. A record waits for the
job before it, so the thresholds allow that time. Then Spark's own Kafka source (``tests.support.spark.jvm_spark``) reads as many
records by ``foreachBatch`` with ``processingTime = "0 seconds"``, its fastest trigger, and runs the same job. In the last case
both jobs wait for 0.5 s after the aggregation, which is longer than the interval.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.batch_latency import (
    CONTINUOUS,
    PATIENCE_SECONDS,
    SECONDS,
    SHOWN,
    SMALL_SECONDS,
    Case,
    Seen,
    figures,
    new_topic,
    produce,
    run_stream,
)
from benchmarks.measured import Measured, Threshold, ratio
from benchmarks.setup import Setup
from driver.batches.job.batch import Batch
from forebay.process.clock import SystemClock
from tests.support.spark.jvm_spark import SparkProcess, make
from tests.support.spark.queries import appended_times

#: at the highest rate, what came while Spark started takes most of this time
WARM_UP_SECONDS, SMALL_WARM_UP_SECONDS = 40, 2
#: repetitions of the job for Spark's own time
_OWN_RUNS = 9
_SPARK = """
[spark]
"spark.master" = "local[2]"
"spark.ui.enabled" = "false"
"spark.sql.shuffle.partitions" = "2"
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"""
_INTERVAL, _INTERVAL_BLOCKS = 'batch_interval = "100ms"', "50ms"
_LIMITS = (150, 300)
CASES = (
    *(
        Case(name=f"Spark, {rate:,} records/s", driver=CONTINUOUS, rate=rate, limits=_LIMITS, more=_SPARK)
        for rate in (1_000, 10_000, 100_000)
    ),
    Case(
        name="Spark, interval 100 ms", driver=_INTERVAL, block_interval=_INTERVAL_BLOCKS, limits=_LIMITS, more=_SPARK
    ),
    Case(
        name="Spark, interval 100 ms, a job that waits 0.5 s", driver=_INTERVAL, block_interval=_INTERVAL_BLOCKS,
        job_seconds=0.5, limits=_LIMITS, more=_SPARK,
    ),
)  # fmt: skip
#: the cases of a small run
CASES_SMALL = (CASES[0], *CASES[3:])


def measure(setup: Setup) -> Iterator[Measured]:
    is_small = setup.scale < 1
    seconds = SMALL_SECONDS if is_small else SECONDS
    warm_up_seconds = SMALL_WARM_UP_SECONDS if is_small else WARM_UP_SECONDS
    for case in CASES_SMALL if is_small else CASES:
        seen, own_ms, peer = beside_spark(setup, case, warm_up_seconds + setup.runs * seconds)
        ours, theirs = (one.latencies(warm_up_seconds, setup.runs, seconds) for one in (seen, peer))
        job_ms = own_ms + case.job_seconds * 1000
        yield from figures("latency-spark", case, ours, job_ms, f"Spark's own time for the job: {own_ms:.0f} ms")
        for what, rank in SHOWN:
            pairs = [
                (float(np.percentile(one, rank)), float(np.percentile(other, rank)))
                for one, other in zip(ours, theirs, strict=True)
            ]
            name = f"{case.name}, {what}, against Spark's Kafka source"
            yield ratio("latency-spark", name, pairs, "ms", Threshold(1.0, at_least=False))


def beside_spark(setup: Setup, case: Case, seconds: int) -> tuple[Seen, float, Seen]:
    """Return what the job saw, Spark's own time for it (ms), and what Spark's Kafka source saw of as many records."""
    make()
    seen, peer = Seen(), Seen()
    own_ms = [0.0]
    clock = SystemClock()
    never = threading.Event()

    def job(batch: Batch) -> None:
        called_ms = clock.wall_ms()
        frame = batch.df
        times = np.array(appended_times(frame), np.int64)
        if seen.records + len(times) == seconds * case.rate:
            stored = frame.localCheckpoint()
            own_ms[0] = median(_seconds(lambda: appended_times(stored)) for _ in range(_OWN_RUNS)) * 1000
        never.wait(case.job_seconds)
        seen.note(called_ms, times)

    with setup.folder() as folder:
        run_stream(setup, case, folder, seconds, job, seen, "spark")
        topic = new_topic(setup)
        with SparkProcess("kafka", folder / "kafka") as side:
            asked = threading.Thread(target=lambda: _ask(side, setup, folder, topic, case, seconds * case.rate, peer))
            asked.start()
            produce(setup, topic, case.rate, seconds)
            asked.join(PATIENCE_SECONDS)
    if peer.records != seconds * case.rate:
        raise RuntimeError(f"Spark's Kafka source read {peer.records} of {seconds * case.rate} records")
    return seen, own_ms[0], peer


def _ask(
    side: SparkProcess, setup: Setup, folder: Path, topic: str, case: Case, records: int, peer: Seen
) -> None:  # fmt: skip
    options = {"kafka.bootstrap.servers": setup.broker.address, "startingOffsets": "earliest", "subscribe": topic}
    question = {
        "kind": "latency", "options": options, "checkpoint": str(folder / "checkpoint"), "records": records,
        "job_seconds": case.job_seconds,
    }  # fmt: skip
    for called_ms, times in side.ask(question)["calls"]:
        peer.note(called_ms, np.repeat([at for at, _ in times], [count for _, count in times]))


def _seconds(call: Callable[[], object]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun
