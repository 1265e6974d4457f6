"""A number of ``forebay receiver`` processes that take in topics, with a driver's decision loop, journal and HTTP here."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import urllib3

from benchmarks.peers.contender import Usage
from benchmarks.receiving import PATIENCE_SECONDS, Tracking, begin_wal, settings_text
from driver.journal import events as ev
from forebay.process.tether import tethered


@dataclass(frozen=True, slots=True)
class Load:
    """What is taken in, and by how many receivers. ``records``: in all topics together."""

    topics: tuple[str, ...]
    partitions: int
    records: int
    receivers: int = 1


@dataclass(frozen=True, slots=True)
class Intake:
    """One run, from the moment when all partitions are claimed until all records are accepted.

    ``peak_mb``: of all receivers together. ``blocks``: reported. ``metrics``: the first receiver's metrics at the end; ""
    without ``metrics_url``.
    """

    seconds: float
    cpu_seconds: float
    peak_mb: float
    blocks: int
    metrics: str


@dataclass
class _Counts:
    """What the driver's decision loop has made durable so far."""

    load: Load
    left: int
    claimed: set[tuple[str, int]] = field(default_factory=set)
    blocks: int = 0
    owned: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)

    def hear(self, events: Sequence[ev.Event]) -> None:
        for event in events:
            if isinstance(event, ev.ClaimGiven):
                self.claimed.add((event.topic, event.partition))
                if len(self.claimed) == len(self.load.topics) * self.load.partitions:
                    self.owned.set()
            elif isinstance(event, ev.BlockAdded):
                self.blocks += 1
                self.left -= event.block.meta.records
                if self.left <= 0:
                    self.done.set()


def take_in(
    directory: Path,
    options: dict[str, str],
    load: Load,
    *,
    wal_url: str | None = None,
    more: str = "",
    environment: Mapping[str, str] | None = None,
    metrics_url: str = "",
) -> Intake:
    """Take in all records of the topics. Raises RuntimeError if a receiver ends, or after ten minutes.

    ``more``: lines at the end of the configuration, which is otherwise the default one. ``metrics_url``: of the first receiver.
    """
    counts = _Counts(load, load.records)
    with Tracking(directory, counts.hear) as tracking, ExitStack() as open_:
        for topic in load.topics:
            tracking.begin(topic, load.partitions)
        config = directory / "forebay.toml"
        served = f'metrics_url = "{metrics_url}"\n' if metrics_url else ""
        text = settings_text(directory, options, load.topics[0], tracking.url, served + more, wal_url)
        config.write_text(text.replace(f'["{load.topics[0]}"]', json.dumps(load.topics)))
        begin_wal(config)
        processes = []
        for number in range(1, load.receivers + 1):
            log = open_.enter_context((directory / f"receiver-{number}.log").open("wb"))
            command = [sys.executable, "-m", "deploy.main", "--config", str(config), "receiver", "--id", f"r{number}"]
            process = subprocess.Popen(tethered(command), stdout=log, stderr=subprocess.STDOUT, env=environment)
            open_.callback(process.wait, 60)
            open_.callback(process.terminate)
            processes.append(process)
        _await(counts.owned, processes, directory)
        begun, before = time.monotonic(), _used(processes)
        _await(counts.done, processes, directory)
        ended, after = time.monotonic(), _used(processes)
        metrics = urllib3.request("GET", f"{metrics_url}/metrics").data.decode() if metrics_url else ""
    return Intake(ended - begun, after.cpu_seconds - before.cpu_seconds, after.peak_mb, counts.blocks, metrics)


def _used(processes: Sequence[subprocess.Popen[bytes]]) -> Usage:
    used = [Usage.of(process.pid) for process in processes]
    return Usage(sum(one.cpu_seconds for one in used), sum(one.peak_mb for one in used))


def _await(reached: threading.Event, processes: Sequence[subprocess.Popen[bytes]], directory: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not reached.wait(0.2):
        if any(process.poll() is not None for process in processes) or time.monotonic() > deadline:
            logs = "\n".join(
                path.read_text(errors="replace")[-1500:] for path in sorted(directory.glob("receiver-*.log"))
            )
            raise RuntimeError(f"the receivers did not take all in: {logs}")
