"""Learns when a child process is ready: it says so as it would to systemd (``sd_notify(3)``, :mod:`forebay.process.notify`)."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_DATAGRAM_BYTES = 4096


class ReadySocket:
    """A socket for one child, whose ``environment`` names it. ``ready`` is called once, from a thread of its own."""

    def __init__(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        self._folder = tempfile.TemporaryDirectory(prefix="forebay-up-")  # for this user alone: nobody else may say it
        path = str(Path(self._folder.name) / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.bind(path)
        self.environment = {"NOTIFY_SOCKET": path}
        self._thread = threading.Thread(target=self._listen, name="readiness", daemon=True)

    def __enter__(self) -> ReadySocket:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.shutdown(socket.SHUT_RD)  # wakes the thread
        self._thread.join()
        self._socket.close()
        self._folder.cleanup()

    def _listen(self) -> None:
        """Takes all that the child says, so that its messages never find a full queue."""
        told = False
        while said := self._socket.recv(_DATAGRAM_BYTES):
            if not told and b"READY=1" in said.split(b"\n"):
                told = True
                self._ready()
