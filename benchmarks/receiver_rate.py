"""Receiver from Kafka to durable WAL and local block, against a ``Consumer.consume(10000)`` loop that drops the messages.

200-byte records (key and value), not compressed, in 4 partitions of a real Kafka. Ours is one ``forebay receiver`` process with
default settings: group membership, claims, columns, digests, blocks, a local copy, a WAL frame and its fdatasync, the report over
HTTP and the driver's journal. Time and CPU count from the assignment of partitions (claims durable; peer: its assignment) to the
last record (accepted by the driver; peer: returned). CPU is user and system time of the receiver's process and of the peer's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.measured import Measured, Threshold, alternate, ratio
from benchmarks.receiving import Receiving
from benchmarks.setup import Setup, cpu_seconds

RECORDS = 2_000_000


def measure(setup: Setup) -> Iterator[Measured]:
    records = setup.records(RECORDS)
    topic = setup.topic(records)
    _peer(setup, topic, records)  # the broker's first read of a topic compiles its code and warms the page cache
    pairs = alternate(setup.runs, lambda: _ours(setup, topic, records), lambda: _peer(setup, topic, records))
    yield ratio(
        "receiver",
        "records/s",
        [(records / ours["seconds"], records / peer["seconds"]) for ours, peer in pairs],
        "records/s",
        Threshold(1.0, at_least=True),
        f"{records:,} records",
    )
    yield ratio(
        "receiver",
        "CPU per record",
        [(ours["cpu_seconds"] / records * 1e6, peer["cpu_seconds"] / records * 1e6) for ours, peer in pairs],
        "µs",
        Threshold(1.0, at_least=False),
    )


def _ours(setup: Setup, topic: str, records: int) -> dict[str, float]:
    marks: list[tuple[float, float]] = []

    def mark(pid: int) -> None:
        marks.append((time.monotonic(), cpu_seconds(pid)))

    with setup.folder() as folder:
        Receiving(folder, setup.broker.options, topic, records, mark, mark).run()
    (begun, cpu_begun), (ended, cpu_ended) = marks
    return {"seconds": ended - begun, "cpu_seconds": cpu_ended - cpu_begun}


def _peer(setup: Setup, topic: str, records: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.bare_consumer", setup.broker.address, topic, str(records)]
    done = subprocess.run(command, check=True, capture_output=True, timeout=600)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures
