"""Spark's processes of a run: the standalone master, a worker on each worker host, and the executors that workers start."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path

from tests.jepsen.services import Process
from tests.support.processes.namespaces import Host
from tests.support.spark import standalone
from tests.support.spark.standalone import Daemon

#: in the log of a worker that the master knows, since its start or since the master's
_REGISTERED = "Successfully registered with master"
_ANSWER_SECONDS = 0.5


class SparkDaemon(Process):
    """A master or a worker."""

    def __init__(self, name: str, host: Host, folder: Path, daemon: Daemon) -> None:
        super().__init__(name, host, folder, daemon.environment)
        self._command = daemon.command

    @property
    def command(self) -> list[str]:
        return self._command

    @property
    def origin(self) -> str:
        return "Spark"


class Master(SparkDaemon):
    def ready(self) -> bool:
        """Whether it takes connections."""
        try:
            socket.create_connection((self.host.address, standalone.PORT), _ANSWER_SECONDS).close()
        except OSError:
            return False
        return True


class Worker(SparkDaemon):
    def ready(self) -> bool:
        """Whether it has registered with the master since its start."""
        return _REGISTERED in self.said()


class Executors:
    """The executors of both drivers that ``worker`` runs: their Java, which starts Python workers."""

    def __init__(self, worker: Process) -> None:
        self._worker = worker
        self._stopped: list[int] = []  # pidfds

    def send(self, number: signal.Signals) -> None:
        """Send SIGSTOP to the executors that run now, SIGCONT to those that it stopped, SIGKILL to all."""
        found = self._stopped if number == signal.SIGCONT else children(self._worker.pid)
        for pidfd in found:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                signal.pidfd_send_signal(pidfd, number)
        if number == signal.SIGSTOP:
            self._stopped += found
        else:
            _close(found)
            self._stopped = [] if number == signal.SIGCONT else self._stopped

    def kill(self) -> None:
        self.send(signal.SIGKILL)


def children(pid: int | None) -> list[int]:
    """Return a pidfd of each process that process ``pid`` has started itself; none without a process. The caller closes them."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and pid is not None and _parent(int(entry)) == pid:
            try:
                pidfd = os.pidfd_open(int(entry))
            except ProcessLookupError:
                continue
            if _parent(int(entry)) == pid:
                found.append(pidfd)
            else:  # the number belongs to another process by now
                os.close(pidfd)
    return found


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _close(pidfds: list[int]) -> None:
    for pidfd in pidfds:
        os.close(pidfd)
