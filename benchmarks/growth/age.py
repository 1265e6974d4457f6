"""The age of a stream: memory, journal, snapshot and the cost of a batch after each tenth of 10,000 batches.

The long run of the benchmark ``day`` (real files, moved clock, simulated receiver and agent), sampled more often. It runs in a
process of its own: ``python -m benchmarks.growth.age FOLDER BATCHES``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.measured import Measured, Threshold, ratio, shown
from benchmarks.setup import Setup
from benchmarks.sheets import Lines, Sheet, line
from tests.support.processes.long_run import LongRun

BATCHES = 10_000
SAMPLES = 10
RETENTION_SECONDS = 600.0


class Sample(msgspec.Struct, frozen=True):
    """The stream after ``batches`` batches. ``batch_ms``: of each batch since the sample before."""

    batches: int
    batch_ms: float
    status_us: float
    memory_mb: float
    journal_mb: float
    snapshot_kb: float


def measure(setup: Setup) -> Iterator[Measured]:
    batches = max(SAMPLES * 20, int(BATCHES * setup.scale))
    with setup.folder() as folder:
        command = [sys.executable, "-m", "benchmarks.growth.age", str(folder), str(batches)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=1_800)
    samples = msgspec.json.decode(done.stdout, type=list[Sample])
    setup.keep(_sheet(samples))
    # retention, and the clean-up of what it keeps, are reached after a tenth
    early, late = samples[1:4], samples[-3:]
    flat = Threshold(1.25, at_least=False)
    batch_ms = (median(one.batch_ms for one in late), median(one.batch_ms for one in early))
    memory_mb = (late[-1].memory_mb, early[0].memory_mb)
    yield ratio("growth-age", "a batch, last three tenths / second to fourth", [batch_ms], "ms", flat)
    yield ratio("growth-age", "memory, at the end / after a fifth", [memory_mb], "MB", flat)


def _sheet(samples: list[Sample]) -> Sheet:
    head = ("batches", "ms per batch", "status, µs", "memory, MB", "journal, MB", "snapshot, kB")
    rows = tuple(
        (f"{s.batches:,}", *map(shown, (s.batch_ms, s.status_us, s.memory_mb, s.journal_mb, s.snapshot_kb)))
        for s in samples
    )
    batch = line("", ((s.batches, [s.batch_ms]) for s in samples))
    memory = line("memory", ((s.batches, [s.memory_mb]) for s in samples))
    journal = line("journal", ((s.batches, [s.journal_mb]) for s in samples))
    plots = (Lines("batches", "ms per batch", (batch,)), Lines("batches", "MB", (memory, journal)))
    return Sheet("growth-age", "Age of the stream", head, rows, plots, runs=1)


def run(folder: Path, batches: int) -> list[Sample]:
    tenth = batches // SAMPLES
    samples = []
    with LongRun(folder, RETENTION_SECONDS, max(1, tenth // 2)).opened() as going:
        for number in range(1, SAMPLES + 1):
            begun = time.perf_counter()
            going.run(tenth)
            seconds = time.perf_counter() - begun
            sizes = going.sizes()
            samples.append(
                Sample(
                    number * tenth, seconds / tenth * 1000, going.status_seconds() * 1e6, _memory_mb(),
                    sizes["journal bytes"] / 1e6, sizes["snapshot bytes"] / 1e3,
                )
            )  # fmt: skip
    return samples


def _memory_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(text.split()[1]) * 1024 / 1e6 for text in lines if text.startswith("VmRSS"))


if __name__ == "__main__":
    print(msgspec.json.encode(run(Path(sys.argv[1]), int(sys.argv[2]))).decode())
