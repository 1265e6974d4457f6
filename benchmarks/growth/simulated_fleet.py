"""10 to 2,000 receivers of one driver, by a clock that the benchmark moves: requests, waiting blocks, journal, processor time.

Tracker and journal are the driver's. Receivers are simulated: each has 4 partitions, reports a block with a range of each of them
five times per second, and sends a heartbeat every second, at times that are spread evenly. Requests of 10 ms are one group of the
journal, which writes snapshots when they are due. A batch is allocated every second, and completed before the next one.
Nothing waits for the clock, so the counts are the same on every machine. The processor time is that of decisions and journal:
without HTTP, with messages that are decoded already.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.measured import Measured, Threshold, ratio, shown
from benchmarks.setup import Setup
from benchmarks.sheets import Lines, Sheet, line, spread
from driver.journal.events import Event
from driver.journal.log.writing import Journal
from driver.tracker.requests import Allocate, Complete, Request
from forebay import messages as m
from forebay.model.identifiers import numbered
from forebay.model.values import BlockRange
from forebay.process.garbage import freeze_present
from tests.support.state.tracked import STREAM, TOPIC, Tracked
from wal.storage import open_storage

RECEIVERS = (10, 100, 500, 1_000, 2_000)
RECEIVERS_SMALL = RECEIVERS[:2]
PARTITIONS, HOSTS, TASKS = 4, 200, 8
SECONDS = 5
_TICK_MS, _REPORT_MS, _BEAT_MS = 10, 200, 1_000
_ROWS = 1_000
_SEGMENT_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class Run:
    """Counts of all simulated seconds. ``waiting``: blocks at the last allocation. ``cpu_seconds``: of decisions and journal."""

    requests: int
    blocks: int
    waiting: int
    journal_bytes: int
    cpu_seconds: float


def measure(setup: Setup) -> Iterator[Measured]:
    freeze_present()  # as the service does
    counts = RECEIVERS_SMALL if setup.scale < 1 else RECEIVERS
    seconds = max(1, int(SECONDS * setup.scale))
    runs: dict[int, list[Run]] = {count: [] for count in counts}
    for _ in range(setup.runs):
        for count in counts:
            with setup.folder() as folder:
                runs[count].append(_run(folder, count, seconds))
    setup.keep(_sheet(runs, seconds))
    few, *_, many = runs
    pairs = [
        (one.cpu_seconds / one.blocks * 1e6, other.cpu_seconds / other.blocks * 1e6)
        for one, other in zip(runs[many], runs[few], strict=True)
    ]
    flat = Threshold(1.5, at_least=False)
    yield ratio("growth-fleet", "processor time per block, most receivers / fewest", pairs, "µs", flat)


def _run(folder: Path, receivers: int, seconds: int) -> Run:
    driver = _Driver(folder, receivers)
    written, requests = _written_bytes(), 0
    for now_ms in range(_TICK_MS, seconds * 1_000 + _TICK_MS, _TICK_MS):
        due: list[Request] = [one.report() for one in driver.fleet[_due(now_ms, _REPORT_MS)]]
        due += [one.heartbeat() for one in driver.fleet[_due(now_ms, _BEAT_MS)]]
        requests += len(due)
        if not now_ms % 1_000:
            due += driver.next_batch()
        driver.tick(due)
    blocks = seconds * 1_000 // _REPORT_MS * receivers
    return Run(requests, blocks, driver.waiting, _written_bytes() - written, driver.cpu_seconds)


def _due(now_ms: int, period_ms: int) -> slice:
    """Return the receivers whose turn it is: each has one turn in a period."""
    ticks = period_ms // _TICK_MS
    return slice(now_ms // _TICK_MS % ticks, None, ticks)


def _written_bytes() -> int:
    """Return how many bytes this process has written to files."""
    (line_,) = (text for text in Path("/proc/self/io").read_text().splitlines() if text.startswith("wchar"))
    return int(line_.split()[1])


def _sheet(runs: dict[int, list[Run]], seconds: int) -> Sheet:
    head = (
        "receivers", "requests/s", "blocks/s", "blocks waiting at the allocation", "journal, bytes per block",
        "journal, MB/s", "processor time, ms per second", "processor time, µs per block",
    )  # fmt: skip
    rows = tuple(
        (
            f"{count:,}", f"{found[0].requests // seconds:,}", f"{found[0].blocks // seconds:,}", f"{found[0].waiting:,}",
            shown(median(run.journal_bytes / run.blocks for run in found)),
            shown(median(run.journal_bytes / seconds / 1e6 for run in found)),
            spread([run.cpu_seconds / seconds * 1e3 for run in found]),
            spread([run.cpu_seconds / run.blocks * 1e6 for run in found]),
        )
        for count, found in runs.items()
    )  # fmt: skip
    ticks = tuple((float(count), f"{count:,}") for count in runs)
    cpu = line("", ((count, [run.cpu_seconds / seconds * 1e3 for run in found]) for count, found in runs.items()))
    plot = Lines("receivers", "processor time, ms per second", (cpu,), ticks, y_log=True)
    return Sheet("growth-fleet", "Receivers of one driver, simulated", head, rows, (plot,))


class _Receiver:
    """A receiver that owns its partitions. ``number``: from 0 on."""

    def __init__(self, tracked: Tracked, number: int) -> None:
        self._tracked = tracked
        self._name = f"r{number}"
        self._epoch = tracked.register(self._name, f"i{number}", f"host-{number % HOSTS}")
        self._tokens = {
            partition: tracked.claim(self._epoch, partition, self._name).view.token
            for partition in range(number * PARTITIONS, (number + 1) * PARTITIONS)
        }
        self._claims = tracked.claims
        self._position = 0

    def report(self) -> m.ReportRequest:
        begin, self._position = self._position, self._position + _ROWS
        ranges = [
            BlockRange(
                TOPIC, partition, 1, begin, self._position, _ROWS, 0, f"{self._position:016x}", token, _ROWS * 200,
                self._tracked.now_ms,
            )
            for partition, token in self._tokens.items()
        ]  # fmt: skip
        block = self._tracked.block(self._epoch, ranges, self._name, local=True)
        meta = msgspec.structs.replace(block.meta, sha256=self._position.to_bytes(32, "big"))
        return m.ReportRequest(
            receiver_id=self._name, epoch=self._epoch, blocks=(msgspec.structs.replace(block, meta=meta),)
        )

    def heartbeat(self) -> m.HeartbeatRequest:
        partitions = tuple(
            m.PartitionStatus(
                topic=TOPIC, partition=partition, token=token, state="active", position=self._position,
                high_watermark=self._position,
            )
            for partition, token in self._tokens.items()
        )  # fmt: skip
        return m.HeartbeatRequest(
            receiver_id=self._name, epoch=self._epoch, state="active", detail="", acknowledged=0, buffered_bytes=0,
            records=self._position, partitions=partitions, claims_done=self._claims,
        )  # fmt: skip


class _Driver:
    """Tracker and journal, which decide and write the requests of each tick as the decision loop does."""

    def __init__(self, folder: Path, receivers: int) -> None:
        self.tracked = Tracked(partitions=receivers * PARTITIONS)
        self.fleet = [_Receiver(self.tracked, number) for number in range(receivers)]
        uids = itertools.count(1)
        self._journal = Journal(
            open_storage(f"file://{folder}"), stream=STREAM, epoch=numbered(1, 1), state=self.tracked.state,
            segment_bytes=_SEGMENT_BYTES,
            now=lambda: self.tracked.now_ms / 1000, new_uid=lambda: next(uids),
        )  # fmt: skip
        self._journal.snapshot()
        self._batch_id: Any = None
        self.waiting = 0
        self.cpu_seconds = 0.0

    def tick(self, requests: list[Request]) -> None:
        begun = time.thread_time()
        events: list[Event] = []
        for request in requests:
            decision = self.tracked.decide(request)
            if isinstance(decision.answer, m.ReportAnswer) and not all(one.accepted for one in decision.answer.results):
                raise RuntimeError(f"a block was refused: {decision.answer.results}")
            if isinstance(request, Allocate):
                self._batch_id = decision.answer
            events += decision.events
        if events:
            self._journal.append(events)
            self._journal.sync()
            self._journal.check()
        if self._journal.snapshot_due():
            self._journal.snapshot()
            self._journal.check()
            self._journal.drop_superseded()
        self.cpu_seconds += time.thread_time() - begun
        self.tracked.now_ms += _TICK_MS

    def next_batch(self) -> list[Request]:
        """Return the requests that complete the last batch, and make one of the blocks that wait now."""
        completed = [] if self._batch_id is None else [Complete(self._batch_id, self.tracked.now_ms, 1)]
        self.waiting = len(self.tracked.state.waiting)
        return [*completed, Allocate(self.tracked.now_ms, TASKS)]
