"""When ``forebay up`` counts its first child as ready."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from deploy.supervision.readiness import ReadySocket


def say(ready: ReadySocket, *messages: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.settimeout(30)
        for message in messages:
            line.sendto(message, ready.environment["NOTIFY_SOCKET"])


@pytest.mark.parametrize(
    "message", [b"STATUS=leading", b"READY=0", b"READY=10", b"X-READY=1", b"STATUS=READY=1", b"\n"]
)
def test_other_messages_do_not_make_it_ready(message: bytes) -> None:
    calls: list[str] = []
    with ReadySocket(lambda: calls.append("ready")) as ready:
        say(ready, message)
    assert calls == [], "leaving waits for what was sent"


def test_ready_is_called_once_and_later_messages_fill_no_queue() -> None:
    calls: list[str] = []
    first = threading.Event()

    def note() -> None:
        calls.append("ready")
        first.set()

    with ReadySocket(note) as ready:
        say(ready, b"STATUS=running\nREADY=1")
        assert first.wait(30)
        say(ready, *[b"READY=1\nWATCHDOG=1"] * 1000)
    assert calls == ["ready"]


def test_socket_is_private_and_removed_afterwards() -> None:
    with ReadySocket(lambda: None) as ready:
        folder = Path(ready.environment["NOTIFY_SOCKET"]).parent
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
