"""``forebay stop`` says that the driver has stopped only if it saw that."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from deploy.commands.running import stop
from deploy.main import main


class Stopping:
    """A driver that answers the request. ``asked``: the fields of each request."""

    url = "http://127.0.0.1:7080"

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def stop(self, **fields: Any) -> str:
        self.asked.append(fields)
        return "stopping"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Stopping:
    made = Stopping()

    @contextmanager
    def operator(settings: object) -> Iterator[Stopping]:
        yield made

    monkeypatch.setattr(stop, "operator", operator)
    monkeypatch.setattr(stop, "_END_SECONDS", 0.1)
    monkeypatch.setattr(stop, "_POLL_SECONDS", 0.01)
    return made


def run(project: Any, *arguments: str) -> int:
    return main(["--config", str(project.config), "stop", *arguments])


def connecting(monkeypatch: pytest.MonkeyPatch, *outcomes: OSError | None) -> None:
    """Give each connection the next of ``outcomes``; the last one again and again."""
    left = list(outcomes)

    def connect(address: object, timeout: float) -> socket.socket:
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if outcome is not None:
            raise outcome
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", connect)


@pytest.mark.parametrize("error", [errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.EMFILE, None])
def test_driver_that_cannot_be_reached_is_not_called_stopped(
    project: Any,
    driver: Stopping,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: int | None,
) -> None:
    found = (
        OSError(error, os.strerror(error)) if error is not None else socket.gaierror(-2, "Name or service not known")
    )
    connecting(monkeypatch, found)
    assert run(project, "--drain", "--timeout", "100ms") == 1
    said = capsys.readouterr().err
    assert "unknown whether the driver has stopped" in said and str(found.strerror) in said and driver.url in said


@pytest.mark.parametrize("error", [errno.ECONNREFUSED, errno.ECONNRESET])
def test_driver_has_stopped_when_its_host_refuses_the_connection(
    project: Any, driver: Stopping, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: int
) -> None:
    connecting(monkeypatch, None, TimeoutError("timed out"), OSError(error, os.strerror(error)))
    assert run(project, "--drain", "--timeout", "30s") == 0
    assert "the driver has stopped" in capsys.readouterr().err
    assert [(one["drain"], one["timeout_seconds"]) for one in driver.asked] == [(True, 30.0)]


def test_driver_that_still_listens_is_running(
    project: Any, driver: Stopping, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connecting(monkeypatch, TimeoutError("timed out"), None)
    assert run(project, "--drain", "--timeout", "100ms") == 1
    assert "the driver is still running after 0.2 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--drain", "--timeout", "0s"), "--timeout must be longer than 0s"),
        (("--timeout", "30s"), "add --drain, or remove --timeout"),
    ],
)
def test_time_without_a_drain_and_no_time_are_refused(
    project: Any, driver: Stopping, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], part: str
) -> None:
    assert run(project, *arguments) == 2
    assert part in capsys.readouterr().err
    assert driver.asked == []
