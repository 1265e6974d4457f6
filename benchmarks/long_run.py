"""A day of one-second batches: 86,400, as fast as they go under a clock that is moved by hand; a week would be seven times that.

The driver's deciding thread, journal, history, snapshot copies and clean-up over real files; one receiver, which is a new process
now and then, and one agent are played (``tests.support.long_run``). In a process of its own. Ours: at the end of the day; peer:
after its first tenth. The largest of several looks, since clean-up and snapshots come and go. What a batch, a status
and memory take must not grow; the history grows, evenly.
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
from tests.support.long_run import LongRun

BATCHES = 86_400
LOOKS = 12
RETENTION_SECONDS = 600.0


class Look(msgspec.Struct, frozen=True):
    """Some time of the run. ``sizes``: as ``LongRun.sizes``; ``batch_ms``: what a batch took."""

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
    early, late = msgspec.json.decode(found, type=tuple[Look, Look])
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


def run(folder: Path, batches: int) -> tuple[Look, Look]:
    tenth = batches // 10
    # so often that what is remembered of ended epochs, which has a limit, is full at the first look
    with LongRun(folder, RETENTION_SECONDS, max(1, tenth // 2 // (UNBARRED_MAX + 44))).opened() as going:
        early = _look(going, tenth)
        going.run(batches - 2 * tenth)
        return early, _look(going, tenth)


def _look(going: LongRun, batches: int) -> Look:
    """Over ``batches`` batches; looked at in the second half of them."""
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
    return Look(sizes, status_us, _memory_bytes(), seconds / done * 1000, history)


def _memory_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    print(msgspec.json.encode(run(Path(sys.argv[1]), int(sys.argv[2]))).decode())
