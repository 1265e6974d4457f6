"""The managed receivers of an agent's host: processes that the driver starts and stops through the agent.

An agent starts only ``forebay receiver``, with its own configuration and an id of its own stream. The driver decides whether
and where a receiver that ended is started again. Receivers end with their agent.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from forebay.messages import Command, ReceiverProcess
from forebay.model.errors import ForebayError
from forebay.model.identifiers import managed_ordinal
from forebay.process.clock import Clock
from forebay.process.logs import is_json, relay
from forebay.process.tether import tethered

log = logging.getLogger(__name__)

START, STOP, KILL = "start-receiver", "stop-receiver", "kill-receiver"
#: kinds of commands about receivers
KINDS = frozenset({START, STOP, KILL})
#: maximum number of ended receivers that heartbeats still report
ENDED_MAX = 100
#: maximum characters of a receiver's last line in a heartbeat
LAST_LINE_CHARACTERS_MAX = 300


@dataclass(slots=True)
class _Child:
    """A receiver process. ``run``: driver epoch and version of the command that started it. ``process``: None if the start
    failed."""

    run: tuple[int, int]
    process: subprocess.Popen[bytes] | None = None
    stopped_at: float | None = None  # when it was asked to drain and exit
    last_line: str = ""

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Receivers:
    """Starts and stops receivers. Thread-safe.

    ``command``: starts a receiver when its id is added; () if this agent runs none. ``stop_seconds``: how long a drain may
    take before the process is killed. The kernel kills a receiver when the thread that started it ends, so the thread that
    calls :meth:`obey` must outlive the receivers.
    """

    def __init__(
        self,
        stream: str,
        command: Sequence[str],
        *,
        capacity: int,
        stop_seconds: float,
        clock: Clock,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._stream = stream
        self._command = tuple(command)
        self._capacity = capacity if command else 0
        self._stop_seconds = stop_seconds
        self._clock = clock
        self._environment = dict(os.environ if environment is None else environment)
        self._lock = threading.Lock()
        self._children: dict[str, _Child] = {}
        self._ending = False

    @property
    def capacity(self) -> int:
        """The number of receivers that the host may run; 0 while the agent is ending."""
        return 0 if self._ending else self._capacity

    def processes(self) -> tuple[ReceiverProcess, ...]:
        """Return the receivers that run, and how the others ended. Kills receivers whose time to drain is over."""
        with self._lock:
            self._kill_overdue()
            return tuple(_state_of(receiver_id, child) for receiver_id, child in self._children.items())

    def obey(self, command: Command) -> None:
        """Perform a command of one of ``KINDS``. A command that was performed before, or that is outdated, changes nothing.

        Raises ForebayError for an id that is not one of this stream's managed receivers.
        """
        receiver_id = command.receiver_id
        if managed_ordinal(self._stream, receiver_id) is None:
            raise ForebayError(
                f"command {command.version} is refused: {receiver_id!r} is not a managed receiver of stream {self._stream}"
            )
        run = (command.driver_epoch, command.version)
        with self._lock:
            child = self._children.get(receiver_id)
            if command.kind == START:
                if child is None or (not child.alive and child.run < run):
                    self._start(receiver_id, run)
            elif child is None or not child.alive or child.run > run:
                return
            elif command.kind == KILL:
                log.warning("killing receiver %s on command of the driver", receiver_id)
                _kill(child)
            elif child.stopped_at is None:
                log.info("draining receiver %s on command of the driver", receiver_id)
                self._request_stop(child)

    def stop(self) -> None:
        """Start no more receivers, drain all, and return when each has ended or was killed."""
        with self._lock:
            self._ending = True
            running = [child for child in self._children.values() if child.alive]
            for child in running:
                if child.stopped_at is None:
                    self._request_stop(child)
        for child in running:
            assert child.process is not None and child.stopped_at is not None
            try:
                child.process.wait(max(0.0, child.stopped_at + self._stop_seconds - self._clock.monotonic()))
            except subprocess.TimeoutExpired:
                _kill(child)
                child.process.wait()

    # ---- under the lock ----------------------------------------------------------------------------------------------

    def _start(self, receiver_id: str, run: tuple[int, int]) -> None:
        running = sum(child.alive for child in self._children.values())
        if running >= self.capacity:
            log.warning("receiver %s not started: %d running, capacity %d", receiver_id, running, self.capacity)
            return
        child = _Child(run)
        try:
            child.process = subprocess.Popen(
                tethered((*self._command, receiver_id)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # a Ctrl-C at the terminal reaches the agent alone, which drains them
            )
        except OSError as error:
            child.last_line = f"could not be started: {error}"
            log.error("receiver %s %s", receiver_id, child.last_line)
        else:
            log.info("receiver %s started: pid %d", receiver_id, child.process.pid)
            assert child.process.stdout is not None
            threading.Thread(
                target=_follow, args=(receiver_id, child, child.process.stdout), name=f"log {receiver_id}", daemon=True
            ).start()
        self._children.pop(receiver_id, None)
        self._children[receiver_id] = child
        ended = [name for name, known in self._children.items() if not known.alive]
        for name in ended[: max(0, len(ended) - ENDED_MAX)]:
            del self._children[name]

    def _request_stop(self, child: _Child) -> None:
        assert child.process is not None
        child.stopped_at = self._clock.monotonic()
        child.process.terminate()

    def _kill_overdue(self) -> None:
        now = self._clock.monotonic()
        for receiver_id, child in self._children.items():
            if child.stopped_at is not None and child.alive and now >= child.stopped_at + self._stop_seconds:
                log.warning("killing receiver %s: it did not end within %g s", receiver_id, self._stop_seconds)
                _kill(child)


def _state_of(receiver_id: str, child: _Child) -> ReceiverProcess:
    running = child.alive
    process = child.process
    return ReceiverProcess(
        receiver_id=receiver_id,
        driver_epoch=child.run[0],
        version=child.run[1],
        running=running,
        pid=process.pid if process is not None and running else 0,
        exit_code=None if process is None or running else process.returncode,
        last_line="" if running else child.last_line,
    )


def _kill(child: _Child) -> None:
    assert child.process is not None
    child.process.send_signal(signal.SIGKILL)


def _follow(receiver_id: str, child: _Child, pipe: IO[bytes]) -> None:
    """Copy the receiver's lines to stderr, each after its id, until it ends; keep the last line."""

    def seen(text: str) -> None:
        child.last_line = text[-LAST_LINE_CHARACTERS_MAX:] or child.last_line

    relay(pipe, sys.stderr, receiver_id, as_json=is_json(), seen=seen)
