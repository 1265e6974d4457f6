"""Forebay's processes of a run, each on its host: started, killed, paused, and started again when they end by themselves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
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


class Service:
    """One process ``forebay ARGUMENTS`` on ``host``. Start it from the main thread: it dies with the thread that started it.

    ``release``: the earlier release that it runs from its next start on; None: this code.
    """

    def __init__(
        self,
        name: str,
        host: Host,
        folder: Path,
        arguments: tuple[str, ...],
        own: Mapping[str, str],
        release: Release | None = None,
    ) -> None:
        self.name = name
        self.host = host
        self.log = folder / "logs" / f"{name}.log"
        self.starts = 0
        self.release = release
        self._folder = folder
        self._arguments = arguments
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("FOREBAY")},
            "PYTHONPATH": f"{folder}{os.pathsep}{_ROOT}", "PYTHONUNBUFFERED": "1", "PYSPARK_PYTHON": sys.executable,
            **own,
        }  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begin = 0

    @property
    def command(self) -> list[str]:
        program = _COMMAND if self.release is None else str(self.release.command)
        return self.host.command(program, "--config", str(self._folder / "forebay.toml"), *self._arguments)

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
                env=self._environment, start_new_session=True,
            )  # fmt: skip

    def ended(self) -> int | None:
        """Return the exit code of a process that ended by itself, and forget it; None if it runs or was ended."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self._process = None
        return code

    def traceback(self) -> str:
        """Return the last line of the last traceback since the process began; "" if there is none."""
        with self.log.open(errors="replace") as log:
            log.seek(self._log_begin)
            found = _TRACEBACK.findall(log.read())
        return found[-1] if found else ""

    def send(self, number: signal.Signals) -> None:
        if self._process is not None and self.pid is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it with all that it started. It stays down until :meth:`start`."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def stop(self) -> None:
        """Send SIGTERM; :meth:`stopped` says when it has ended."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)

    def stopped(self) -> bool:
        return self.pid is None

    def forget(self) -> int | None:
        """Return the exit code of a process that was asked to stop. It stays down until :meth:`start`."""
        process, self._process = self._process, None
        return None if process is None else process.poll()


class Services:
    """All of them, by name. ``held``: names that stay down because a fault ended them."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._all: dict[str, Service] = {}
        self.held: set[str] = set()

    def add(self, service: Service) -> None:
        self._all[service.name] = service

    def __getitem__(self, name: str) -> Service:
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
                self._story.ended(name, code, service.traceback(), service.release)
                service.start()

    def kill_all(self) -> None:
        for service in self._all.values():
            service.kill()
