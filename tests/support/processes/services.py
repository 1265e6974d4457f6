"""Forebay's real processes in a folder: starting, killing, pausing and awaiting them, their settings, logs and failpoints.

Each process has a log file. What a failpoint or a test killed is started again. Every wait is for a condition, with a deadline; a
wait without success ends the processes, and fails with the end of every log and the stacks of all threads.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from typing_extensions import Self

from forebay.http.client import Client
from forebay.process.tether import tethered
from forebay.security.access import Access
from tests.support.processes import forked, witness
from tests.support.run.ports import free_port

#: maximum wait of a test for an expected event; never asserted on
PATIENCE_SECONDS = 240.0
#: pause between two looks of a wait: short at first, later `_PAUSE_SHARE` of the time waited. A look is work for both processes
_PAUSE_SECONDS_MIN = 0.05
_PAUSE_SECONDS_MAX = 0.2
_PAUSE_SHARE = 0.05
COMMAND = str(Path(sys.executable).with_name("forebay"))
_ROOT = str(Path(__file__).parents[3])  # the processes run the code that the test sees
_STREAM = "stream"
_TAIL_LINES = 25
_ABORT_SECONDS = 5.0

Found = TypeVar("Found")
Process: TypeAlias = "subprocess.Popen[bytes] | forked.Forked"

#: small and quick, so that everything (rolled segments, clean-up, history) happens within seconds
_DEFAULTS: dict[str, dict[str, Any]] = {
    "kafka": {"discovery_interval": "1s", "session.timeout.ms": "2000", "heartbeat.interval.ms": "300"},
    "wal": {"segment_size": "20KB", "retention": "0s", "reserve": "0B"},
    "receiver": {
        "block_interval": "50ms", "heartbeat_interval": "200ms", "report_timeout": "2s", "reclaim_delay": "100ms",
        "drain_timeout": "60s", "memory": "32MB", "block_size": "4MB",
    },
    "driver": {
        "batch_interval": "200ms", "job_retry_delay": "100ms", "lease_duration": "2s", "snapshot_copy_interval": "0s",
        "journal_reserve": "0B",
    },
    "agent": {"heartbeat_interval": "200ms"},
    "security": {},
    "spark": {
        "spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "512m",
    },
}  # fmt: skip


def pause_after(waited: float) -> float:
    """Return how long a wait that has taken ``waited`` seconds pauses before it looks again."""
    return min(max(_PAUSE_SECONDS_MIN, _PAUSE_SHARE * waited), _PAUSE_SECONDS_MAX)


@dataclass
class _Service:
    name: str
    arguments: tuple[str, ...]
    process: Process | None = None
    command: str = COMMAND
    failpoints: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    wanted: bool = False  # restarted when a kill ended it
    starts: int = 0


class Services:
    """A stream's processes: ``driver``, ``agent``, and receivers ``r1``, ``r2``, … by name.

    ``settings`` are sections of forebay.toml (``receiver={"memory": "8MB"}``) over small and quick defaults. Entering the context
    writes the folder and starts all processes (unless ``start`` is False); leaving it kills those that still run.

    Processes are forks of one that has their imports (``forked``), except a driver with Spark, and those of another release.

    One class, because starting, waiting, restarting and stopping all act on the same processes.
    """

    #: whether processes are forks: False where a test looks at their command lines, or starts them in another namespace
    forks = True

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, str],
        topics: Sequence[str],
        *,
        receivers: int = 2,
        engine: str = "local",
        job: str | None = None,
        stream: str = _STREAM,
        start: bool = True,
        **settings: Mapping[str, Any],
    ) -> None:
        self.folder = folder
        self.stream = stream
        self.options = dict(options)
        self.topics = tuple(topics)
        self.seen = folder / "seen"
        self.failpoint_folder = folder / "failpoints"
        security = settings.get("security", {})
        self._scheme = "https" if "cert_file" in security else "http"
        self.driver_url = self.another_url()
        self.config = folder / "forebay.toml"
        self._start_all = start
        self._sections = {name: {**values, **settings.get(name, {})} for name, values in _DEFAULTS.items()}
        # other processes use the broker at the same time, with streams of this name
        of_its_own = {"group": f"forebay.{stream}.{self.topics[0]}"} if self.topics else {}
        self._sections["kafka"] = {
            **self._sections["kafka"],
            "topics": list(topics),
            **of_its_own,
            **options,
            **settings.get("kafka", {}),
        }
        self.group = self._sections["kafka"].get("group", f"forebay.{stream}")
        self.storage = settings.get("storage", {})
        self._sections |= {f"storage.{scheme}": dict(options) for scheme, options in self.storage.items()}
        self._sections["wal"].setdefault("url", f"file://{folder}/wal")
        self._sections["driver"] = {
            "url": self.driver_url, "journal": f"file://{folder}/journal", "engine": engine,
            "job": job or f"jobs:{'local' if engine == 'local' else 'by_dataframe'}", **self._sections["driver"],
        }  # fmt: skip
        self._sections["agent"] = {
            "url": self.another_url(),
            "blocks": f"{folder}/blocks",
            **self._sections["agent"],
        }
        self._services = {name: _Service(name, (name,)) for name in ("driver", "agent")}
        for number in range(1, receivers + 1):
            self.add_receiver(f"r{number}")
        self._access = Access(**security)
        self._client = Client(self.driver_url, 3.0, self._access)
        self._last_status = "no answer yet"

    # ---- processes ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.seen.mkdir(parents=True, exist_ok=True)
        self.failpoint_folder.mkdir(exist_ok=True)
        (self.folder / "jobs.py").write_text(witness.JOB)
        if self._sections["driver"]["engine"] == "local":
            # pyarrow imports pandas wherever it finds it, for nothing here: a second of every process's start
            (self.folder / "pandas.py").write_text('raise ImportError("not needed")\n')
        self.write_settings()
        if self._start_all:
            self.start_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for service in self._services.values():
            if service.process is not None and service.process.poll() is None:
                os.killpg(service.process.pid, signal.SIGKILL)  # a session of its own: with all that it started
                service.process.wait()
        self._client.close()

    def write_settings(self, **settings: Mapping[str, Any]) -> None:
        """Write forebay.toml with ``settings`` over the previous ones; processes started from now on read it."""
        for name, values in settings.items():
            self._sections[name] = {**self._sections[name], **values}
        self.config.write_text(toml_of({"stream": self.stream}, self._sections))

    def add_receiver(self, name: str) -> None:
        """Make a receiver known; :meth:`start` starts it."""
        self._services[name] = _Service(name, ("receiver", "--id", name))

    def start_agent(self, host: str) -> None:
        """Start the agent of another host, with its own name, port and folder; Forebay can't see that it is this machine."""
        self._services[host] = _Service(host, ("agent",))
        own = {"HOST": host, "URL": self.another_url(), "BLOCKS": f"{self.folder}/blocks-{host}"}
        self.start(host, environment={f"FOREBAY__AGENT__{key}": value for key, value in own.items()}, keep=False)

    @property
    def names(self) -> list[str]:
        return list(self._services)

    def start_all(self, failpoints: str = "") -> None:
        """Start all processes that do not run, with the same ``failpoints``."""
        for service in self._services.values():
            if service.process is None:
                self.start(service.name, failpoints=failpoints)

    def install(self, name: str, command: Path) -> None:
        """Use the release of ``command`` for a process from its next start on."""
        self._services[name].command = str(command)

    def start(
        self,
        name: str,
        *more: str,
        failpoints: str = "",
        environment: Mapping[str, str] | None = None,
        keep: bool = True,
    ) -> None:
        """Start a process. Unless :meth:`kill9` kills it, it is restarted while the test waits (``keep``)."""
        service = self._services[name]
        assert service.process is None, f"{name} runs already"
        service.failpoints, service.environment, service.wanted = failpoints, dict(environment or {}), keep
        self._spawn(service, *more)

    def start_rival(
        self,
        name: str,
        of: str,
        *more: str,
        url: str = "",
        command: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a second process of service ``of`` under ``name``, of the release of ``command``.

        A driver listens at ``url``, which the test asks from now on.
        """
        self._services[name] = _Service(name, self._services[of].arguments)
        if command is not None:
            self.install(name, command)
        self.start(name, *more, environment={**({"FOREBAY__DRIVER__URL": url} if url else {}), **(environment or {})})
        if url:
            self.listen_to(url)

    def listen_to(self, url: str) -> None:
        """Ask the driver at ``url`` from now on."""
        self.driver_url = url
        self._client.close()
        self._client = Client(url, 3.0, self._access)

    def another_url(self) -> str:
        """Return a URL for one more service."""
        return f"{self._scheme}://127.0.0.1:{free_port()}"

    def _spawn(self, service: _Service, *more: str) -> None:
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("FOREBAY")},
            "PYSPARK_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1",
            # a release of its own has its code with it
            "PYTHONPATH": os.pathsep.join((str(self.folder), *([_ROOT] if service.command == COMMAND else []))),
            "FOREBAY_FAILPOINTS": service.failpoints, "FOREBAY_FAILPOINT_DIR": str(self.failpoint_folder),
            **service.environment,
        }  # fmt: skip
        with self.log_file(service.name).open("ab") as log:
            service.starts += 1
            log.write(f"---- start {service.starts} {' '.join(more)} {service.failpoints}\n".encode())
            log.flush()
            arguments = ("--config", str(self.config), *service.arguments, *more)
            if self._is_fork(service):
                service.process = forked.server().start(
                    arguments, folder=self.folder, environment=environment, out=log.fileno(), error=log.fileno()
                )
            else:
                service.process = subprocess.Popen(
                    tethered(self._on_its_host(service, (service.command, *arguments))),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder, env=environment,
                    start_new_session=True,
                )  # fmt: skip

    def _is_fork(self, service: _Service) -> bool:
        """Return whether the process has what it imports in ``forked``, where pandas is missing, and needs no new process."""
        has_imports = service.arguments[0] != "driver" or self._sections["driver"]["engine"] == "local"
        preloaded = "LD_PRELOAD" in service.environment  # only a new process loads it
        return self.forks and has_imports and service.command == COMMAND and not preloaded

    def _on_its_host(self, service: _Service, command: Sequence[str]) -> Sequence[str]:
        """Return ``command`` so that it runs on the host of the service."""
        return command

    def process(self, name: str) -> Process:
        process = self._services[name].process
        assert process is not None, f"{name} does not run"
        return process

    def starts(self, name: str) -> int:
        return self._services[name].starts

    def kill9(self, name: str) -> None:
        """Kill a process as a crash would; it is not restarted by itself."""
        process = self.process(name)
        process.kill()
        process.wait()
        self._services[name].process = None

    def restart(self, name: str, failpoints: str | None = None) -> None:
        """Start a process with its previous options after :meth:`kill9`, :meth:`terminate` or its own end."""
        service = self._services[name]
        service.process = None
        if failpoints is not None:
            service.failpoints = failpoints
        self._spawn(service)

    def pause(self, name: str) -> None:
        """Send SIGSTOP, and wait until the process is stopped."""
        process = self.process(name)
        process.send_signal(signal.SIGSTOP)
        self.wait(lambda: _state(process.pid) == "T", f"{name} stopped")

    def wake(self, name: str) -> None:
        """Send SIGCONT."""
        self.process(name).send_signal(signal.SIGCONT)

    def terminate(self, name: str) -> int:
        """Send SIGTERM, and return the exit code."""
        self._tell_to_stop(name)
        return self.await_end(name)

    def _tell_to_stop(self, name: str, may_end: Sequence[str] = ()) -> None:
        """Send SIGTERM once the process handles it: a new process would die of it. ``may_end``: others that stop too."""
        self.wait(
            lambda: _handles(self.process(name).pid, signal.SIGTERM),
            f"{name} to handle SIGTERM",
            may_end=[name, *may_end],
        )
        self.process(name).terminate()

    def await_end(self, name: str, may_end: Sequence[str] = ()) -> int:
        """Return the exit code of a process that ends by itself or on request; those of ``may_end`` may end meanwhile too."""
        service = self._services[name]
        process = self.process(name)
        service.wanted = False
        self.wait(lambda: process.poll() is not None, f"the end of {name}", may_end=[name, *may_end])
        service.process = None
        return process.wait()

    # ---- waiting -----------------------------------------------------------------------------------------------------

    def wait(
        self,
        condition: Callable[..., Found | None],
        what: str,
        seconds: float = PATIENCE_SECONDS,
        may_end: Sequence[str] = (),
    ) -> Found:
        """Wait until ``condition`` returns a true value, and return it. Meanwhile restart killed processes.

        Fails after ``seconds``, which ends the processes, and immediately when a process ended by itself that is not in
        ``may_end``.
        """
        start = time.monotonic()
        while True:
            found = condition()
            if found:
                return found
            self._tend(may_end, what)
            waited = time.monotonic() - start
            if waited > seconds:
                described = self.describe()
                raise AssertionError(f"waited {seconds:g} s without success for: {what}\n{described}\n{self._stacks()}")
            time.sleep(pause_after(waited))

    def _tend(self, may_end: Sequence[str], what: str) -> None:
        for service in self._services.values():
            if service.process is None or service.name in may_end:
                continue
            code = service.process.poll()
            if code is None:
                continue
            if code != -signal.SIGKILL or not service.wanted:
                raise AssertionError(f"{service.name} ended with {code} while waiting for: {what}\n{self.describe()}")
            service.process = None
            self._spawn(service)

    def describe(self) -> str:
        """Return the last status and the end of every log."""
        parts = [f"folder: {self.folder}", f"status: {self._last_status}"]
        for name, service in self._services.items():
            lines = self.log(name).splitlines()[-_TAIL_LINES:]
            state = "down" if service.process is None else f"pid {service.process.pid}, code {service.process.poll()}"
            parts.append(f"---- {name} ({state}, starts {service.starts})\n" + "\n".join(lines))
        return "\n".join(parts)

    def _stacks(self) -> str:
        """End the processes, and return the stacks of all their threads, which Python writes on SIGABRT (``faulthandler``)."""
        parts = []
        for name, service in self._services.items():
            process = service.process
            if process is None or process.poll() is not None:
                continue
            before = len(self.log(name))
            process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):  # a paused one does not end
                process.wait(_ABORT_SECONDS)
            parts.append(f"---- stacks of {name}\n{self.log(name)[before:]}")
        return "\n".join(parts)

    def log_file(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def log(self, name: str) -> str:
        path = self.log_file(name)
        return path.read_text(errors="replace") if path.exists() else ""

    # ---- failpoints --------------------------------------------------------------------------------------------------

    def was_hit(self, failpoint: str) -> bool:
        return (self.failpoint_folder / f"{failpoint}.hit").exists()

    def await_hit(self, failpoint: str) -> None:
        self.wait(lambda: self.was_hit(failpoint), f"failpoint {failpoint} to be hit")

    def release_hold(self, failpoint: str) -> None:
        """Release a ``hold``."""
        (self.failpoint_folder / f"{failpoint}.release").touch()

    def drain(self, names: Sequence[str] = ()) -> None:
        """Stop receivers (those that run, or ``names``), then driver and agent, in order: each exits with 0."""
        receivers = names or [n for n, s in self._services.items() if s.arguments[0] == "receiver" and s.process]
        for name in receivers:
            self._tell_to_stop(name, may_end=receivers)
        codes = {name: self.await_end(name, may_end=receivers) for name in receivers}
        codes |= {name: self.terminate(name) for name in ("driver", "agent") if self._services[name].process}
        assert not any(codes.values()), f"did not end in order: {codes}\n{self.describe()}"


def _state(pid: int) -> str:
    """Return the kernel's letter for a process: R, S, T (stopped), Z, …; "" if it no longer exists."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process has its own handler for a signal; True for a process that no longer exists."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return True
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (number - 1) & 1) or _state(pid) in ("Z", "")


def toml_of(top: Mapping[str, Any], sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a configuration: keys at the top, then sections by name."""
    lines = [f"{key} = {_toml(value)}" for key, value in top.items()]
    for name, values in sections.items():
        lines += ["", f"[{name}]", *(f'"{key}" = {_toml(value)}' for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(part)}" for key, part in value.items()) + "}"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
