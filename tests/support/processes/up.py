"""``forebay up`` and similar commands as real processes beside a test, in the folder of a project of ``tests/deploy``."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from forebay.http.client import Client
from forebay.messages import StatusAnswer
from forebay.model.errors import ForebayError
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.processes.services import pause_after

Found = TypeVar("Found")

_COMMAND = str(Path(sys.executable).with_name("forebay"))


def log_of(project: Any, command: str) -> str:
    """All that ``running`` has written so far."""
    return str((project.folder / f"{command}.log").read_text())


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


def until(found: Callable[[], Found | None], seconds: float = PATIENCE_SECONDS) -> Found:
    start = time.monotonic()
    while (answer := found()) is None:
        waited = time.monotonic() - start
        assert waited < seconds, "waited too long"
        time.sleep(pause_after(waited))
    return answer


def status(url: str) -> StatusAnswer | None:
    client = Client(url, 3.0)
    try:
        return client.get("/v1/status", StatusAnswer)
    except ForebayError:
        return None
    finally:
        client.close()
