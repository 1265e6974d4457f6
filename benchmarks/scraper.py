"""A process that asks a driver each second for its metrics and its overview: ``python -m benchmarks.scraper URL``.

It prints a line before its first request. It ends with its stdin, and then prints how long each request for metrics took, in
seconds, and how many bytes the last one had.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from types import TracebackType

import msgspec

from forebay.http.client import Client

PERIOD_SECONDS = 1.0


class Scrapes(msgspec.Struct, frozen=True):
    """``seconds``: of each request for metrics."""

    seconds: tuple[float, ...]
    size_bytes: int


class Scraping:
    """Scrapes while it is open. ``found`` has the scrapes afterwards."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.found = Scrapes((), 0)

    def __enter__(self) -> Scraping:
        command = [sys.executable, "-m", "benchmarks.scraper", self._url]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # importing modules takes a processor longer than all requests
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        printed, _ = self._process.communicate()
        if kind is None:
            self.found = msgspec.json.decode(printed, type=Scrapes)


def main(url: str) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    client = Client(url)
    taken: list[float] = []
    size = 0
    print(flush=True)
    while not ended.wait(0.0 if not taken else PERIOD_SECONDS):
        begun = time.monotonic()
        size = len(client.request("GET", "/metrics"))
        taken.append(time.monotonic() - begun)
        client.request("GET", "/v1/overview")
    print(msgspec.json.encode(Scrapes(tuple(taken), size)).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
