"""``forebay up`` in the background: the command that starts it, and what the background process reports to that command."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deploy.supervision.readiness import ReadySocket
from forebay.model.errors import UsageError
from forebay.process.notify import send
from forebay.process.os_errors import failure
from forebay.process.secret_file import make_private_folder


class Announcer:
    """Reports events, and that all services are ready, to the process that listens: ``forebay up --detach``, or systemd.

    ``environment``: without the variable afterwards, so that no service reports in the name of this process.
    """

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")

    def event(self, sentence: str) -> None:
        self._send(f"STATUS={sentence}")

    def ready(self) -> None:
        self._send("READY=1")

    def _send(self, line: str) -> None:
        if not self._address:
            return
        try:
            send(self._address, [line])
        except OSError:  # the listener has what it waited for, and has ended
            self._address = ""


class Started(NamedTuple):
    """A background process. ``exit_code``: None if it runs and all its services are ready. ``printed``: what it printed."""

    pid: int
    exit_code: int | None
    printed: str


def start_detached(command: Sequence[str], log: Path, say: Callable[[str], None]) -> Started:
    """Start ``command``, a ``forebay up``, in the background. Return when all its services are ready, or when it has ended.

    ``log``: file for what the process itself prints. ``say``: called with each event until the return. After Ctrl-C the process
    is stopped. Raises UsageError, StoreError.
    """
    happened: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    try:
        make_private_folder(log.parent)
        before = len(log.read_text(errors="replace")) if log.exists() else 0
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise failure(f"--logs: {log} can't be written", error, kind=UsageError) from None
    try:
        with ReadySocket(lambda: happened.put(None), say) as listening:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **listening.environment},
                start_new_session=True,  # it outlives this terminal
            )
            try:
                threading.Thread(target=lambda: happened.put(process.wait()), name="wait up", daemon=True).start()
                return Started(process.pid, happened.get(), log.read_text(errors="replace")[before:])
            except KeyboardInterrupt:
                process.send_signal(signal.SIGTERM)
                process.wait()
                raise
    finally:
        os.close(output)
