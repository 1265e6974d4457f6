"""A profile of where the time of a test run goes: ``make test ARGS="--profile-to=FOLDER"``, then
``python -m tests.support.profile FOLDER``.

Each process of the run writes one line per test: its id, start, wall time, and processor time of the process itself and of the
processes that ended in it. A server that a whole run shares counts in the last test of its process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

import pytest

from tests.support import forked

SLOWEST = 20


class Timed(NamedTuple):
    test: str
    start: float
    wall_seconds: float
    own_cpu_seconds: float
    children_cpu_seconds: float

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]

    @property
    def cpu_seconds(self) -> float:
        return self.own_cpu_seconds + self.children_cpu_seconds


class Profile:
    """The plug-in."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = (folder / f"{os.getpid()}.jsonl").open("w")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        start, before = time.time(), _clocks()
        result = yield
        spent = (round(after - first, 3) for first, after in zip(before, _clocks(), strict=True))
        self._file.write(json.dumps([item.nodeid, round(start, 3), *spent]) + "\n")
        self._file.flush()
        return result

    def pytest_unconfigure(self) -> None:
        self._file.close()


def _clocks() -> tuple[float, float, float]:
    """Return wall time, own processor time, and that of children that have ended."""
    times = os.times()
    children = times.children_user + times.children_system
    return time.monotonic(), times.user + times.system, children + forked.cpu_seconds()


def read(folder: Path) -> list[Timed]:
    return [Timed(*json.loads(line)) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]


def report(tests: Iterable[Timed]) -> Iterator[str]:
    """Yield the lines of the report: sums, then the slowest files and tests."""
    tests = list(tests)
    files: dict[str, list[Timed]] = defaultdict(list)
    for test in tests:
        files[test.file].append(test)
    spans = [
        (sum(t.wall_seconds for t in some), sum(t.cpu_seconds for t in some), name) for name, some in files.items()
    ]
    yield f"{len(tests)} tests: wall {sum(s[0] for s in spans):.0f} s, processor {sum(s[1] for s in spans):.0f} s"
    for title, rows in (
        ("files by wall time", sorted(spans, reverse=True)),
        ("files by processor time", sorted(spans, key=lambda s: s[1], reverse=True)),
        ("tests by wall time", sorted(((t.wall_seconds, t.cpu_seconds, t.test) for t in tests), reverse=True)),
    ):
        yield f"\n{title} (wall s, processor s)"
        yield from (f"{wall:7.1f} {cpu:7.1f}  {name}" for wall, cpu, name in rows[:SLOWEST])


if __name__ == "__main__":
    print("\n".join(report(read(Path(sys.argv[1])))))
