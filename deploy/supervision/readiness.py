"""The readiness of a child process, which it reports as it would to systemd (``sd_notify(3)``, :mod:`forebay.process.notify`)."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_DATAGRAM_BYTES = 4096


class ReadySocket:
    """The notification socket of one child. Its ``environment`` must be set for the child.

    ``ready``: called once, from the socket's own thread, when the child is ready. ``status``: called with each status line of the
    child, in the same thread.
    """

    def __init__(self, ready: Callable[[], None], status: Callable[[str], None] = lambda _: None) -> None:
        self._ready = ready
        self._status = status
        self._folder = tempfile.TemporaryDirectory(prefix="forebay-up-")  # only this user can write to the socket
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
        """Receive all messages of the child, so that it never finds a full queue."""
        called = False
        while message := self._socket.recv(_DATAGRAM_BYTES):
            lines = message.split(b"\n")
            for line in lines:
                if line.startswith(b"STATUS="):
                    self._status(line.removeprefix(b"STATUS=").decode("utf-8", "replace"))
            if not called and b"READY=1" in lines:
                called = True
                self._ready()
