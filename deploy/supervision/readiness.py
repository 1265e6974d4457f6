"""The readiness of a child process, which it reports as it would to systemd (``sd_notify(3)``, :mod:`forebay.process.notify`)."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType

_DATAGRAM_BYTES = 4096
#: pid, uid and gid of a message's sender, as the kernel states them (``SCM_CREDENTIALS`` of unix(7))
_CREDENTIALS = struct.Struct("iII")


class ReadySocket:
    """The notification socket of one child. Its ``environment`` must be set for the child.

    ``ready``: called once, from the socket's own thread, when the child is ready. ``status``: called with each status line of the
    child, in the same thread. The socket's name is in no file system, so no folder limits its length or must be writable. Every
    process of this machine can send to it; messages of other users are ignored.
    """

    def __init__(self, ready: Callable[[], None], status: Callable[[str], None] = lambda _: None) -> None:
        self._ready = ready
        self._status = status
        name = f"forebay-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(f"\0{name}")
        self.environment = {"NOTIFY_SOCKET": f"@{name}"}  # as systemd writes the name of an abstract socket
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

    def _listen(self) -> None:
        """Receive all messages of the child, so that it never finds a full queue."""
        called = False
        # room for the credentials alone: a descriptor that another process sends is not taken
        room = socket.CMSG_LEN(_CREDENTIALS.size)
        while True:
            message, credentials, _, _ = self._socket.recvmsg(_DATAGRAM_BYTES, room)
            if not credentials:  # every message has them, even an empty one
                return
            if not _is_own(credentials):
                continue
            lines = message.split(b"\n")
            for line in lines:
                if line.startswith(b"STATUS="):
                    self._status(line.removeprefix(b"STATUS=").decode("utf-8", "replace"))
            if not called and b"READY=1" in lines:
                called = True
                self._ready()


def _is_own(credentials: list[tuple[int, int, bytes]]) -> bool:
    """Return whether a process of this user sent a message with these ``credentials``."""
    level, kind, data = credentials[0]
    if (level, kind, len(data)) != (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, _CREDENTIALS.size):
        return False
    return bool(_CREDENTIALS.unpack(data)[1] == os.getuid())
