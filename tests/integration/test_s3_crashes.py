"""WAL and journal on S3: kill -9 at random moments, of the stream's processes and of the store; and a faulty network.

Every offset is in exactly one completed batch, and counted once in a keyed state. The seed is printed
(tests/integration/test_random_crashes.py).
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.integration.test_random_crashes import crash_on, draw_seed
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster
from tests.support.state.counting import JOB_NAME, SETTINGS, check_counts, write_job
from tests.support.stores import s3
from tests.support.stores.contract import require_s3
from tests.support.stores.fault_proxy import FaultProxy

pytestmark = pytest.mark.kafka

MEMORY_BYTES = 1_000_000


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.S3Server]:
    require_s3()
    for name, value in s3.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "s3").mkdir()
    with s3.s3_server(tmp_path / "s3") as server:
        yield server


def on_s3(
    folder: Path, broker: KafkaBroker, topic: str, url: str, store: Mapping[str, str] | None = None, **settings: Any
) -> Cluster:
    """Return a cluster whose job counts records in a keyed state. ``store``: further keys of [storage.s3]."""
    options = s3.options(url, request_timeout="2s", **(store or {}))
    write_job(folder / "cluster")
    return Cluster(
        folder / "cluster",
        broker.options,
        [topic],
        job=JOB_NAME,
        wal={**SETTINGS["wal"], "url": f"s3://{s3.BUCKET}/wal"},
        driver={**SETTINGS["driver"], "journal": f"s3://{s3.BUCKET}/journal"},
        storage=options,
        **settings,
    )


def test_random_kills_and_restarts_of_the_store_lose_and_repeat_nothing(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str], server: s3.S3Server
) -> None:
    """INV-1, INV-2, INV-3, INV-4 over real processes and a real S3 server."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    draw = random.Random(draw_seed())
    with (
        Flow(kafka_broker.options, topic, rate=500) as flow,
        on_s3(tmp_path, kafka_broker, topic, server.url) as cluster,
    ):
        cluster.await_records(1)
        killed = crash_on(cluster, flow, draw, kills=2)
        server.kill()
        server.start()
        killed += crash_on(cluster, flow, draw, kills=2)
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
        check_counts(cluster, flow.truth)
        cluster.drain()
    print(f"{flow.records} records, {dict(killed)} killed, the store killed once: each record in exactly one batch")


def test_a_bad_network_between_processes_and_store_loses_and_repeats_nothing(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str], server: s3.S3Server
) -> None:
    """INV-1, INV-2, INV-3, INV-6, rule 7: latency, bursts of 503, resets, time-outs after success, answers cut off; then the
    store takes no blocks for a while: the receivers pause, say why, hold no more than their memory, and go on."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        FaultProxy(server.port) as proxy,
        Flow(kafka_broker.options, topic, rate=2000) as flow,
        on_s3(
            tmp_path,
            kafka_broker,
            topic,
            proxy.url,
            receiver={"memory": f"{MEMORY_BYTES}B", "block_size": "100KB", "store_timeout": "60s"},
        ) as cluster,
    ):
        cluster.await_records(1)
        for kind, verb in (
            ("reset", None), ("reset-after", "PUT"), ("silence-after", "PUT"), ("half-answer", None), ("half-request", "PUT"),
        ):  # fmt: skip
            fault = proxy.arm(kind, verb, skip=3, times=2, part_of_path="/wal/")  # type: ignore[arg-type]
            cluster.wait(lambda fault=fault: fault.met == 2, f"{kind} met twice")
        burst = proxy.arm("status", status=503, times=30)
        cluster.wait(lambda: burst.met == 30, "a burst of 503")
        away = proxy.arm("status", "PUT", status=503, part_of_path="/blocks/")
        proxy.arm("latency", seconds=0.02)
        held: list[int] = []

        def says_why() -> bool:
            status = cluster.status()
            if status is None:
                return False
            held.extend(receiver.buffered_bytes for receiver in status.receivers)
            return all("503" in receiver.detail and receiver.state == "waiting" for receiver in status.receivers)

        cluster.wait(says_why, "the receivers say that the WAL takes no blocks")
        before = flow.records
        cluster.wait(lambda: flow.records > before + 4000, "records that wait in Kafka")
        cluster.wait(says_why, "the receivers still say so")
        assert max(held) <= 2 * MEMORY_BYTES
        assert away.met > 0
        proxy.calm()
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        status = cluster.wait(cluster.status, "status")
        assert all(receiver.counters["wal_put"] > 0 for receiver in status.receivers)
        assert "requests/min" in cluster.command("status").stdout
        cluster.check(flow.truth)
        check_counts(cluster, flow.truth)
        cluster.drain()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_random_kills_on_s3_lose_and_repeat_nothing(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str], server: s3.S3Server
) -> None:
    """The long run: FOREBAY_CRASH_RECORDS and FOREBAY_CRASH_KILLS make it another size."""
    records = int(os.environ.get("FOREBAY_CRASH_RECORDS", "200000"))
    kills = int(os.environ.get("FOREBAY_CRASH_KILLS", "30"))
    topic = topic_name()
    kafka_broker.create_topic(topic)
    draw = random.Random(draw_seed())
    began = time.monotonic()
    with (
        FaultProxy(server.port) as proxy,
        Flow(kafka_broker.options, topic, rate=2000) as flow,
        on_s3(tmp_path, kafka_broker, topic, proxy.url) as cluster,
    ):
        proxy.arm("latency", seconds=0.02)
        cluster.await_records(1)
        killed: Counter[str] = Counter()
        while killed.total() < kills:
            killed += crash_on(cluster, flow, draw, kills=5)
            server.kill()
            server.start()
            due = records * killed.total() // kills
            cluster.wait(lambda due=due: flow.records >= due, f"{due} records", seconds=600.0)
        flow.stop()
        cluster.await_completed(flow.truth.ends(), seconds=300.0)
        report = cluster.check(flow.truth)
        check_counts(cluster, flow.truth)
        cluster.drain()
    print(
        f"{flow.records} records, {killed.total()} kills {dict(killed)}, {report.batches_completed} batches, "
        f"{dict(proxy.counts)} requests, {time.monotonic() - began:.0f} s: duplicates 0, missing 0"
    )
