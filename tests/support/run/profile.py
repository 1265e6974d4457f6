"""A profile of where the time of a test run goes: ``make test ARGS="--profile-to=FOLDER"``, then
``python -m tests.support.run.profile FOLDER``.

Each process of the run writes one line per test: its id, start, wall time, and processor time of the process itself and of the
processes that ended in it. A server that a whole run shares counts in the last test of its process. The first process of the run
also samples all processes of the run, and writes the kind, the processor time and the place of each (``processes.jsonl``).
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

import pytest

from tests.support.processes import forked

SLOWEST, LARGEST = 20, 40
_PROCESSES_FILE = "processes.jsonl"
#: interval of samples: the last fraction of it is missing from the time of a process
_SAMPLE_SECONDS = 0.5
_SAMPLES_WRITTEN = 20
_FORKS = "tests.support.processes.forked"
_PYTHON = "Python: other"
#: part of a command line → kind of process; the first match counts. `_FOLDERS_OF_TESTS` are removed from the command line before
_KINDS = {
    "kafka.tools.": "Java: Kafka's tools", "kafka.Kafka": "Java: Kafka", "org.apache.spark": "Java: Spark",
    "org.apache.hadoop": "Java: HDFS", "quarkus": "Java: schema registry", "java": "Java: other",
    "pyspark.daemon": "Python: Spark's workers", "forebay_start.daemon": "Python: Spark's workers",
    "python_streaming_source_runner": "Python: Spark's planners", "pyspark": "Python: Spark's planners",
    _FORKS: "Python: fork", "exec(eval(sys.stdin.readline()))": "Python: workers of pytest",
    "-m pytest": "Python: first process of pytest", "bin/forebay": "Python: commands", "tether.py": "Python: tethers",
    "tests.support": "Python: helpers of tests", "--type=": "Chromium", "chrom": "Chromium",
    "versitygw": "S3 server", "postgres": "PostgreSQL", "node": "Node", "python": _PYTHON,
}  # fmt: skip
#: the module or the script that Python runs
_PROGRAM = re.compile(r" (?:-m )?((?<=-m )\S+|\S+\.py)(?: |$)")
_FOLDERS_OF_TESTS = re.compile(r"\S*/pytest-of-[^/\s]+/pytest-\d+(?:/popen-gw\d+)?/([^/\s]+)")

#: Spark's scripts, which become Java
_SCRIPTS = ("spark-submit", "spark-class")
#: kinds that a process may leave: for another command, or another name
_PASSING = ("", "Python: tethers", "Python: fork of python")


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


class Process(NamedTuple):
    """``place``: the name of the test's folder in its command line or working directory; "" if there is none."""

    kind: str
    cpu_seconds: float
    place: str


class Profile:
    """The plug-in."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = (folder / f"tests-{os.getpid()}.jsonl").open("w")

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


class Processes:
    """The plug-in of the first process of a run: the processor time of each process, of this one and all below it.

    A process that starts and ends between two samples is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / _PROCESSES_FILE
        self._ended = threading.Event()
        self._seen: dict[tuple[int, int], Process] = {}  # by process id and start
        self._thread = threading.Thread(target=self._run, name="profile of processes", daemon=True)
        self._thread.start()

    def pytest_unconfigure(self) -> None:
        self._ended.set()
        self._thread.join()
        self._write()

    def _write(self) -> None:
        self._file.write_text("".join(json.dumps(process) + "\n" for process in self._seen.values()))

    def _run(self) -> None:
        mine = {os.getpid()}
        for count in itertools.count(1):
            if self._ended.wait(_SAMPLE_SECONDS):
                return
            mine = self._sample(mine)
            if count % _SAMPLES_WRITTEN == 0:
                self._write()  # a run that is killed leaves a profile too

    def _sample(self, mine: set[int]) -> set[int]:
        """Note the processes of the run, and return their ids. One whose parent has ended still belongs to the run."""
        found = {
            int(name): stat for name in os.listdir("/proc") if name.isdigit() and (stat := _stat(name)) is not None
        }
        belongs = {pid for pid in mine if pid in found}
        while more := {pid for pid, stat in found.items() if stat.parent in belongs} - belongs:
            belongs |= more
        for pid in belongs:
            key = (pid, found[pid].start)
            kind, _, place = self._seen.get(key, Process("", 0.0, ""))
            if kind in _PASSING:
                kind = _kind(pid) or kind
            self._seen[key] = Process(kind, found[pid].cpu_seconds, place or _place(pid))
        return belongs


class _Stat(NamedTuple):
    parent: int
    start: int
    cpu_seconds: float


def _stat(pid: str) -> _Stat | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return None
    return _Stat(int(fields[1]), int(fields[19]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


def _kind(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # it has ended
        return ""
    if not command.strip() or name in _SCRIPTS:  # without a command, it is ending
        return ""
    return kind_of(command, name)


def _place(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        found = _FOLDERS_OF_TESTS.search(command) or _FOLDERS_OF_TESTS.search(os.readlink(f"/proc/{pid}/cwd"))
    except OSError:  # it has ended
        return ""
    return found[1] if found else ""


def kind_of(command: str, name: str) -> str:
    """Return the kind of a process from its command line and from the name that it gave itself."""
    command = _FOLDERS_OF_TESTS.sub("", command)
    part, kind = next(((part, kind) for part, kind in _KINDS.items() if part in command), ("", f"other: {name}"))
    if part == _FORKS:
        return f"{kind} of {name}"
    program = _PROGRAM.search(command) if kind == _PYTHON else None
    return f"{kind}: {Path(program[1]).name}" if program else kind


def _clocks() -> tuple[float, float, float]:
    """Return wall time, own processor time, and that of children that have ended."""
    times = os.times()
    children = times.children_user + times.children_system
    return time.monotonic(), times.user + times.system, children + forked.cpu_seconds()


def read(folder: Path) -> list[Timed]:
    return [Timed(*json.loads(line)) for file in folder.glob("tests-*.jsonl") for line in file.read_text().splitlines()]


def read_processes(folder: Path) -> list[Process]:
    return [Process(*json.loads(line)) for line in (folder / _PROCESSES_FILE).read_text().splitlines()]


def report(tests: Sequence[Timed], processes: Sequence[Process]) -> Iterator[str]:
    """Yield the lines of the report: sums, kinds of processes, the largest processes, then the slowest files and tests."""
    files: dict[str, list[Timed]] = defaultdict(list)
    for test in tests:
        files[test.file].append(test)
    spans = [
        (sum(t.wall_seconds for t in some), sum(t.cpu_seconds for t in some), name) for name, some in files.items()
    ]
    yield f"{len(tests)} tests: wall {sum(s[0] for s in spans):.0f} s, processor {sum(s[1] for s in spans):.0f} s"
    kinds: defaultdict[str, list[float]] = defaultdict(list)
    for process in processes:
        kinds[process.kind].append(process.cpu_seconds)
    yield f"\nprocessor time by kind of process: {sum(map(sum, kinds.values())):.0f} s (processor s, processes)"
    for kind, each in sorted(kinds.items(), key=lambda item: sum(item[1]), reverse=True):
        yield f"{sum(each):7.1f} {len(each):7d}  {kind}"
    yield "\nprocesses by processor time (processor s)"
    for process in sorted(processes, key=lambda process: process.cpu_seconds, reverse=True)[:LARGEST]:
        yield f"{process.cpu_seconds:7.1f}  {process.kind}  {process.place}"
    for title, rows in (
        ("files by wall time", sorted(spans, reverse=True)),
        ("files by processor time", sorted(spans, key=lambda s: s[1], reverse=True)),
        ("tests by wall time", sorted(((t.wall_seconds, t.cpu_seconds, t.test) for t in tests), reverse=True)),
    ):
        yield f"\n{title} (wall s, processor s)"
        yield from (f"{wall:7.1f} {cpu:7.1f}  {name}" for wall, cpu, name in rows[:SLOWEST])


if __name__ == "__main__":
    print("\n".join(report(read(Path(sys.argv[1])), read_processes(Path(sys.argv[1])))))
