"""The WAL on S3 behind a link of 20 ms, against the WAL in local files: records per second of one receiver.

The receiver is that of the benchmark ``receiver``, with default settings: on S3, one object per flush of 250 ms. The S3 server
is real. Each of its answers arrives 20 ms later (``benchmarks.slow_link``), and a PUT has two answers. The journal is in local
files on both sides. Server and link use this machine's cores, unlike a remote WAL; therefore the CPU per record is also
recorded, of the receiver alone and of all processes together. If other processes keep the cores busy, the latter bounds the
first figure.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measured import Measured, Threshold, alternate, ratio
from benchmarks.receiving import Receiving
from benchmarks.setup import Setup, cpu_seconds
from tests.support.stores.s3 import BUCKET, ENVIRONMENT, s3_server

RECORDS = 4_000_000
LATENCY_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class _Run:
    """One run. CPU seconds: of the receiver; and of broker, S3 server and link together with it."""

    seconds: float
    receiver_seconds: float
    all_seconds: float


def measure(setup: Setup) -> Iterator[Measured]:
    records = setup.records(RECORDS)
    topic = setup.topic(records)
    with setup.folder() as served, s3_server(served) as server, slow_link(server.port) as (url, link_pid):
        os.environ.update(ENVIRONMENT)  # of the receiver's process
        others = [pid for pid in (setup.broker.pid, server.pid, link_pid) if pid is not None]
        _run(setup, topic, records, None, others)  # the broker's first read of a topic warms the page cache
        pairs = alternate(
            setup.runs,
            lambda: _run(setup, topic, records, _Remote(url, served), others),
            lambda: _run(setup, topic, records, None, others),
        )
    what = f"WAL on S3, {LATENCY_SECONDS * 1000:.0f} ms away, against local files"
    yield ratio(
        "object-wal",
        what,
        [(records / ours.seconds, records / peer.seconds) for ours, peer in pairs],
        "records/s",
        Threshold(0.8, at_least=True),
        f"{records:,} records",
    )
    micros = 1e6 / records
    yield ratio(
        "object-wal",
        "the same: CPU per record, receiver",
        [(ours.receiver_seconds * micros, peer.receiver_seconds * micros) for ours, peer in pairs],
        "µs",
    )
    yield ratio(
        "object-wal",
        "the same: CPU per record, all processes",
        [(ours.all_seconds * micros, peer.all_seconds * micros) for ours, peer in pairs],
        "µs",
    )


@dataclass(frozen=True, slots=True)
class _Remote:
    url: str
    served: Path


def _run(setup: Setup, topic: str, records: int, remote: _Remote | None, others: Sequence[int]) -> _Run:
    marks: list[tuple[float, float, float]] = []

    def mark(pid: int) -> None:
        own = cpu_seconds(pid)
        marks.append((time.monotonic(), own, own + sum(map(cpu_seconds, others))))

    with setup.folder() as folder:
        wal = f"s3://{BUCKET}/{folder.name}" if remote else None
        more = f'[storage.s3]\nendpoint_url = "{remote.url}"\n' if remote else ""
        Receiving(folder, setup.broker.options, topic, records, mark, mark, wal_url=wal, more_settings=more).run()
        if remote:
            shutil.rmtree(remote.served / "objects" / BUCKET / folder.name)
    begun, ended = marks
    tick = 1 / os.sysconf("SC_CLK_TCK")  # a run of few records may take none
    return _Run(*(max(tick, after - before) for before, after in zip(begun, ended, strict=True)))


@contextlib.contextmanager
def slow_link(port: int, seconds: float = LATENCY_SECONDS) -> Iterator[tuple[str, int]]:
    """Run a link to the server at ``port`` while open, whose answers arrive ``seconds`` later. Yields its URL and its
    process id."""
    command = [sys.executable, "-m", "benchmarks.slow_link", str(port), str(seconds)]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}", process.pid
        finally:
            process.terminate()
