"""A real Prometheus: from PATH, or Debian's package unpacked into the cache, which starts no service.

``python -m tests.support.servers.prometheus`` fetches it. ``promtool`` comes with it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import urllib3

from forebay.process.tether import tethered
from tests.support.run.ports import free_port
from tests.support.servers import debian

_PACKAGE, _SERVER, _TOOL = "prometheus", "usr/bin/prometheus", "usr/bin/promtool"
_START_SECONDS = 60.0
_TICK_SECONDS = 0.1

Found = TypeVar("Found")


def fetch() -> Path:
    """Raises UsageError that says what failed."""
    return debian.unpacked(_PACKAGE, _SERVER)


def is_there() -> bool:
    return debian.found(_PACKAGE, _SERVER) is not None and debian.found(_PACKAGE, _TOOL) is not None


def promtool(*arguments: str, text: str = "") -> str:
    """What promtool prints; an AssertionError with it if it finds a fault."""
    tool = debian.found(_PACKAGE, _TOOL)
    assert tool is not None, "fetch it first"
    run = subprocess.run([str(tool), *arguments], input=text, capture_output=True, text=True, timeout=_START_SECONDS)
    assert run.returncode == 0, f"promtool {' '.join(arguments)}:\n{run.stdout}\n{run.stderr}"
    return run.stdout + run.stderr


class Prometheus:
    """A running Prometheus at ``url``."""

    def __init__(self, url: str, process: subprocess.Popen[str], log: Path) -> None:
        self.url = url
        self._process = process
        self._log = log

    def get(self, path: str, **fields: str) -> Any:
        """The data of an answer of its API."""
        answer = urllib3.request("GET", f"{self.url}/api/v1/{path}", fields=fields, timeout=10.0, retries=False)
        assert answer.status == 200, answer.data
        return json.loads(answer.data)["data"]

    def query(self, expression: str) -> dict[str, float]:
        """The labels of each series, as JSON, with its value."""
        found = self.get("query", query=expression)["result"]
        return {json.dumps(one["metric"], sort_keys=True): float(one["value"][1]) for one in found}

    def firing(self) -> dict[str, dict[str, str]]:
        """The labels of each alert that fires, by its name."""
        alerts = self.get("alerts")["alerts"]
        return {one["labels"]["alertname"]: one["labels"] for one in alerts if one["state"] == "firing"}

    def until(self, condition: Callable[[], Found | None], what: str, seconds: float = _START_SECONDS) -> Found:
        """What ``condition`` returns once that is true."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert self._process.poll() is None and time.monotonic() < deadline, f"{what}\n{self._log.read_text()}"
            time.sleep(_TICK_SECONDS)
        return found

    def _answers(self) -> bool:
        try:
            return urllib3.request("GET", f"{self.url}/-/ready", timeout=2.0, retries=False).status == 200
        except urllib3.exceptions.HTTPError:
            return False


@contextmanager
def running(folder: Path, configuration: str) -> Iterator[Prometheus]:
    """A Prometheus with ``configuration``, whose files are in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), folder / "prometheus.log"
    (folder / "prometheus.yml").write_text(configuration)
    promtool("check", "config", str(folder / "prometheus.yml"))
    command = (
        str(fetch()),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    )
    with (
        log.open("w") as output,
        subprocess.Popen(tethered(command, signal.SIGTERM), stdout=output, stderr=output, text=True) as process,
    ):
        prometheus = Prometheus(f"http://127.0.0.1:{port}", process, log)
        try:
            prometheus.until(prometheus._answers, "Prometheus to start")
            yield prometheus
        finally:
            process.terminate()
            process.wait(_START_SECONDS)


if __name__ == "__main__":
    sys.exit(debian.main(lambda: print(fetch())))
