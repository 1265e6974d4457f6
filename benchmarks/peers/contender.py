"""What every contender of the race gives: the time, processor time and memory of one run over the same topic."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Run:
    """One run. ``cpu_seconds`` and ``peak_mb``: of the contender's processes, without the broker.

    ``peak_mb`` is the largest resident memory since the processes began.
    """

    seconds: float
    cpu_seconds: float
    peak_mb: float


class Contender(AbstractContextManager["Contender"], Protocol):
    """A program that takes in a whole topic. Open while the race runs, so that a JVM is warm after its first run.

    ``name``: in tables and plots. ``durability``: what is on disk when a run has ended.
    """

    name: str
    durability: str

    def run(self, topic: str, records: int) -> Run:
        """Take in ``records`` records, all of the topic. Raises RuntimeError if other records or bytes were found."""
        ...


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process and its descendants have used up to now, the descendants that ended included."""

    cpu_seconds: float
    peak_mb: float

    @classmethod
    def of(cls, pid: int) -> Usage:
        tree = _tree(pid)
        return cls(sum(map(_cpu_seconds, tree)), sum(map(_peak_mb, tree)))


def _tree(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found.extend(parents.get(one, ()))
    return found


def _cpu_seconds(pid: int) -> float:
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) * _TICK_SECONDS if fields else 0.0


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state on; [] if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _peak_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:"))
