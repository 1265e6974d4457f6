"""A real pushgateway of Prometheus: from PATH, or Debian's package unpacked into the cache, which starts no service.

``python -m tests.support.servers.pushgateway`` fetches it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import urllib3
from prometheus_client.parser import text_string_to_metric_families

from forebay.process.tether import tethered
from tests.support.processes.up import until
from tests.support.run.ports import free_port
from tests.support.servers import debian

_PACKAGE, _SERVER = "prometheus-pushgateway", "usr/bin/prometheus-pushgateway"


def fetch() -> Path:
    """Raises UsageError that says what failed."""
    return debian.unpacked(_PACKAGE, _SERVER)


def is_there() -> bool:
    return debian.found(_PACKAGE, _SERVER) is not None


def pushed(url: str) -> dict[str, dict[str, float]]:
    """The value of each sample that the gateway has: its name → the label ``stream`` → value."""
    answer = urllib3.request("GET", f"{url}/metrics", timeout=10.0, retries=False)
    assert answer.status == 200, answer.data
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(answer.data.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[sample.labels.get("stream", "")] = sample.value
    return found


@contextmanager
def running() -> Iterator[str]:
    """The url of a pushgateway that runs."""
    url = f"127.0.0.1:{free_port()}"
    command = (str(fetch()), f"--web.listen-address={url}")
    with subprocess.Popen(tethered(command, signal.SIGTERM), stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: _answers(f"http://{url}") or None)
            yield f"http://{url}"
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        return urllib3.request("GET", f"{url}/-/ready", timeout=2.0, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False


if __name__ == "__main__":
    sys.exit(debian.main(lambda: print(fetch())))
