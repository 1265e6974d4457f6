"""The processes of a run, each on its host: started, killed, paused, and started again when they end by themselves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from forebay.process.tether import tethered
from tests.jepsen.story import Story
from tests.support.processes.namespaces import Host
from tests.support.run.releases import Release

_ROOT = Path(__file__).parents[2]
_COMMAND = str(Path(sys.executable).with_name("forebay"))
#: the last line of a traceback; lines of logs have a time before it
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:(?: .*|)\n)+(\S.*)$", re.MULTILINE)


class Process(ABC):
    """One process on ``host``. Start it from the main thread: it dies with the thread that started it."""

    def __init__(self, name: str, host: Host, folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.host = host
        self.log = folder / "logs" / f"{name}.log"
        self.starts = 0
        self._folder = folder
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begin = 0

    @property
    @abstractmethod
    def command(self) -> list[str]:
        """The command that its next start runs."""

    @property
    @abstractmethod
    def origin(self) -> str:
        """What the process runs from its next start on; "" for this code, whose ends the checker judges."""

    def environment(self) -> Mapping[str, str]:
        """Return the environment of its next start."""
        return self._environment

    @property
    def pid(self) -> int | None:
        """The process that runs; None if none does."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> None:
        if self.pid is not None:
            return
        self.starts += 1
        with self.log.open("ab") as log:
            self._log_begin = log.tell()
            log.write(f"---- start {self.starts}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                tethered(self.command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder,
                env=self.environment(), start_new_session=True,
            )  # fmt: skip

    def ready(self) -> bool:
        """Whether it answers, as far as a fault waits for that."""
        return True

    def said(self) -> str:
        """Return its log since it began."""
        with self.log.open(errors="replace") as log:
            log.seek(self._log_begin)
            return log.read()

    def ended(self) -> int | None:
        """Return the exit code of a process that ended by itself, and forget it; None if it runs or was ended."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self._process = None
        return code

    def traceback(self) -> str:
        """Return the last line of the last traceback since the process began; "" if there is none."""
        found = _TRACEBACK.findall(self.said())
        return found[-1] if found else ""

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and to all that it started in its group: a driver's Java, a Spark worker's executors."""
        if self.pid is not None:
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill it with all that it started. It stays down until :meth:`start`."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def stop(self) -> None:
        """Send SIGTERM to the process alone; :meth:`stopped` says when it has ended."""
        self.send(signal.SIGCONT)
        if self._process is not None and self.pid is not None:
            self._process.send_signal(signal.SIGTERM)

    def stopped(self) -> bool:
        return self.pid is None

    def forget(self) -> int | None:
        """Return the exit code of a process that was asked to stop. It stays down until :meth:`start`."""
        process, self._process = self._process, None
        return None if process is None else process.poll()


class Service(Process):
    """``forebay ARGUMENTS``. ``release``: the earlier release that it runs from its next start on; None: this code. ``newer``:
    environment for this code alone, with keys that earlier releases refuse."""

    def __init__(
        self,
        name: str,
        host: Host,
        folder: Path,
        arguments: tuple[str, ...],
        own: Mapping[str, str],
        release: Release | None = None,
        newer: Mapping[str, str] | None = None,
    ) -> None:
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("FOREBAY")},
            "PYTHONPATH": f"{folder}{os.pathsep}{_ROOT}", "PYTHONUNBUFFERED": "1", "PYSPARK_PYTHON": sys.executable,
            **own,
        }  # fmt: skip
        super().__init__(name, host, folder, environment)
        self.release = release
        self._arguments = arguments
        self._newer = newer or {}

    def environment(self) -> Mapping[str, str]:
        return {**self._environment, **(self._newer if self.release is None else {})}

    @property
    def command(self) -> list[str]:
        program = _COMMAND if self.release is None else str(self.release.command)
        return self.host.command(program, "--config", str(self._folder / "forebay.toml"), *self._arguments)

    @property
    def origin(self) -> str:
        return "" if self.release is None else f"release {self.release.name}"


class Services:
    """All of them, by name. ``held``: names that stay down because a fault ended them."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._all: dict[str, Process] = {}
        self.held: set[str] = set()

    def add(self, service: Process) -> None:
        self._all[service.name] = service

    def __getitem__(self, name: str) -> Process:
        return self._all[name]

    @property
    def names(self) -> list[str]:
        return list(self._all)

    def running(self) -> dict[str, int]:
        """Return name → process id of those that run."""
        return {name: pid for name, service in self._all.items() if (pid := service.pid) is not None}

    def tend(self) -> None:
        """Start again what ended by itself, as systemd would."""
        for name, service in self._all.items():
            if name in self.held:
                continue
            code = service.ended()
            if code is not None:
                self._story.ended(name, code, service.traceback(), service.origin)
                service.start()

    def kill_all(self) -> None:
        for service in self._all.values():
            service.kill()
