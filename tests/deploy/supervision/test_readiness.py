"""When ``forebay up`` counts its first child as ready."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from deploy.supervision.readiness import ReadySocket
from forebay.process.notify import send


def say(ready: ReadySocket, *messages: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.settimeout(30)
        for message in messages:
            line.sendto(message, address(ready))


def address(ready: ReadySocket) -> str:
    name = ready.environment["NOTIFY_SOCKET"]
    assert name.startswith("@")
    return f"\0{name[1:]}"


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


def test_socket_ends_with_its_listener() -> None:
    with ReadySocket(lambda: None) as ready:
        send(ready.environment["NOTIFY_SOCKET"], ["READY=1"])
    with pytest.raises(ConnectionRefusedError):
        send(ready.environment["NOTIFY_SOCKET"], ["READY=1"])


@pytest.mark.parametrize("folder", ["long", "missing", "full"])
def test_socket_needs_no_folder_for_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    where = {"long": tmp_path / ("a" * 120), "missing": tmp_path / "none", "full": Path("/dev/full")}[folder]
    if folder == "long":
        where.mkdir()
    monkeypatch.setenv("TMPDIR", str(where))
    monkeypatch.setattr("tempfile.tempdir", None if folder == "long" else str(where))
    first = threading.Event()
    with ReadySocket(first.set) as ready:
        send(ready.environment["NOTIFY_SOCKET"], ["READY=1"])
        assert first.wait(30)


def test_messages_of_another_user_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    with ReadySocket(lambda: calls.append("ready"), calls.append) as ready:
        monkeypatch.setattr("os.getuid", lambda: 12345)  # so each sender is another user
        say(ready, b"READY=1", b"STATUS=wrong", b"")
        while queued(ready):
            pass
        monkeypatch.undo()
        say(ready, b"STATUS=right")
    assert calls == ["right"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can send as another user")
def test_the_kernel_states_the_sender() -> None:
    calls: list[str] = []
    code = "import os, sys; os.setuid(65534); from forebay.process.notify import send; send(sys.argv[1], ['READY=1'])"
    with ReadySocket(lambda: calls.append("ready")) as ready:
        command = [sys.executable, "-c", code, ready.environment["NOTIFY_SOCKET"]]
        subprocess.run(command, check=True, cwd=Path(__file__).parents[3])
    assert calls == []


def test_descriptor_that_a_process_sends_is_not_taken() -> None:
    first = threading.Event()
    with ReadySocket(first.set) as ready, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        before = len(os.listdir("/proc/self/fd"))
        line.connect(address(ready))
        for _ in range(5):
            socket.send_fds(line, [b"STATUS=a"], [0])
        line.send(b"READY=1")
        assert first.wait(30)
        assert len(os.listdir("/proc/self/fd")) == before


def queued(ready: ReadySocket) -> bool:
    """Whether the socket has messages that its thread has not taken."""
    return bool(select.select([ready._socket], [], [], 0)[0])
