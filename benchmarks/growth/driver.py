"""Where one driver ends: reports per second by 1 to 256 receivers together, and allocation of up to 300,000 waiting blocks.

The reports are those of the benchmark ``reports``: over HTTP, accepted, journalled and synced. The
allocation is that of a tracker in this process, without I/O.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.journal_opening import first_events, waiting_block
from benchmarks.measured import Measured, Threshold, ratio
from benchmarks.receiving import Tracking
from benchmarks.reporting import STREAM
from benchmarks.setup import Setup
from benchmarks.sheets import Lines, Sheet, line, spread
from driver.journal import events as ev
from driver.journal.state import State
from driver.journal.transitions import apply
from driver.tracker import Tracker
from driver.tracker.requests import Allocate
from forebay.model.identifiers import numbered
from tests.support.state.tracked import tracker_options

RECEIVERS = (1, 4, 16, 64, 256)
REPORTS = 8_000
WAITING = (1_000, 10_000, 100_000, 300_000)
RUNS_MAX = 3
_TOPIC = "records"


def measure(setup: Setup) -> Iterator[Measured]:
    reports = {number: [_rate(setup, number) for _ in range(setup.runs)] for number in RECEIVERS}
    head = ("receivers", "reports/s")
    rows = tuple((str(number), spread(rates)) for number, rates in reports.items())
    ticks = tuple((float(number), str(number)) for number in RECEIVERS)
    plot = Lines("receivers at the same time", "durable reports/s", (line("", reports.items()),), ticks)
    setup.keep(Sheet("growth-reports", "Reports per second", head, rows, (plot,)))
    pairs = list(zip(reports[RECEIVERS[-1]], reports[64], strict=True))
    yield ratio("growth-driver", "reports/s, 256 receivers / 64", pairs, "reports/s", Threshold(0.8, at_least=True))
    waiting = [max(1_000, int(number * min(1.0, setup.scale * 2))) for number in WAITING]
    decided = {number: [_decided(number) for _ in range(min(setup.runs, RUNS_MAX))] for number in sorted(set(waiting))}
    setup.keep(_sheet(decided))
    few, most = min(decided), max(decided)
    cost = [(one / most * 1e6, other / few * 1e6) for one, other in zip(decided[most], decided[few], strict=True)]
    yield ratio(
        "growth-driver", "allocation per waiting block, most / fewest", cost, "µs", Threshold(2.0, at_least=False)
    )


def _rate(setup: Setup, receivers: int) -> float:
    with setup.folder() as folder, Tracking(folder) as tracking:
        tracking.begin(_TOPIC, receivers)
        count = str(max(receivers, int(REPORTS * setup.scale) if receivers > 1 else int(REPORTS / 4 * setup.scale)))
        command = [
            sys.executable,
            "-m",
            "benchmarks.reporting",
            tracking.url,
            _TOPIC,
            str(receivers),
            str(receivers),
            count,
        ]
        return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600).stdout)


def _decided(waiting: int) -> float:
    """Return the seconds of an allocation of ``waiting`` blocks."""
    state = State(stream=STREAM, timeline=1)
    for event in first_events():
        apply(state, event)
    for number in range(waiting):
        apply(state, ev.BlockAdded(waiting_block(number)))
    tracker = Tracker(state, numbered(1, 1), tracker_options())
    gc.collect()
    begun = time.monotonic()
    decision = tracker.decide(Allocate(1_000, 8), 1.0, 1_000)
    seconds = time.monotonic() - begun
    if not any(isinstance(event, ev.BatchAllocated) for event in decision.events):
        raise RuntimeError(f"no batch was made of {waiting} blocks")
    return seconds


def _sheet(decided: dict[int, list[float]]) -> Sheet:
    head = ("waiting blocks", "allocation, ms", "allocation, µs per block")
    rows = tuple(
        (f"{number:,}", spread([one * 1e3 for one in seconds]), spread([one / number * 1e6 for one in seconds]))
        for number, seconds in decided.items()
    )
    points = ((number, [one * 1e3 for one in seconds]) for number, seconds in decided.items())
    plot = Lines("waiting blocks", "allocation, ms", (line("", points),), y_log=True)
    return Sheet("growth-waiting", "Waiting blocks", head, rows, (plot,), runs=len(next(iter(decided.values()))))
