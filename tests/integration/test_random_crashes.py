"""Kill -9 at random moments while records flow through a real Kafka: every offset is in exactly one completed batch.

The seed is printed; ``FOREBAY_CRASH_SEED`` repeats its draws (not the machine's timing).
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster

pytestmark = pytest.mark.kafka

#: driver and receivers hold what can be lost, so they are killed more often than the agent
VICTIMS = ("r1", "r2", "r1", "r2", "driver", "driver", "driver", "agent")


def draw_seed() -> int:
    seed = int(os.environ.get("FOREBAY_CRASH_SEED") or random.SystemRandom().randrange(10**9))
    print(f"\ncrash run with FOREBAY_CRASH_SEED={seed}")
    return seed


def crash_on(cluster: Cluster, flow: Flow, draw: random.Random, kills: int) -> Counter[str]:
    """Kills ``kills`` times, each victim at a drawn moment and back after a drawn pause; half of the time intake goes on
    in between, half of the time the next one dies while the last one recovers."""
    killed: Counter[str] = Counter()
    for _ in range(kills):
        victim = draw.choice(VICTIMS)
        if draw.random() < 0.5:
            status = cluster.wait(cluster.status, "the driver's status")
            cluster.await_records(status.records_completed + 1)
        at = time.monotonic() + draw.uniform(0.0, 1.5)
        cluster.wait(lambda at=at: time.monotonic() >= at, "the moment of the next kill")
        cluster.kill9(victim)
        killed[victim] += 1
        at = time.monotonic() + draw.uniform(0.0, 0.8)
        cluster.wait(lambda at=at: time.monotonic() >= at, "the moment of the restart")
        cluster.restart(victim)
        print(f"kill {killed.total()}: {victim}, at {flow.records} records")
    return killed


def test_random_kills_of_every_process_and_a_broker_restart_lose_and_repeat_nothing(
    tmp_path: Path, own_kafka_broker: KafkaBroker
) -> None:
    """INV-1, INV-2, INV-3 over real processes, 4 partitions, 2 receivers."""
    broker = own_kafka_broker
    broker.create_topic("flowing")
    draw = random.Random(draw_seed())
    with Flow(broker.options, "flowing", rate=1000) as flow, Cluster(tmp_path, broker.options, ["flowing"]) as cluster:
        cluster.await_records(1)
        killed = crash_on(cluster, flow, draw, kills=4)
        broker.kill9()
        broker.start()
        killed += crash_on(cluster, flow, draw, kills=3)
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
        cluster.drain()
        audit = cluster.command("audit")
        assert audit.returncode == 0, audit.stderr
    assert killed.total() >= 5
    print(
        f"{flow.records} records, {dict(killed)} killed, the broker killed once: each record in exactly one completed batch"
    )


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_fifty_random_kills_under_a_million_records_lose_and_repeat_nothing(
    tmp_path: Path, own_kafka_broker: KafkaBroker
) -> None:
    """The long run: FOREBAY_CRASH_RECORDS and FOREBAY_CRASH_KILLS make it another size."""
    records = int(os.environ.get("FOREBAY_CRASH_RECORDS", "1000000"))
    kills = int(os.environ.get("FOREBAY_CRASH_KILLS", "50"))
    broker = own_kafka_broker
    broker.create_topic("flowing")
    draw = random.Random(draw_seed())
    began = time.monotonic()
    with (
        Flow(broker.options, "flowing", rate=4000) as flow,
        Cluster(tmp_path, broker.options, ["flowing"], wal={"segment_size": "1MB"}) as cluster,
    ):
        cluster.await_records(1)
        killed: Counter[str] = Counter()
        restarts = 0
        while killed.total() < kills:  # five at a time, spread over the records
            killed += crash_on(cluster, flow, draw, kills=5)
            if killed.total() % 25 == 0:
                broker.kill9()
                broker.start()
                restarts += 1
            due = records * killed.total() // kills
            cluster.wait(lambda due=due: flow.records >= due, f"{due} records", seconds=600.0)
        flow.stop()
        cluster.await_completed(flow.truth.ends(), seconds=300.0)
        report = cluster.check(flow.truth)
        cluster.drain()
    print(
        f"{flow.records} records, {killed.total()} kills {dict(killed)}, broker killed {restarts} times, "
        f"{report.batches_completed} batches, {time.monotonic() - began:.0f} s: duplicates 0, missing 0"
    )
