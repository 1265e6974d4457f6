"""Memory of one receiver process with default settings (bound 64 MB) that takes in a backlog of 2 GB.

10,000,000 records of 200 bytes, not compressed, in 4 partitions; small records, because each costs more than its bytes. The peak
is the process's ``VmHWM``, which includes interpreter, libraries, and librdkafka's queue (half of the bound). The growth is the
median of resident memory over the last third of the time, against that over the middle third; the first third begins empty.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.measured import Measured, Threshold, figure
from benchmarks.receiving import Receiving
from benchmarks.setup import Setup

RECORDS = 10_000_000
BOUND_MB = 64.0
ALLOWANCE_MB = 350.0
#: how much more the last third may hold than the middle one
GROWTH_MAX = 1.1
RUNS_MAX = 2
_SAMPLE_SECONDS = 0.1


def measure(setup: Setup) -> Iterator[Measured]:
    records = setup.records(RECORDS)
    topic = setup.topic(records)
    found = [_run(setup, topic, records) for _ in range(min(setup.runs, RUNS_MAX))]
    allowed = Threshold(BOUND_MB + ALLOWANCE_MB, at_least=False)
    backlog = f"backlog of {records * 200 / 1e9:.2f} GB"
    yield figure("memory", "peak", [peak for peak, _ in found], "MB", allowed, backlog)
    grown = [thirds[2] / thirds[1] for _, thirds in found]
    shown = " → ".join(f"{third:.0f}" for third in found[0][1])
    yield figure(
        "memory",
        "last third / middle third",
        grown,
        "of it",
        Threshold(GROWTH_MAX, at_least=False),
        f"thirds in MB: {shown}",
    )


def _run(setup: Setup, topic: str, records: int) -> tuple[float, list[float]]:
    """Return the peak, and the medians of the thirds of the time, in MB."""
    samples: list[tuple[float, float]] = []
    marks: list[float] = []
    peaks: list[float] = []

    def begin(pid: int) -> None:
        marks.append(time.monotonic())

    def end(pid: int) -> None:
        marks.append(time.monotonic())
        peaks.append(_memory_mb(pid, "VmHWM"))

    with setup.folder() as folder:
        receiving = Receiving(folder, setup.broker.options, topic, records, begin, end)
        receiving.run(lambda pid: samples.append((time.monotonic(), _memory_mb(pid, "VmRSS"))), _SAMPLE_SECONDS)
    begun, ended = marks
    third = (ended - begun) / 3
    parts = [
        [mb for at, mb in samples if begun + third * part <= at <= begun + third * (part + 1)] for part in range(3)
    ]
    return peaks[0], [median(part or [peaks[0]]) for part in parts]


def _memory_mb(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"process {pid} tells no {field}")
