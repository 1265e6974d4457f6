"""``python -m tests.jepsen.week``: a week of one-second batches in less than an hour, under a clock that is moved by hand, and
nothing may grow.

Decision loop, journal, history, snapshot copies and clean-up of the driver work on real files; one agent and one receiver, which
is often replaced by a new process, are simulated (``tests.support.processes.long_run``). Every collection of the driver's state,
files and bytes, memory, and processor time of a batch and of a status are sampled, and judged by the test for a trend, as the
soak is. The run's folder has the samples. The history grows with each batch, and is not judged.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from pathlib import Path

from tests.jepsen.soak import judge
from tests.jepsen.story import Story
from tests.support.processes.long_run import LongRun

DAY_SECONDS = 86_400
SAMPLES = 480
RETENTION_SECONDS = 600.0
#: a new receiver after so many batches: what is remembered of ended epochs has its limit of entries before samples count
RECEIVER_BATCHES = 400
#: a series of this unit counts as growing from this growth on
FLOORS = {"MB": 4.0, "kB": 20.0, "files": 20.0, "entries": 20.0, "ms": 0.0, "µs": 0.0}

Series = dict[tuple[str, str], list[tuple[float, float]]]


def sample(folder: Path, batches: int, samples: int = SAMPLES) -> Path:
    """Run ``batches`` batches in ``folder``, one per second of the clock, and return the file of the samples. They are kept in no
    memory, which is one of the series."""
    file = folder / "samples.jsonl"
    with LongRun(folder, RETENTION_SECONDS, RECEIVER_BATCHES).opened() as going, file.open("w") as lines:
        for number in range(1, samples + 1):
            begun, before = time.process_time(), going.batch
            going.run(batches * number // samples - before)
            each_ms = (time.process_time() - begun) / (going.batch - before) * 1000
            found = [("a batch, processor time", "ms", each_ms), ("a status", "µs", going.status_seconds() * 1e6)]
            found.append(("memory", "MB", _memory_bytes() / 1e6))
            for name, size in going.sizes().items():
                unit = _unit_of(name)
                found.append((name, unit, size / 1000 if unit == "kB" else size))
            lines.write(json.dumps([going.batch, found]) + "\n")
    return file


def read(file: Path) -> Series:
    """Return the series of a file of samples, by name and unit."""
    series: Series = defaultdict(list)
    for line in file.read_text().splitlines():
        at, found = json.loads(line)
        for name, unit, value in found:
            series[name, unit].append((float(at), value))
    return series


def _unit_of(name: str) -> str:
    kind = name.rpartition(" ")[2]
    return {"bytes": "kB", "files": "files", "folders": "files"}.get(kind, "entries")


def _memory_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.jepsen.week", description=__doc__)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--out", type=Path, default=Path("run"), help="folder for the run's folder (default: run)")
    chosen = parser.parse_args(arguments)
    folder = chosen.out.resolve() / "week"
    if folder.exists():
        parser.error(f"{folder} exists: delete it, or choose another --out")
    folder.mkdir(parents=True)
    story = Story(folder)
    story.write(f"{chosen.days:g} days of one batch per second")
    series = read(sample(folder, round(chosen.days * DAY_SECONDS)))
    return 0 if judge(series, story, FLOORS) else 1


if __name__ == "__main__":
    sys.exit(main())
