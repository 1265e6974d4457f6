"""One real receiver process with a driver's decision loop, journal and HTTP in this process, without jobs."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from benchmarks.reporting import STREAM  # its process imports as little as possible
from benchmarks.setup import PARTITIONS
from driver.decision_loop.loop import DriverLoop
from driver.http.api import tracker_application
from driver.journal import events as ev
from driver.journal.log import opening as journal
from driver.tracker import Tracker
from driver.tracker.requests import FoundPartitions
from forebay.http.server import Server
from forebay.process.clock import SystemClock
from forebay.security.access import OPEN, Guard
from forebay.settings.reading.load import load
from tests.support.state.reads import ReadBy
from tests.support.state.tracked import tracker_options
from wal.storage import Storage, open_storage

PATIENCE_SECONDS = 600.0


class Tracking:
    """A driver without discovery, batches and clean-up: it accepts blocks durably, over HTTP."""

    def __init__(
        self,
        directory: Path,
        durable: Callable[[Sequence[ev.Event]], None] = lambda events: None,
        storage: Storage | None = None,
        guard: Guard = OPEN,
    ) -> None:
        """``storage``: store of the journal [default: a folder below ``directory``]. ``guard``: its tokens and certificates."""
        self._guard = guard
        self._storage = storage or open_storage(f"file://{directory}/journal")
        self._durable = durable
        self._open = ExitStack()
        self.url = ""

    def begin(self, topic: str, partitions: int = PARTITIONS) -> None:
        """Begin the partitions of ``topic`` at offset 0."""
        starts = tuple(ev.IncarnationStart(topic, number, 0) for number in range(partitions))
        self._loop.ask(FoundPartitions(starts, 0, "earliest"))

    def __enter__(self) -> Tracking:
        clock = SystemClock()
        opened, state = journal.lead(
            self._storage,
            STREAM,
            "bench",
            clock.wall_ms(),
            lambda: clock.wall_ms() / 1000,
            lambda: secrets.randbits(64),
        )
        self._open.callback(opened.close)
        tracker = Tracker(state, opened.epoch, tracker_options())
        self._loop = DriverLoop(
            tracker, opened, clock, perform=lambda action: None, failed=self._failed, durable=self._durable
        )
        self._loop.start()
        self._open.callback(self._loop.stop)
        app = tracker_application(
            cast(Any, self._loop.submit),
            status=lambda: self._loop.submit(ReadBy(lambda state: None)),
            ready=lambda: None,
            release="bench",
            guard=self._guard,
        )
        scheme = "https" if self._guard.https else "http"
        self.url = self._open.enter_context(Server(app, f"{scheme}://127.0.0.1:0", guard=self._guard)).url
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @staticmethod
    def _failed(error: BaseException) -> None:
        print(f"the driver's loop ended: {error!r}", file=sys.stderr)


class Receiving:
    """A ``forebay receiver`` process that takes in ``topic``.

    ``claimed`` and ``taken_in`` are called in the decision loop when claims (once) and ``records`` accepted records are durable.
    """

    def __init__(
        self, directory: Path, options: dict[str, str], topic: str, records: int,
        claimed: Callable[[int], None] = lambda pid: None, taken_in: Callable[[int], None] = lambda pid: None,
        wal_url: str | None = None, more_settings: str = "",
    ) -> None:  # fmt: skip
        """``wal_url``: URL of the WAL [default: a folder below ``directory``]."""
        self._directory = directory
        self._options = options
        self._topic = topic
        self._left = records
        self._claimed, self._taken_in = claimed, taken_in
        self._wal_url, self._more_settings = wal_url, more_settings
        self._claims = 0
        self._done = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, watch: Callable[[int], None] = lambda pid: None, watch_seconds: float = 0.2) -> None:
        """Run until all records are accepted and the receiver has drained.

        ``watch`` is called periodically with its process id.
        """
        with Tracking(self._directory, self._hear) as tracking:
            tracking.begin(self._topic)
            config = self._directory / "forebay.toml"
            config.write_text(
                settings_text(
                    self._directory, self._options, self._topic, tracking.url, self._more_settings, self._wal_url
                )
            )
            begin_wal(config)
            with (self._directory / "receiver.log").open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "deploy.main", "--config", str(config), "receiver", "--id", "r1"],
                    stdout=log, stderr=subprocess.STDOUT,
                )  # fmt: skip
                try:
                    self._await(watch, watch_seconds)
                finally:
                    self._process.terminate()
                    self._process.wait(60)

    def _await(self, watch: Callable[[int], None], watch_seconds: float) -> None:
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._done.wait(watch_seconds):
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = (self._directory / "receiver.log").read_text(errors="replace")
                raise RuntimeError(f"the receiver did not take all in ({self._left} left): {log[-3000:]}")
            watch(self._process.pid)

    def _hear(self, events: Sequence[ev.Event]) -> None:
        for event in events:
            if isinstance(event, ev.ClaimGiven):
                self._claims += 1
                if self._claims == PARTITIONS and self._process is not None:
                    self._claimed(self._process.pid)
            elif isinstance(event, ev.BlockAdded):
                self._left -= event.block.meta.records
                if self._left <= 0 and not self._done.is_set() and self._process is not None:
                    self._taken_in(self._process.pid)
                    self._done.set()


def begin_wal(config: Path) -> None:
    """Mark the WAL as that of the journal, as a driver does before it leads. :class:`Tracking` has led the journal."""
    settings = load(config)
    journal.begin_wal(open_storage(settings.driver.journal), open_storage(settings.wal.url, settings.storage), STREAM)


def settings_text(
    directory: Path, options: dict[str, str], topic: str, driver_url: str, more: str = "",
    wal_url: str | None = None,
) -> str:  # fmt: skip
    """Return a configuration with all folders below ``directory``, otherwise with default settings."""
    servers = options["bootstrap.servers"]
    return f"""\
stream = "{STREAM}"
[kafka]
topics = ["{topic}"]
"bootstrap.servers" = "{servers}"
[wal]
url = "{wal_url or f"file://{directory}/wal"}"
[driver]
url = "{driver_url}"
journal = "file://{directory}/journal"
[agent]
blocks = "{directory}/blocks"
host = "bench"
[receiver]
host = "bench"
{more}"""
