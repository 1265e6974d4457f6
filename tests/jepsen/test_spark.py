"""What faults reach of Spark: executors, as the processes that a worker started, and all that a process started."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.jepsen.services import Process
from tests.jepsen.spark import Executors, Master, Worker, children
from tests.support.processes.namespaces import Host
from tests.support.processes.services import PATIENCE_SECONDS
from tests.support.spark import standalone
from tests.support.spark.standalone import Daemon

#: starts two children, prints their process ids, and waits for them
_PARENT = """\
import subprocess, sys
started = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
print(*(one.pid for one in started), flush=True)
for one in started:
    one.wait()
print("alone", flush=True)
sys.stdin.read()
"""


class Parent(Process):
    """A process with two children, on this host."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-c", _PARENT]

    @property
    def origin(self) -> str:
        return "Spark"


def host(folder: Path, address: str = "198.18.0.1") -> Host:
    return Host("w1", address, "fb1-w1", "fb1.1", folder / "hosts.txt", {})


def state(pid: int) -> str:
    """Return the kernel's letter for a process; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0].replace("Z", "")
    except OSError:
        return ""


def await_that(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Parent]:
    (tmp_path / "logs").mkdir()
    parent = Parent("worker-w1", host(tmp_path), tmp_path, os.environ)
    parent.start()
    await_that(lambda: len(parent.said().splitlines()) == 2)
    yield parent
    parent.kill()


def started_by(parent: Process) -> list[int]:
    """Return the process ids that the parent printed, below the log's own first line."""
    return [int(word) for word in parent.said().splitlines()[1].split()]


def test_executors_are_the_processes_that_the_worker_started(parent: Parent) -> None:
    executors, pids = Executors(parent), started_by(parent)
    assert parent.pid is not None
    executors.send(signal.SIGSTOP)
    await_that(lambda: [state(pid) for pid in pids] == ["T", "T"])
    assert state(parent.pid) != "T"
    executors.send(signal.SIGCONT)
    await_that(lambda: "T" not in [state(pid) for pid in pids])
    executors.kill()
    await_that(lambda: [state(pid) for pid in pids] == ["", ""])
    await_that(lambda: "alone" in parent.said())
    assert children(parent.pid) == []


def test_paused_executors_that_have_ended_meanwhile_are_no_error_when_the_pause_ends(parent: Parent) -> None:
    executors = Executors(parent)
    executors.send(signal.SIGSTOP)
    for pid in started_by(parent):
        os.kill(pid, signal.SIGKILL)
    await_that(lambda: "alone" in parent.said())
    executors.send(signal.SIGCONT)


def test_executors_of_a_worker_that_is_down_are_none(parent: Parent) -> None:
    parent.kill()
    executors = Executors(parent)
    executors.send(signal.SIGSTOP)
    executors.kill()
    executors.send(signal.SIGCONT)


def test_pause_of_a_process_stops_all_that_it_started(parent: Parent) -> None:
    assert parent.pid is not None
    everything = [parent.pid, *started_by(parent)]
    parent.send(signal.SIGSTOP)
    await_that(lambda: {state(pid) for pid in everything} == {"T"})
    parent.send(signal.SIGCONT)
    await_that(lambda: "T" not in {state(pid) for pid in everything})


def test_worker_is_ready_when_it_has_registered_since_its_last_start(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    text = "INFO Worker: Successfully registered with master spark://198.18.0.3:7077"
    worker = Worker("worker-w1", host(tmp_path), tmp_path, Daemon(["sh", "-c", f"echo '{text}'; exec sleep 600"], {}))
    worker.start()
    try:
        await_that(worker.ready)
    finally:
        worker.kill()
    again = Worker("worker-w1", host(tmp_path), tmp_path, Daemon(["sleep", "600"], {}))
    again.start()
    try:
        assert text in again.log.read_text()
        assert not again.ready()
    finally:
        again.kill()


def test_master_is_ready_when_it_takes_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(standalone, "PORT", server.getsockname()[1])
        master = Master("master", host(tmp_path, "127.0.0.1"), tmp_path, Daemon([], {}))
        assert master.ready()
    assert not master.ready()


def test_worker_and_executors_get_the_environment_of_their_host_and_no_path_of_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials of the store and the moved clock; tasks find no module of this project that the driver does not send."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    daemon = standalone.worker(host(tmp_path), tmp_path, host(tmp_path), executors=3, environment={"AWS_REGION": "x"})
    assert daemon.environment["AWS_REGION"] == "x"
    assert "PYTHONPATH" not in daemon.environment
    assert daemon.command[daemon.command.index("--cores") + 1] == "3"
    assert int(daemon.command[daemon.command.index("--memory") + 1].rstrip("m")) >= 3 * 512


def test_master_keeps_its_applications_over_a_restart_only_if_that_is_asked_for(tmp_path: Path) -> None:
    options = "SPARK_DAEMON_JAVA_OPTS"
    kept = standalone.master(host(tmp_path), tmp_path, recovers=True).environment[options]
    assert "spark.deploy.recoveryMode=FILESYSTEM" in kept
    assert f"spark.deploy.recoveryDirectory={tmp_path}/" in kept
    assert "recovery" not in standalone.master(host(tmp_path), tmp_path).environment[options]
