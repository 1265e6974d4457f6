"""A producer at ten times the rate of the job, with real Kafka and Spark: what is bounded, and how the stream recovers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.messages import StatusAnswer
from tests.support.kafka.flow import Flow, Truth, numbered, produce
from tests.support.processes import witness
from tests.support.processes.cluster import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

#: over the witness's jobs: each record costs what the file ``cost`` says (seconds), and each batch is noted
SLOW_JOB = """

def slow(batch):
    began = time.time()
    by_arrow(batch)
    records = sum(r.records for r in batch.ranges)
    time.sleep(records * float((HERE / "cost").read_text()))
    noted = {"due": batch.time.timestamp(), "began": began, "ended": time.time(), "records": records}
    with (HERE / "batches.txt").open("a") as file:
        file.write(json.dumps(noted) + "\\n")
"""

INTERVAL_SECONDS = 3.0
#: of one record, while the job is slow and when it has recovered
SLOW_SECONDS, QUICK_SECONDS = 0.002, 0.00002
#: records/s that the slow job could do if nothing else cost anything: it can do less
SLOW_RATE = 1 / SLOW_SECONDS
OVERLOAD = 10
#: batches: to begin with (of so many records), of the overload until the rate has settled, and of it in all
WARM_BATCHES, WARM_RECORDS, SETTLED_WITHIN, OVERLOADED_BATCHES = 3, 100, 7, 10
#: for waiting alone: the job is slow on purpose, and the machine may be busy
PATIENCE_SECONDS = 240.0


@dataclass(frozen=True)
class Ran:
    """A batch as the job saw it; times in seconds."""

    due: float
    began: float
    ended: float
    records: int

    @property
    def rate(self) -> float:
        return self.records / (self.ended - self.began)

    @property
    def late(self) -> float:
        return self.began - self.due


def batches(folder: Path) -> list[Ran]:
    """All that have run; a line that is being written is left out."""
    path = folder / "batches.txt"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [Ran(**json.loads(line)) for line in lines if line.endswith("\n")]


def has_run(folder: Path, count: int) -> bool:
    return len(batches(folder)) >= count


@dataclass
class Watch:
    """What the stream holds at its fullest, by its own status, in samples taken while the test waits."""

    backlogs: list[int] = field(default_factory=list)  # records taken in and not completed
    buffered: list[int] = field(default_factory=list)  # bytes, of one receiver
    resident: list[int] = field(default_factory=list)  # bytes, of both receivers
    rates: list[float] = field(default_factory=list)  # learned, records/s

    def look(self, cluster: Cluster) -> StatusAnswer | None:
        status = cluster.status()
        if status is not None:
            unfinished = sum(batch.records for batch in status.batches if batch.state != "completed")
            self.backlogs.append(status.waiting_records + unfinished)
            self.buffered += [receiver.buffered_bytes for receiver in status.receivers]
            self.resident.append(sum(_resident_bytes(cluster.process(name).pid) for name in ("r1", "r2")))
            self.rates.append(status.rate)
        return status


def test_overloaded_tenfold_a_stream_stays_bounded_loses_nothing_and_recovers(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-6, INV-2, INV-3. Bounds are ratios, and what the job can do in a few *turns*: a batch interval, and what Spark was
    seen to take beside the records' own cost, threefold."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with Cluster(
        tmp_path, kafka_broker.options, [topic], engine="spark", job="jobs:slow", start=False,
        driver={"batch_interval": f"{INTERVAL_SECONDS:g}s", "backpressure": True},
        receiver={"initial_rate": 100, "memory": "8MB", "block_size": "1MB"},
    ) as cluster:  # fmt: skip
        (tmp_path / "jobs.py").write_text(witness.JOB + SLOW_JOB)
        cost = tmp_path / "cost"
        cost.write_text(str(SLOW_SECONDS))
        cluster.start_all()
        first = Truth()
        for _ in range(WARM_BATCHES):  # one by one: Spark's own start is not held against the job
            count = len(batches(tmp_path)) + 1
            produce(kafka_broker.options, topic, numbered(WARM_RECORDS), first)
            cluster.wait(partial(has_run, tmp_path, count), "a batch to begin with", PATIENCE_SECONDS)
        warm = batches(tmp_path)
        spark_seconds = max(ran.ended - ran.began - ran.records * SLOW_SECONDS for ran in warm[1:])
        turn_seconds = INTERVAL_SECONDS + 3 * spark_seconds

        with Flow(kafka_broker.options, topic, rate=round(OVERLOAD * SLOW_RATE)) as flood:
            early, late = Watch(), Watch()

            def overloaded(watch: Watch, count: int) -> bool:
                watch.look(cluster)
                return has_run(tmp_path, len(warm) + count)

            cluster.wait(lambda: overloaded(early, SETTLED_WITHIN), "a rate that settles", PATIENCE_SECONDS)
            cluster.wait(lambda: overloaded(late, OVERLOADED_BATCHES), "more batches at that rate", PATIENCE_SECONDS)
        settled = batches(tmp_path)[len(warm) + SETTLED_WITHIN :]
        processed, learned = median(ran.rate for ran in settled), median(late.rates)
        what = f"turns of {turn_seconds} s, {processed} records/s processed, {learned} learned: {batches(tmp_path)}"
        assert processed / 2 < learned < processed * 2, what
        for ran in settled:
            assert ran.late < 3 * turn_seconds, f"batches queue up: {what}"
            assert ran.records < 2 * SLOW_RATE * turn_seconds, f"batches grow: {what}"
        assert max(late.backlogs) < 4 * SLOW_RATE * turn_seconds, f"what was taken in waits: {late.backlogs}, {what}"
        taken = sum(p.position for p in cluster.state().partitions.values())
        assert taken < flood.records / 3, f"{taken} of {flood.records} taken in: {what}"
        assert max(early.buffered + late.buffered) < 8_000_000
        assert max(late.resident) < 1.5 * max(early.resident)

        cost.write_text(str(QUICK_SECONDS))
        with Flow(kafka_broker.options, topic, rate=round(processed / 4)) as calm:
            watch = Watch()

            def recovered() -> bool:
                status = watch.look(cluster)
                lag = sum(p.high_watermark - p.position for p in status.partitions) if status is not None else 0
                return status is not None and status.rate > 3 * learned and lag < processed * INTERVAL_SECONDS

            cluster.wait(recovered, "the lag to be gone, at a rate that rose", PATIENCE_SECONDS)
        for truth in (first, calm.truth):
            flood.truth.extend(truth)
        cluster.await_completed(flood.truth.ends(), PATIENCE_SECONDS)
        cluster.check(flood.truth)
        cluster.drain()


def _resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
