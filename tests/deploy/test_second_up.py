"""A second ``forebay up`` by mistake, beside what runs already: nothing of the first is disturbed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from deploy.run_lock import lock_path
from forebay.client import Client
from forebay.errors import ForebayError
from forebay.kafka.broker import MockBroker
from forebay.messages import StatusAnswer
from tests.support.kafka import PATIENCE_SECONDS
from tests.support.ports import free_port

Found = TypeVar("Found")

_COMMAND = str(Path(sys.executable).with_name("forebay"))


@contextmanager
def running(project: Any, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    log = (project.folder / f"{arguments[0]}.log").open("ab")
    with (
        log,
        subprocess.Popen(
            [_COMMAND, *arguments], cwd=project.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            process.wait(90)


@pytest.fixture
def url(project: Any) -> Iterator[str]:
    """Where the project's driver listens, with ports and a broker of its own."""
    url = f"http://127.0.0.1:{free_port()}"
    with MockBroker() as broker:
        broker.create_topic("t")
        project.replace('127.0.0.1:1"\n[wal]', f'{broker.address}"\n[wal]')
        project.replace("[driver]", '[driver]\nlease_duration = "3s"')
        project.replace('"http://127.0.0.1:1"', f'"{url}"')
        project.replace('"http://127.0.0.1:2"', f'"http://127.0.0.1:{free_port()}"')
        yield url


def until(found: Callable[[], Found | None]) -> Found:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (answer := found()) is None:
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
    return answer


def status(url: str) -> StatusAnswer | None:
    client = Client(url, 3.0)
    try:
        return client.get("/v1/status", StatusAnswer)
    except ForebayError:
        return None
    finally:
        client.close()


def test_second_up_ends_and_the_first_goes_on(project: Any, url: str) -> None:
    with running(project, "up") as up:

        def at_work() -> StatusAnswer | None:
            """A receiver is registered, and heard."""
            answer = status(url)
            return answer if answer and [r.state in ("active", "waiting") for r in answer.receivers] == [True] else None

        before = until(at_work)
        second = project.forebay("up")
        assert second.returncode == 5, second.stderr
        assert f"process {up.pid} holds {lock_path(project.folder / 'blocks', 'flights')}" in second.stderr
        assert "Traceback" not in second.stderr and second.stderr.count("\n") == 1
        after = until(at_work)
        assert (after.driver_epoch, after.receivers[0].epoch) == (before.driver_epoch, before.receivers[0].epoch)
        up.kill()
    with running(project, "up"):  # what the kill left behind is no obstacle
        assert until(lambda: status(url)).driver_epoch > before.driver_epoch


def test_up_beside_a_driver_that_leads_starts_nothing(project: Any, url: str) -> None:
    """As beside systemd's units: the lock is free, but the lease is held."""
    with running(project, "driver") as driver:
        until(lambda: status(url))
        second = project.forebay("up")
        assert second.returncode == 5, second.stderr
        assert f"pid {driver.pid}" in second.stderr and "leads stream 'flights' already" in second.stderr
        assert "up | driver found another at work (exit code 5) and stays down" in second.stderr
        assert "agent |" not in second.stderr and "receiver-1 |" not in second.stderr
        answer = until(lambda: status(url))
        assert answer.receivers == () and answer.agents == ()
