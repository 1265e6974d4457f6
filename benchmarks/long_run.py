"""A day of one-second batches: 86,400 batches as fast as possible, under a clock that is moved by hand.

Decision loop, journal, history, snapshot copies and clean-up of the driver work on real files. One agent and one receiver,
which is sometimes replaced by a new process, are simulated (``tests.support.processes.long_run``). All run in one process.
Ours: at the end of the day. Peer: after its first tenth. Each figure is the largest of several samples, because clean-up and
snapshots are periodic. The cost of a batch, of a status and the memory must not grow; the history grows linearly. A week would
take seven times as long.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.measured import Measured, Threshold, figure, ratio
from benchmarks.setup import Setup
from driver.journal.transitions.receivers import UNBARRED_MAX
from tests.support.processes.long_run import LongRun

BATCHES = 86_400
LOOKS = 12
RETENTION_SECONDS = 600.0


class Sample(msgspec.Struct, frozen=True):
    """One sample of the run. ``sizes``: as ``LongRun.sizes``; ``batch_ms``: milliseconds per batch."""

    sizes: dict[str, int]
    status_us: float
    memory_bytes: int
    batch_ms: float
    history_bytes_per_batch: float


def measure(setup: Setup) -> Iterator[Measured]:
    batches = max(240, int(BATCHES * setup.scale))
    with setup.folder() as folder:
        command = [sys.executable, "-m", "benchmarks.long_run", str(folder), str(batches)]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=3_600).stdout
    early, late = msgspec.json.decode(found, type=tuple[Sample, Sample])
    note = f"{batches:,} batches against the first tenth"
    flat = Threshold(1.25, at_least=False)

    def pair(what: str, ours: float, peer: float, unit: str, note: str = note) -> Measured:
        return ratio("day", what, [(ours, peer)], unit, flat, note)

    yield pair("memory", late.memory_bytes / 1e6, early.memory_bytes / 1e6, "MB")
    yield pair("journal, at most", late.sizes["journal bytes"] / 1e6, early.sizes["journal bytes"] / 1e6, "MB")
    yield pair("a snapshot", late.sizes["snapshot bytes"] / 1e3, early.sizes["snapshot bytes"] / 1e3, "kB")
    yield pair("status", late.status_us, early.status_us, "µs")
    yield pair("a batch", late.batch_ms, early.batch_ms, "ms")
    grown = {name: (size, early.sizes.get(name, 0)) for name, size in late.sizes.items() if size > 20}
    worst = max(grown, key=lambda name: grown[name][0] / max(1, grown[name][1]))
    ours, peer = grown[worst]
    about = f"{worst}, of {len(late.sizes)} counts"
    yield pair("of all collections, files and bytes the one that grew most", ours, max(1, peer), "", about)
    yield figure("day", "history, per batch", [late.history_bytes_per_batch], "bytes")


def run(folder: Path, batches: int) -> tuple[Sample, Sample]:
    tenth = batches // 10
    # so often that what is remembered of ended epochs, which has a limit, is full at the first look
    with LongRun(folder, RETENTION_SECONDS, max(1, tenth // 2 // (UNBARRED_MAX + 44))).opened() as going:
        early = _sample(going, tenth)
        going.run(batches - 2 * tenth)
        return early, _sample(going, tenth)


def _sample(going: LongRun, batches: int) -> Sample:
    """Return samples over ``batches`` batches, taken in the second half of them."""
    going.run(batches // 2)
    sizes: dict[str, int] = {}
    status_us, seconds, done, before = float("inf"), 0.0, 0, going.history_bytes()
    for _ in range(LOOKS):
        begun = time.perf_counter()
        going.run(batches // 2 // LOOKS)
        seconds += time.perf_counter() - begun
        done += batches // 2 // LOOKS
        for name, size in going.sizes().items():
            sizes[name] = max(size, sizes.get(name, 0))
        status_us = min(status_us, going.status_seconds() * 1e6)
    history = (going.history_bytes() - before) / done
    return Sample(sizes, status_us, _memory_bytes(), seconds / done * 1000, history)


def _memory_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    print(msgspec.json.encode(run(Path(sys.argv[1]), int(sys.argv[2]))).decode())
