"""The WAL on S3 at a distance of 0, 20 and 80 ms: rate, requests and what they would cost, per GB of records.

1,000,000 records of 200 bytes, one receiver, default settings: one object per flush of 250 ms, and the journal in local files.
The S3 server is real; its answers arrive later (``benchmarks.slow_link``). The second load is a steady 10,000 records/s, where
the number of flushes, not of bytes, decides the number of requests. Prices are those of S3 Standard in us-east-1, per 1,000
requests: $0.005 to write or list, $0.0004 to read.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.growth.intake import Intake, Load, take_in
from benchmarks.measured import Measured, Threshold, figure, ratio, shown
from benchmarks.object_wal import slow_link
from benchmarks.setup import PARTITIONS, RECORD_BYTES, Setup
from benchmarks.sheets import Bars, Lines, Sheet, line, spread
from tests.support.run.ports import free_port
from tests.support.stores.s3 import BUCKET, ENVIRONMENT, S3Server, s3_server

RECORDS = 1_000_000
DISTANCES_MS = (0, 20, 80)
TRICKLE_RECORDS_PER_SECOND = 10_000
TRICKLE_SECONDS = 10
#: dollars per request
PRICES = {"put": 0.005e-3, "list": 0.005e-3, "get": 0.0004e-3, "head": 0.0004e-3, "delete": 0.0}
_COUNTED = re.compile(r'^forebay_receiver_store_requests_total\{[^}]*request="(\w+)"[^}]*\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Stored:
    """One run. ``requests``: that the receiver has sent, by kind."""

    intake: Intake
    requests: dict[str, float]
    gigabytes: float

    @property
    def per_gb(self) -> float:
        return sum(self.requests.values()) / self.gigabytes

    @property
    def dollars_per_gb(self) -> float:
        return sum(PRICES[kind] * number for kind, number in self.requests.items()) / self.gigabytes


def measure(setup: Setup) -> Iterator[Measured]:
    records = setup.records(RECORDS)
    topic = setup.topic(records)
    trickle = max(1_000, int(TRICKLE_RECORDS_PER_SECOND * TRICKLE_SECONDS * min(1.0, setup.scale * 10)))
    backlog: dict[int, list[_Stored]] = {distance: [] for distance in DISTANCES_MS}
    steady: dict[int, list[_Stored]] = {distance: [] for distance in DISTANCES_MS}
    with setup.folder() as served, s3_server(served) as server:
        for number in range(setup.runs):
            for distance in DISTANCES_MS:
                backlog[distance].append(_run(setup, server, served, distance, topic, records))
                if number == 0:
                    steady[distance].append(_steady(setup, server, served, distance, trickle))
    setup.keep(_sheet(backlog, steady, records))
    far, near = DISTANCES_MS[-1], DISTANCES_MS[0]
    pairs = [(near_run.intake.seconds, far_run.intake.seconds)
             for far_run, near_run in zip(backlog[far], backlog[near], strict=True)]  # fmt: skip
    rates = [(records / far_seconds, records / near_seconds) for near_seconds, far_seconds in pairs]
    yield ratio("growth-s3", f"records/s, {far} ms / {near} ms", rates, "records/s", Threshold(0.6, at_least=True))
    spent = [run.dollars_per_gb for run in backlog[far]]
    yield figure(
        "growth-s3", f"requests' price per GB, backlog, {far} ms", spent, "$", Threshold(0.005, at_least=False)
    )
    slow = [run.dollars_per_gb for run in steady[far]]
    yield figure("growth-s3", f"requests' price per GB, {trickle // TRICKLE_SECONDS:,} records/s, {far} ms", slow, "$")


def _run(
    setup: Setup, server: S3Server, served: Path, distance_ms: int, topic: str, records: int
) -> _Stored:  # fmt: skip
    with setup.folder() as folder, slow_link(server.port, distance_ms / 1000) as (url, _):
        wal = f"s3://{BUCKET}/{folder.name}"
        more = f'[storage.s3]\nendpoint_url = "{url}"\n'
        intake = take_in(
            folder, setup.broker.options, Load((topic,), PARTITIONS, records), wal_url=wal, more=more,
            environment={**os.environ, **ENVIRONMENT}, metrics_url=f"http://127.0.0.1:{free_port()}",
        )  # fmt: skip
        shutil.rmtree(served / "objects" / BUCKET / folder.name)
    requests = {kind: float(number) for kind, number in _COUNTED.findall(intake.metrics) if kind in PRICES}
    if not requests.get("put"):
        raise RuntimeError(f"the receiver's metrics count no PUT: {intake.metrics[:2000]}")
    return _Stored(intake, requests, records * RECORD_BYTES / 1e9)


def _steady(setup: Setup, server: S3Server, served: Path, distance_ms: int, records: int) -> _Stored:
    topic = setup.topic(PARTITIONS)
    rate = records // TRICKLE_SECONDS
    arguments = [setup.broker.address, topic, str(rate), str(TRICKLE_SECONDS)]
    with subprocess.Popen([sys.executable, "-m", "benchmarks.producing", *arguments]) as producing:
        stored = _run(setup, server, served, distance_ms, topic, PARTITIONS + rate * TRICKLE_SECONDS)
    if producing.returncode:
        raise RuntimeError("the producer failed")
    return stored


def _sheet(
    backlog: dict[int, list[_Stored]], steady: dict[int, list[_Stored]], records: int
) -> Sheet:  # fmt: skip
    rows = []
    for name, found in (("backlog", backlog), ("steady", steady)):
        for distance, runs in found.items():
            rates = spread(_rates(runs, records)) if found is backlog else f"{TRICKLE_RECORDS_PER_SECOND:,}"
            rows.append(_row(name, distance, runs, rates))
    rate = line("", ((max(1, distance), _rates(runs, records)) for distance, runs in backlog.items()))
    ticks = tuple((float(max(1, distance)), str(distance)) for distance in DISTANCES_MS)
    priced = tuple(
        (f"{name}, {distance} ms", tuple(run.dollars_per_gb * 100 for run in runs))
        for name, found in (("backlog", backlog), ("steady", steady))
        for distance, runs in found.items()
    )
    head = ("load", "distance, ms", "records/s", "CPU µs per record", "blocks", "PUT per GB", "GET per GB", "all requests per GB",
            "their price per GB")  # fmt: skip
    plots = (Lines("distance, ms", "records/s", (rate,), ticks), Bars("requests' price per GB, cents", priced))
    return Sheet("growth-s3", "WAL on S3", head, tuple(rows), plots)


def _rates(runs: Sequence[_Stored], records: int) -> list[float]:
    return [records / run.intake.seconds for run in runs]


def _row(name: str, distance: int, runs: Sequence[_Stored], rates: str) -> tuple[str, ...]:
    gigabytes = runs[0].gigabytes
    records = gigabytes * 1e9 / RECORD_BYTES

    def each(kind: str) -> str:
        return shown(median(run.requests.get(kind, 0.0) for run in runs) / gigabytes)

    return (
        name, str(distance), rates,
        spread([run.intake.cpu_seconds / records * 1e6 for run in runs]), shown(median(run.intake.blocks for run in runs)),
        each("put"), each("get"), spread([run.per_gb for run in runs]), f"${median(run.dollars_per_gb for run in runs):.4f}",
    )  # fmt: skip
