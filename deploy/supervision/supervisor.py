"""Runs child processes, restarts those that fail, and stops them in order. ``deploy.supervision.verdicts`` has the decisions.

One thread, that of :meth:`Supervisor.run`, starts, restarts and stops the children; it waits on one queue of events. For each
child, one thread waits for its end, and another forwards its log lines.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from deploy.supervision.readiness import ReadySocket
from deploy.supervision.verdicts import VERDICTS, ExitVerdict, described, how_it_ended
from forebay.model.errors import StoreError
from forebay.process.clock import Clock, SystemClock
from forebay.process.logs import relay
from forebay.process.restarts import RestartPolicy
from forebay.process.secret_file import make_private_folder
from forebay.process.tether import tethered


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A child process.

    ``stop_rank``: children with a lower rank are stopped first. ``stop_seconds``: time to stop before it is killed.
    ``goes_first``: the other children are started when this one reports by ``NOTIFY_SOCKET`` that it is ready.
    """

    name: str
    command: tuple[str, ...]
    stop_rank: int = 0
    stop_seconds: float = 30.0
    goes_first: bool = False


#: maximum wait for the last lines of an ended child; a process that left its group may hold the pipe open
_LAST_LINES_SECONDS = 5.0


#: maximum part of a child's last line that an event shows
_LAST_LINE_BYTES = 500


@dataclass(slots=True)
class _Child:
    spec: ChildSpec
    log: threading.Thread | None = None
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failures: int = 0
    socket: ReadySocket | None = None
    ready: bool = False
    stays_down: bool = False
    restart_at: float | None = None
    kill_at: float | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None


@dataclass(frozen=True, slots=True)
class _Ended:
    child: _Child
    return_code: int


@dataclass(frozen=True, slots=True)
class _Ready:
    """A child has reported that it is ready. After the child with ``goes_first``, the other children can start."""

    child: _Child


@dataclass(frozen=True, slots=True)
class _Asked:
    """:meth:`Supervisor.stop` was called, for the first or a later time."""


@dataclass(slots=True)
class LogLines:
    """The destination of the children's log lines.

    ``folder``: one file for each child; None writes all lines to ``stream``, each after the child's name, or as JSON.
    """

    folder: Path | None = None
    stream: IO[str] = field(default_factory=lambda: sys.stderr)
    as_json: bool = False

    def open(self, name: str) -> IO[bytes] | int:
        """Open what a child writes to: its file, or a pipe that :meth:`follow` reads."""
        if self.folder is None:
            return subprocess.PIPE
        make_private_folder(self.folder)
        return open(os.open(self._file(self.folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")

    def where(self, name: str) -> str:
        """Return the place and the text of a child's last line, to append to a sentence; "" if the lines precede the sentence."""
        if self.folder is None:
            return ""
        path = self._file(self.folder, name)
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _LAST_LINE_BYTES))
                lines = file.read().decode("utf-8", "replace").split("\n")
        except OSError as error:
            return f" (last lines in {path}, which can't be read: {error.strerror})"
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f" (last line in {path}: {last})"

    @staticmethod
    def _file(folder: Path, name: str) -> Path:
        return folder / f"{name}.log"

    def follow(self, name: str, pipe: IO[bytes]) -> None:
        """Write the lines of ``pipe`` to ``stream`` until the pipe is closed, also while ``stream`` takes none."""
        relay(pipe, self.stream, name, as_json=self.as_json)


class Supervisor:
    """Runs ``children`` until :meth:`stop` is called or no child is left to run.

    ``say``: called with each event as a sentence. ``ready``: called once, when each child that is to run has reported that it is
    ready; not if no child goes first. :meth:`stop`, :meth:`kill` and :meth:`pid` are thread-safe.
    """

    def __init__(
        self,
        children: Sequence[ChildSpec],
        *,
        policy: RestartPolicy | None = None,
        environment: Mapping[str, str] | None = None,
        logs: LogLines | None = None,
        say: Callable[[str], None] = lambda event: None,
        ready: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._children = [_Child(spec) for spec in children]
        self._policy = policy or RestartPolicy()
        self._environment = dict(os.environ if environment is None else environment)
        self._logs = logs or LogLines()
        self._say = say
        self._ready = ready
        self._clock = clock or SystemClock()
        self._happened: queue.SimpleQueue[_Ended | _Asked | _Ready] = queue.SimpleQueue()
        self._waiting = [
            child for child in self._children if not child.spec.goes_first
        ]  # for the child with goes_first
        if len(self._waiting) == len(self._children):
            self._waiting = []
        self._stopping = False
        self._killing = False
        self._announced = False
        self._worst = 0

    def run(self) -> int:
        """Run the children until all have ended and their last log lines are written.

        Return 0, or the exit code of the first child that stays down. Raises StoreError if a child can't be started for the first
        time; no child is left running then.
        """
        with ExitStack() as sockets:
            for child in self._children if self._waiting else ():
                child.socket = sockets.enter_context(ReadySocket(partial(self._happened.put, _Ready(child))))
            try:
                for child in self._children:
                    if child not in self._waiting:
                        self._start(child)
                while self._work_left():
                    self._wait()
                    self._restart_due()
                    if self._stopping:
                        self._stop_next()
            except BaseException:
                self._kill_all()
                raise
        for child in self._children:
            if child.log is not None:
                child.log.join(_LAST_LINES_SECONDS)
        return self._worst

    def stop(self) -> None:
        """Stop all children in order; a second call kills them."""
        self._happened.put(_Asked())

    def pid(self, name: str) -> int | None:
        """Return the process id of child ``name``; None if it is not running."""
        process = self._named(name).process
        return None if process is None else process.pid

    def kill(self, name: str) -> bool:
        """Kill child ``name`` with SIGKILL. Return False if it was not running."""
        process = self._named(name).process
        if process is None or process.poll() is not None:
            return False
        os.killpg(process.pid, signal.SIGKILL)
        return True

    # ---- only in the thread of run() ----

    def _named(self, name: str) -> _Child:
        return next(child for child in self._children if child.spec.name == name)

    def _work_left(self) -> bool:
        return any(child.alive or (child.restart_at is not None and not self._stopping) for child in self._children)

    def _wait(self) -> None:
        deadlines = [at for child in self._children for at in (child.restart_at, child.kill_at) if at is not None]
        timeout = max(0.0, min(deadlines) - self._clock.monotonic()) if deadlines else None
        try:
            happened = self._happened.get(timeout=timeout)
        except queue.Empty:
            return
        if isinstance(happened, _Ended):
            self._ended(happened.child, happened.return_code)
        elif isinstance(happened, _Ready):
            happened.child.ready = True
            if happened.child.spec.goes_first:
                self._start_waiting()
            self._announce()
        elif not self._stopping:
            self._begin_stop("stopping")
        elif not self._killing:
            self._killing = True
            self._say("second request to stop: killing the remaining services")
            self._kill_all()

    def _start_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._stopping:
            return
        for child in waiting:
            self._start(child)

    def _announce(self) -> None:
        """Call ``ready`` if no child that is to run is still starting."""
        starting = any(not child.ready and not child.stays_down for child in self._children)
        if not (self._announced or self._stopping or self._waiting or starting):
            self._announced = True
            self._ready()

    def _start(self, child: _Child) -> None:
        """Start ``child``. Raises StoreError if the system starts no process, or its log can't be opened."""
        child.restart_at = None
        name = child.spec.name
        try:
            process = self._process(child)
        except OSError as error:
            raise StoreError(f"{name} cannot be started: {error}") from None
        child.process = process
        child.started = self._clock.monotonic()
        if process.stdout is not None:
            child.log = threading.Thread(
                target=self._logs.follow, args=(name, process.stdout), name=f"log {name}", daemon=True
            )
            child.log.start()
        threading.Thread(
            target=lambda: self._happened.put(_Ended(child, process.wait())), name=f"wait {name}", daemon=True
        ).start()

    def _process(self, child: _Child) -> subprocess.Popen[bytes]:
        output = self._logs.open(child.spec.name)
        try:
            return subprocess.Popen(
                tethered(child.spec.command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**self._environment, **(child.socket.environment if child.socket is not None else {})},
                start_new_session=True,  # Ctrl-C at the terminal reaches only the supervisor, which stops in order
            )
        finally:
            if not isinstance(output, int):
                output.close()

    def _ended(self, child: _Child, return_code: int) -> None:
        assert child.process is not None
        # also kill its children (Spark's JVM and Python workers): the restarted process needs their ports
        _kill_group(child.process.pid)
        child.process, child.kill_at = None, None
        ran_seconds = self._clock.monotonic() - child.started
        alone = bool(self._waiting)
        what = f"{child.spec.name} {described(return_code, alone)}"
        if self._stopping:
            if return_code != 0:
                self._say(what)
            return
        verdict, reason = VERDICTS[how_it_ended(return_code, alone)]
        if verdict is ExitVerdict.RESTART:
            child.failures = self._policy.failures_after(child.failures, ran_seconds)
            delay = self._policy.delay_seconds(child.failures)
            child.restart_at = self._clock.monotonic() + delay
            where = self._logs.where(child.spec.name)
            self._say(f"{what} after {ran_seconds:.1f} s{where}: restart in {delay:g} s")
            return
        self._worst = self._worst or return_code
        self._say(f"{what} and is not restarted{self._logs.where(child.spec.name)}: {reason}")
        child.stays_down = True
        if verdict is ExitVerdict.STOP_ALL:
            self._begin_stop("stopping the others")
        self._announce()

    def _restart_due(self) -> None:
        now = self._clock.monotonic()
        for child in self._children:
            if not self._stopping and child.restart_at is not None and child.restart_at <= now:
                try:
                    self._start(child)
                except StoreError as error:  # as without free file descriptors: the others run on
                    child.failures = self._policy.failures_after(child.failures, 0.0)
                    delay = self._policy.delay_seconds(child.failures)
                    child.restart_at = now + delay
                    self._say(f"{error}: trying again in {delay:g} s")
                    continue
                self._say(f"{child.spec.name} was restarted (process {self.pid(child.spec.name)})")

    def _begin_stop(self, event: str) -> None:
        self._stopping = True
        for child in self._children:
            child.restart_at = None
        self._say(event)

    def _stop_next(self) -> None:
        """Terminate the running children of the lowest rank, and kill those whose time is up."""
        running = [child for child in self._children if child.alive]
        lowest = min((child.spec.stop_rank for child in running), default=0)
        now = self._clock.monotonic()
        for child in running:
            process = child.process
            if process is None or child.spec.stop_rank != lowest:
                continue
            if child.kill_at is None:
                child.kill_at = now + child.spec.stop_seconds
                process.terminate()
            elif child.kill_at <= now:
                self._say(f"{child.spec.name} did not stop within {child.spec.stop_seconds:g} s: killing it")
                _kill_group(process.pid)
                child.kill_at = now + child.spec.stop_seconds

    def _kill_all(self) -> None:
        for child in self._children:
            if child.process is not None:
                _kill_group(child.process.pid)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:  # all of it has ended
        return
