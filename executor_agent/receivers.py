"""The receivers of an agent's host: processes that live and die by the driver's word, and with the agent.

An agent starts nothing but ``forebay receiver`` with its own configuration, under an id of its own stream. Whether one that
ended is started again, and where, the driver decides.
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
from forebay.model.values import managed_ordinal
from forebay.process.clock import Clock
from forebay.process.tether import tethered

log = logging.getLogger(__name__)

START, STOP, KILL = "start-receiver", "stop-receiver", "kill-receiver"
#: commands about receivers
KINDS = frozenset({START, STOP, KILL})
#: receivers that ended and are still told of
ENDED_MAX = 100
#: characters of a receiver's last line that the driver is told
LAST_WORDS_MAX = 300


@dataclass(slots=True)
class _Child:
    """``run``: driver epoch and version of its start. ``process``: None if it could not be started."""

    run: tuple[int, int]
    process: subprocess.Popen[bytes] | None = None
    told_at: float | None = None  # when it was told to end
    last_words: str = ""

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Receivers:
    """``command``: what starts one, when its id is added; () where this agent runs none. ``stop_seconds``: what a drain may
    take before the process is killed. Thread-safe.

    The kernel kills a receiver when the thread ends that started it: :meth:`obey` is for a thread that outlives them.
    """

    def __init__(
        self,
        stream: str,
        command: Sequence[str],
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
        """How many the host may run now: none when the agent is about to end."""
        return 0 if self._ending else self._capacity

    def processes(self) -> tuple[ReceiverProcess, ...]:
        """Those that run, and how the last start of each other one ended. Kills those whose time to drain is up."""
        with self._lock:
            self._kill_overdue()
            return tuple(_said(receiver_id, child) for receiver_id, child in self._children.items())

    def obey(self, command: Command) -> None:
        """Does one of ``KINDS``; what was done, or came too late, again changes nothing. Raises ForebayError for an id that is
        none of this stream's managed receivers'."""
        receiver_id = command.receiver_id
        if managed_ordinal(self._stream, receiver_id) is None:
            raise ForebayError(
                f"command {command.version} is refused: {receiver_id!r} is no managed receiver of stream {self._stream}"
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
                log.warning("receiver %s is killed: the driver orders it", receiver_id)
                _kill(child)
            elif child.told_at is None:
                log.info("receiver %s drains: the driver orders it", receiver_id)
                self._tell_to_end(child)

    def stop(self) -> None:
        """Starts none any more, drains all, and returns when the last one has ended or was killed."""
        with self._lock:
            self._ending = True
            running = [child for child in self._children.values() if child.alive]
            for child in running:
                if child.told_at is None:
                    self._tell_to_end(child)
        for child in running:
            assert child.process is not None and child.told_at is not None
            try:
                child.process.wait(max(0.0, child.told_at + self._stop_seconds - self._clock.monotonic()))
            except subprocess.TimeoutExpired:
                _kill(child)
                child.process.wait()

    # ---- under the lock ----------------------------------------------------------------------------------------------

    def _start(self, receiver_id: str, run: tuple[int, int]) -> None:
        running = sum(child.alive for child in self._children.values())
        if running >= self.capacity:
            log.warning("receiver %s is not started: %d run, %d may", receiver_id, running, self.capacity)
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
            child.last_words = f"could not be started: {error}"
            log.error("receiver %s %s", receiver_id, child.last_words)
        else:
            log.info("receiver %s started (process %d)", receiver_id, child.process.pid)
            assert child.process.stdout is not None
            threading.Thread(
                target=_follow, args=(receiver_id, child, child.process.stdout), name=f"log {receiver_id}", daemon=True
            ).start()
        self._children.pop(receiver_id, None)
        self._children[receiver_id] = child
        ended = [name for name, known in self._children.items() if not known.alive]
        for name in ended[: max(0, len(ended) - ENDED_MAX)]:
            del self._children[name]

    def _tell_to_end(self, child: _Child) -> None:
        assert child.process is not None
        child.told_at = self._clock.monotonic()
        child.process.terminate()

    def _kill_overdue(self) -> None:
        now = self._clock.monotonic()
        for receiver_id, child in self._children.items():
            if child.told_at is not None and child.alive and now >= child.told_at + self._stop_seconds:
                log.warning("receiver %s did not end within %g s: killed", receiver_id, self._stop_seconds)
                _kill(child)


def _said(receiver_id: str, child: _Child) -> ReceiverProcess:
    running = child.alive
    process = child.process
    return ReceiverProcess(
        receiver_id=receiver_id,
        driver_epoch=child.run[0],
        version=child.run[1],
        running=running,
        pid=process.pid if process is not None and running else 0,
        exit_code=None if process is None or running else process.returncode,
        last_words="" if running else child.last_words,
    )


def _kill(child: _Child) -> None:
    assert child.process is not None
    child.process.send_signal(signal.SIGKILL)


def _follow(receiver_id: str, child: _Child, pipe: IO[bytes]) -> None:
    """Passes the receiver's lines on, its name before each, until it has ended; keeps the last one."""
    with pipe:
        for line in iter(lambda: pipe.readline(64_000), b""):
            words = line.decode("utf-8", "replace").rstrip()
            sys.stderr.write(f"{receiver_id} | {words}\n")
            sys.stderr.flush()
            child.last_words = words[-LAST_WORDS_MAX:] or child.last_words
