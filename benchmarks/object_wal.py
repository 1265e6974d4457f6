"""The WAL on S3 behind a link of 20 ms, against the WAL in local files: records a second of one receiver.

The receiver is the one of the benchmark ``receiver``, with the defaults of the product: on S3 one object per flush of
250 ms. The S3 server is a real one, on this machine, and takes its share of the cores; every answer of it comes 20 ms
later (``benchmarks.slow_link``). The journal lies in local files on both sides.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measured import Measured, Threshold, alternate, ratio
from benchmarks.receiving import Receiving
from benchmarks.setup import Setup
from tests.support.s3 import BUCKET, ENVIRONMENT, s3_server

RECORDS = 2_000_000
LATENCY_SECONDS = 0.02


def measure(setup: Setup) -> Iterator[Measured]:
    records = setup.records(RECORDS)
    topic = setup.topic(records)
    with setup.folder() as folder, s3_server(folder) as server, slow_link(server.port) as url:
        os.environ.update(ENVIRONMENT)  # of the receiver's process
        _seconds(setup, topic, records, "")  # the broker's first read of a topic warms the page cache
        pairs = alternate(
            setup.runs,
            lambda: _seconds(setup, topic, records, url),
            lambda: _seconds(setup, topic, records, ""),
        )
    yield ratio(
        "object-wal",
        f"WAL on S3, {LATENCY_SECONDS * 1000:.0f} ms away, against local files",
        [(records / ours, records / peer) for ours, peer in pairs],
        "records/s",
        Threshold(0.8, at_least=True),
        f"{records:,} records",
    )


def _seconds(setup: Setup, topic: str, records: int, s3_url: str) -> float:
    marks: list[float] = []

    def mark(pid: int) -> None:
        marks.append(time.monotonic())

    with setup.folder() as folder:
        wal = f"s3://{BUCKET}/{folder.name}" if s3_url else None
        more = f'[storage.s3]\nendpoint_url = "{s3_url}"\n' if s3_url else ""
        Receiving(folder, setup.broker.options, topic, records, mark, mark, wal_url=wal, more_settings=more).run()
    return marks[1] - marks[0]


@contextlib.contextmanager
def slow_link(port: int) -> Iterator[str]:
    """The url of the server at ``port`` behind the slow link."""
    command = [sys.executable, "-m", "benchmarks.slow_link", str(port), str(LATENCY_SECONDS)]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()
