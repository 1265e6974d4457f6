"""Forebay's receiver and the bare consume loop, as contenders of the race."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from types import TracebackType

from benchmarks.peers.contender import Run, Usage
from benchmarks.receiving import Receiving
from benchmarks.setup import Setup


class ForebayReceiver:
    """One ``forebay receiver`` process, started anew for each run, as in the benchmark ``receiver``."""

    name = "Forebay: receiver"
    durability = (
        "WAL synced and positions in the driver's synced journal, every 200 ms; keys, values, offsets, timestamps"
    )

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def __enter__(self) -> ForebayReceiver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def run(self, topic: str, records: int) -> Run:
        marks: list[tuple[float, Usage]] = []

        def mark(pid: int) -> None:
            marks.append((time.monotonic(), Usage.of(pid)))

        with self._setup.folder() as folder:
            Receiving(folder, self._setup.broker.options, topic, records, mark, mark).run()
        (begun, before), (ended, after) = marks
        return Run(ended - begun, after.cpu_seconds - before.cpu_seconds, after.peak_mb)


class BareLoop:
    name = "A bare consume loop in Python"
    durability = "nothing: it drops the records"

    def __init__(self, servers: str) -> None:
        self._servers = servers

    def __enter__(self) -> BareLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def run(self, topic: str, records: int) -> Run:
        command = [sys.executable, "-m", "benchmarks.bare_consumer", self._servers, topic, str(records)]
        done = subprocess.run(command, check=True, capture_output=True, timeout=600)
        figures = json.loads(done.stdout)
        return Run(figures["seconds"], figures["cpu_seconds"], figures["peak_mb"])
