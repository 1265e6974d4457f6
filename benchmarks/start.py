"""CPU of each start: `forebay status`, what a query's planner imports, and each service until it is ready.

CPU is user and system time of the process, so other load changes it little. A service is ready when the driver's status shows
it. The status is asked of the driver, so its own figure includes the answers until it is ready. The planner's figures include
what Spark imports in this process; the peer imports that alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.measured import Measured, Threshold, alternate, figure
from benchmarks.setup import Setup, cpu_seconds
from tests.support.processes.cluster import Cluster

STATUS_MAX, SERVICE_MAX, PLANNER_MAX = 0.3, 1.0, 0.5
_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
_PAUSE_SECONDS = 0.01


def measure(setup: Setup) -> Iterator[Measured]:
    found: dict[str, list[float]] = {}
    for _ in range(setup.runs):
        topic = setup.topic(1_000)  # of its own: a new stream of this name is refused where an older one has committed
        with (
            setup.folder() as folder,
            Cluster(folder, setup.broker.options, [topic], receivers=1, start=False, engine="local") as cluster,
        ):
            (folder / "pandas.py").unlink(
                missing_ok=True
            )  # services must not need the tests' shield against its import
            for name in cluster.names:
                cluster.install(name, _command(folder))
            for name, seconds in _services(cluster):
                found.setdefault(name, []).append(seconds)
            command = [sys.executable, "-m", "forebay_start", "--config", str(folder / "forebay.toml"), "status"]
            found.setdefault("status", []).append(_cpu_of(command))
            cluster.drain()
    yield figure("start", "forebay status", found["status"], "s", Threshold(STATUS_MAX, at_least=False))
    for name in ("receiver", "agent"):
        limit = Threshold(SERVICE_MAX, at_least=False)
        yield figure("start", f"{name} until it is ready", found[name], "s", limit)
    yield figure("start", "driver until it leads, local engine", found["driver"], "s")
    for name in ("kafka", "intake"):
        pairs = alternate(
            setup.runs,
            partial(_imports, _RUNNER, f"pyspark_forebay.{name}.stream"),
            partial(_imports, _RUNNER),
        )
        own = [ours - peer for ours, peer in pairs]
        limit = Threshold(PLANNER_MAX, at_least=False)
        yield figure("start", f"planner of a query, {name}: what it imports beside Spark's", own, "s", limit)


def _services(cluster: Cluster) -> Iterator[tuple[str, float]]:
    ready: dict[str, Callable[[], bool]] = {
        "driver": lambda: cluster.status() is not None,
        "agent": lambda: (s := cluster.status()) is not None and bool(s.agents),
        "receiver": lambda: (s := cluster.status()) is not None and any(p.receiver_id for p in s.partitions),
    }
    started: list[str] = []
    for name, is_ready in ready.items():
        service = "r1" if name == "receiver" else name
        cluster.start(service, keep=False)
        started.append(service)
        while not is_ready():
            for other in started:
                if cluster.process(other).poll() is not None:
                    raise RuntimeError(f"{other} ended: {cluster.log(other)[-2000:]}")
            time.sleep(_PAUSE_SECONDS)
        yield name, cpu_seconds(cluster.process(service).pid)


def _command(folder: Path) -> Path:
    """Return a command that starts as a user's does; tests fork their services instead."""
    path = folder / "forebay"
    root = Path(__file__).parents[1]
    path.write_text(f'#!/bin/sh\nPYTHONPATH={root}:$PYTHONPATH exec {sys.executable} -m forebay_start "$@"\n')
    path.chmod(0o755)
    return path


def _imports(*modules: str) -> float:
    return _cpu_of([sys.executable, "-c", f"import {', '.join(modules)}"])


def _cpu_of(command: Sequence[str]) -> float:
    """Run a command, and return its CPU in seconds. Raises RuntimeError if it could not do its work."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    output = process.stderr.read()
    process.stderr.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):  # 1: the status shows a problem, as soon after a start
        raise RuntimeError(f"{command}: {output.decode()[-2000:]}")
    return usage.ru_utime + usage.ru_stime
