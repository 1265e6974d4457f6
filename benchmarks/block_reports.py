"""Durable block reports over HTTP: 64 receivers at once against the same one at a time.

A real tracker behind its HTTP routes, the deciding thread, a journal on disk with its fdatasync and epoch check before each
group of answers. 64 receivers, each with a partition and a connection of its own, in another process, send reports of one
block. Ours: all 64 wait for an answer at any time. Peer: one report at a time, the receivers in turn.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.measured import Measured, Threshold, alternate, ratio
from benchmarks.receiving import Tracking
from benchmarks.setup import Setup

RECEIVERS = 64
AT_ONCE_REPORTS = 12_800
IN_TURN_REPORTS = 2_560
_TOPIC = "records"


def measure(setup: Setup) -> Iterator[Measured]:
    with setup.folder() as folder, Tracking(folder) as tracking:
        tracking.begin(_TOPIC, RECEIVERS)

        def rate(at_once: int, reports: int) -> float:
            arguments = [
                tracking.url,
                _TOPIC,
                str(RECEIVERS),
                str(at_once),
                str(max(RECEIVERS, int(reports * setup.scale))),
            ]
            command = [sys.executable, "-m", "benchmarks.reporting", *arguments]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600)
            return float(done.stdout)

        rate(RECEIVERS, IN_TURN_REPORTS)
        pairs = alternate(setup.runs, lambda: rate(RECEIVERS, AT_ONCE_REPORTS), lambda: rate(1, IN_TURN_REPORTS))
    yield ratio("reports", "64 at once / one at a time", pairs, "reports/s", Threshold(5.0, at_least=True))
