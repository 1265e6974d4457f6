"""Durable block reports over HTTP: 64 receivers at the same time, against one receiver at a time.

The driver has a real tracker behind its HTTP routes, the decision loop, and a journal on disk with fdatasync and epoch check
before each group of answers. The 64 receivers, each with one partition and one connection, run in another process and send
reports of one block. Ours: all 64 wait for an answer at any time. Peer: one report at a time, the receivers in turn.

The gain of the group commit depends on the cost of a sync, which is low on a virtual machine whose host has a cache. A second
line, without a threshold, is the same on a disk that takes 2 ms more for each sync.

The other lines show the cost of access control: the same 64 receivers with a token in each request, and also over https, against
a driver without tokens.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.measured import Measured, Threshold, alternate, ratio
from benchmarks.receiving import Tracking
from benchmarks.setup import Setup
from forebay.process.garbage import freeze_present
from forebay.security.access import Guard
from forebay.security.roles import ROLES
from tests.support.servers.certificates import Authority
from tests.support.state.guarded import settings
from wal.storage.local import LocalStorage

RECEIVERS = 64
AT_ONCE_REPORTS = 12_800
IN_TURN_REPORTS = 2_560
SLOWER_SECONDS = 0.002
_TOPIC = "records"


def measure(setup: Setup) -> Iterator[Measured]:
    what = "64 at the same time / one at a time"
    yield ratio("reports", what, _pairs(setup, None, 1.0), "reports/s", Threshold(5.0, at_least=True))
    slower = _pairs(setup, SLOWER_SECONDS, 0.5)
    yield ratio("reports", f"the same, each sync {SLOWER_SECONDS * 1000:g} ms slower", slower, "reports/s")
    yield ratio("reports", "64 at the same time, with a token / without", _guarded(setup, https=False), "reports/s")
    yield ratio(
        "reports", "64 at the same time, with a token by https / without", _guarded(setup, https=True), "reports/s"
    )


def _pairs(setup: Setup, slower_seconds: float | None, share: float) -> list[tuple[float, float]]:
    with setup.folder() as folder:
        storage = None if slower_seconds is None else _SlowDisk(folder, slower_seconds)
        with Tracking(folder, storage=storage) as tracking:
            tracking.begin(_TOPIC, RECEIVERS)
            freeze_present()  # as the service does

            def rate(at_once: int, reports: int) -> float:
                return _rate(setup, tracking.url, at_once, reports * share)

            rate(RECEIVERS, IN_TURN_REPORTS)
            return alternate(setup.runs, lambda: rate(RECEIVERS, AT_ONCE_REPORTS), lambda: rate(1, IN_TURN_REPORTS))


def _rate(setup: Setup, url: str, at_once: int, reports: float, environment: Mapping[str, str] = {}) -> float:
    count = max(RECEIVERS, int(reports * setup.scale))
    command = [sys.executable, "-m", "benchmarks.reporting", url, _TOPIC, str(RECEIVERS), str(at_once), str(count)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, timeout=600, env={**os.environ, **environment}
    )  # fmt: skip
    return float(done.stdout)


def _guarded(setup: Setup, https: bool) -> list[tuple[float, float]]:
    token = secrets.token_urlsafe(32)
    with setup.folder() as folder, ExitStack() as opened:
        tokens = folder / "tokens"
        tokens.touch(mode=0o600)
        tokens.write_text(
            "".join(f"{role} {token if role == 'receiver' else secrets.token_urlsafe(32)}\n" for role in ROLES)
        )
        authority = Authority(folder)
        files = authority.issue("host") if https else {}
        guard = Guard(settings(folder, token_file=str(tokens), **files))
        ours = opened.enter_context(Tracking(folder / "guarded", guard=guard))
        peer = opened.enter_context(Tracking(folder / "open"))
        for tracking in (ours, peer):
            tracking.begin(_TOPIC, RECEIVERS)
        freeze_present()
        environment = {"REPORTING_TOKEN": token, "REPORTING_CA": str(authority.ca_file)}

        def guarded() -> float:
            return _rate(setup, ours.url, RECEIVERS, AT_ONCE_REPORTS, environment)

        def open_to_all() -> float:
            return _rate(setup, peer.url, RECEIVERS, AT_ONCE_REPORTS)

        guarded()
        return alternate(setup.runs, guarded, open_to_all)


class _SlowDisk(LocalStorage):
    """A folder on a disk that takes ``seconds`` more for each sync of a file."""

    def __init__(self, directory: Path, seconds: float) -> None:
        super().__init__(str(directory / "journal"))
        self._seconds = seconds

    def create(self, path: str) -> Any:
        return _SlowFile(super().create(path), self._seconds)


class _SlowFile:
    def __init__(self, file: Any, seconds: float) -> None:
        self.append, self.close = file.append, file.close
        self._file = file
        self._seconds = seconds

    def sync(self) -> None:
        time.sleep(self._seconds)
        self._file.sync()
