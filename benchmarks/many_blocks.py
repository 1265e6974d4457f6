"""Reports, allocation and status with 100,000 waiting blocks, 1,000 partitions and 200 receivers, over HTTP, without Spark.

A real driver runs in this process: HTTP, decision loop, file journal with its syncs, clean-up, batch timer of 1 s. Kafka's
metadata and the engine are simulated: the job of the first batch is held until 100,000 blocks wait, so that the next tick
allocates them all as one batch. The receivers are another process (``benchmarks.fleet``); each block has a range of each of its
receiver's partitions.

- Reports of one block, 400 a second: while the blocks wait, and (peer) before, while few do.
- The same posts to a bare server of the same kind that decodes, appends and syncs each (peer), while the driver is idle.
- From the batch's tick to the call of its job, with all blocks: allocation, journal, start of the batch run. Beside it the
  longest heartbeat meanwhile, which shows how long the driver answered no other request; and the CPU time of the driver's
  process, heartbeats included, which is more meaningful than time where other processes share the processors.
- ``GET /v1/status`` with all blocks waiting, and (peer) before: the smallest of many samples. It must not grow with the blocks,
  and after a burst of reports snapshot copies and clean-up run at the same time.
- The longest heartbeat while a process asks for metrics and overview each second, as Prometheus and the page do, and (peer) while
  none does, with all blocks waiting; the two alternate.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

import msgspec

from benchmarks.fleet import BEAT_SECONDS, Latencies
from benchmarks.measured import Measured, Threshold, figure, ratio
from benchmarks.reporting import STREAM
from benchmarks.scraper import Scrapes, Scraping
from benchmarks.setup import Setup
from driver.batches.job.batch import Batch
from driver.batches.job.engine import Job, NamedJob
from driver.batches.job.work import BatchWork
from driver.batches.local_engine import LocalEngine
from driver.service import Driver, DriverOptions
from forebay import messages as m
from forebay.http.application import Direct, application
from forebay.http.client import Client
from forebay.http.server import Server
from forebay.kafka.client.admin import Committed
from forebay.kafka.client.group_offsets import Point
from forebay.model.errors import UnreachableError
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock
from forebay.process.garbage import freeze_present
from forebay.settings.reading.load import from_values
from forebay.settings.schema import Settings
from forebay.sources.kind import Upstream
from wal.reading import TierCounts

BLOCKS, PARTITIONS, RECEIVERS = 100_000, 1_000, 200
FEW = 2_000  # reports, and so blocks, when few wait
PERIOD_SECONDS = 0.5
TOPIC = "records"
#: end of each partition at the machine's start; beyond all blocks
END = 10_000_000
PATIENCE_SECONDS = 300.0
STATUS_LOOKS = 50
#: of each period with and without scrapes, and how often they alternate
SCRAPED_SECONDS, SCRAPED_TIMES = 5.0, 3
#: of the history, for each block: its id at least
HISTORY_BYTES_MIN = 10


@dataclass(frozen=True, slots=True)
class Run:
    few: Latencies
    bare: Latencies
    filled: Latencies
    many: Latencies
    status_few_seconds: float
    status_many_seconds: float
    allocation_seconds: float
    processor_seconds: float
    pause_ms: float
    after_ms: float
    journal_bytes: int
    quiet_ms: float
    scraped_ms: float
    scrapes: Scrapes


def measure(setup: Setup) -> Iterator[Measured]:
    blocks = setup.records(BLOCKS)
    runs = [_run(setup, blocks) for _ in range(setup.runs)]
    note = f"{blocks:,} blocks, {PARTITIONS:,} partitions, {RECEIVERS} receivers"
    for label, name in (("median", "median_ms"), ("99th percentile", "p99_ms")):
        pairs = [(getattr(run.many, name), getattr(run.few, name)) for run in runs]
        yield ratio("scale", f"report latency, {label}, all waiting / few", pairs, "ms", note=note)
    pairs = [(run.few.median_ms, run.bare.median_ms) for run in runs]
    yield ratio("scale", "the same, median, few waiting / a bare post and fdatasync", pairs, "ms")
    yield figure(
        "scale", "the longest report while all wait", [max(r.filled.max_ms, r.many.max_ms) for r in runs], "ms"
    )
    yield figure("scale", "taken in", [10 * run.filled.count / run.filled.seconds for run in runs], "blocks/s")
    yield figure(
        "scale", "tick → job called with all blocks", [run.allocation_seconds for run in runs], "s",
        Threshold(1.0, at_least=False), note,
    )  # fmt: skip
    yield figure("scale", "the same, processor time of the driver", [run.processor_seconds for run in runs], "s")
    yield figure("scale", "the longest heartbeat meanwhile", [run.pause_ms for run in runs], "ms")
    yield figure("scale", "the same, completion and archive", [run.after_ms for run in runs], "ms")
    pairs = [(run.status_many_seconds * 1000, run.status_few_seconds * 1000) for run in runs]
    yield ratio("scale", "status, all waiting / few", pairs, "ms", Threshold(2.0, at_least=False))
    pairs = [(run.scraped_ms, run.quiet_ms) for run in runs]
    yield ratio("scale", "longest heartbeat, a scrape each second / none", pairs, "ms", Threshold(1.2, at_least=False))
    yield figure("scale", "a scrape of the metrics", [1000 * median(run.scrapes.seconds) for run in runs], "ms")
    yield figure("scale", "the longest scrape", [1000 * max(run.scrapes.seconds) for run in runs], "ms")
    yield figure("scale", "journal on disk, per block", [run.journal_bytes / blocks for run in runs], "bytes")


def _run(setup: Setup, blocks: int) -> Run:
    few = max(RECEIVERS, int(FEW * setup.scale) // RECEIVERS * RECEIVERS)
    last = 2 * few
    tens = -(-(blocks - few - last) // 10 // RECEIVERS) * RECEIVERS
    with setup.folder() as folder, ExitStack() as closing:
        held = Held()
        settings = _settings(folder)
        driver = Driver(
            settings,
            upstream=Source(),
            engine=Engine(settings, dict),
            jobs=(NamedJob("job", held),),
            clock=SystemClock(),
            options=DriverOptions(release="bench"),
        )
        closing.callback(driver.close)
        driver.start()
        running = threading.Thread(target=driver.run, name="batches")
        running.start()
        closing.callback(running.join)
        closing.callback(driver.stop)
        closing.callback(held.release.set)
        client = Client(driver.url)
        _until(lambda: _is_running(client))
        freeze_present()  # as the service does
        fleet = closing.enter_context(_Fleet(driver.url))
        fleet.ask("report", RECEIVERS, 1, 0)
        _until(held.entered.is_set)
        found_few = fleet.ask("report", few, 1, PERIOD_SECONDS)
        status_few = _status_seconds(client)
        with Bare(folder) as bare:
            found_bare = fleet.ask("raw", bare.url, few, PERIOD_SECONDS)
        filled = fleet.ask("report", tens, 10, 0)
        many = fleet.ask("report", last, 1, PERIOD_SECONDS)
        waiting = _status(client).waiting_blocks
        if waiting < blocks * 0.9:
            raise RuntimeError(f"{waiting} blocks wait, {blocks} should")
        status_many = _status_seconds(client)
        journal_bytes = _bytes(folder / "journal")
        quiet_ms, scraped_ms, scrapes = _scraped(fleet, driver.url, SCRAPED_SECONDS if setup.scale >= 1 else 1.0)
        fleet.ask("beats")
        _sleep_to_a_tick()
        time.sleep(0.3)  # between two ticks: at one, the driver might be a little later and take the blocks immediately
        held.release.set()  # the batch that it holds up ends long before the next tick
        _sleep_to_a_tick()
        used = time.process_time()
        _until(held.called.is_set)
        # of few blocks the job is called before this is read
        processor_seconds = max(1e-6, held.processor_seconds - used)
        time.sleep(1.5 * BEAT_SECONDS)  # so that each receiver has sent a heartbeat since
        pause = fleet.ask("beats")
        _until(lambda: _status(client).batches_completed == 2)
        _until(lambda: _bytes(folder / "journal" / STREAM / "history") > HISTORY_BYTES_MIN * blocks)
        time.sleep(1.5 * BEAT_SECONDS)  # so that each has sent another
        return Run(
            found_few, found_bare, filled, many, status_few, status_many, held.seconds, processor_seconds, pause.max_ms,
            fleet.ask("beats").max_ms, journal_bytes, quiet_ms, scraped_ms, scrapes,
        )  # fmt: skip


def _scraped(fleet: _Fleet, url: str, seconds: float) -> tuple[float, float, Scrapes]:
    """Return the longest heartbeat without scrapes and with them, in ms, and the scrapes."""
    quiet: list[float] = []
    scraped: list[float] = []
    found: list[Scrapes] = []
    for _ in range(SCRAPED_TIMES):
        fleet.ask("beats")
        time.sleep(seconds)
        quiet.append(fleet.ask("beats").max_ms)
        with Scraping(url) as scraping:
            fleet.ask("beats")
            time.sleep(seconds)
            scraped.append(fleet.ask("beats").max_ms)
        found.append(scraping.found)
    return max(quiet), max(scraped), Scrapes(tuple(s for one in found for s in one.seconds), found[-1].size_bytes)


def _settings(folder: Path) -> Settings:
    return from_values({
        "stream": STREAM,
        "kafka": {"topics": [TOPIC], "bootstrap.servers": "played:1"},
        "wal": {"url": f"file://{folder}/wal"},
        "driver": {
            "journal": f"file://{folder}/journal", "url": "http://127.0.0.1:0", "engine": "local",
            "batch_interval": "1s", "max_queued_batches": 1,
        },
        "agent": {"blocks": f"{folder}/blocks"},
    })  # fmt: skip


def _status(client: Client) -> m.StatusAnswer:
    return client.get("/v1/status", m.StatusAnswer)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.seg"))


def _is_running(client: Client) -> bool:
    try:
        return _status(client).state == "running"
    except UnreachableError:
        return False


def _status_seconds(client: Client) -> float:
    """Return the smallest of many samples."""
    taken = []
    for _ in range(STATUS_LOOKS):
        begun = time.monotonic()
        _status(client)
        taken.append(time.monotonic() - begun)
    return min(taken)


def _sleep_to_a_tick() -> None:
    time.sleep(-time.time() % 1.0)  # the batch interval, which begins with each second


def _until(reached: Any) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not reached():
        if time.monotonic() > deadline:
            raise RuntimeError("the driver did not get there")
        time.sleep(0.01)


class Held:
    """The job. Its first batch waits for ``release``; of its second batch it notes the time from the tick to the call."""

    def __init__(self) -> None:
        self.entered, self.release, self.called = threading.Event(), threading.Event(), threading.Event()
        self.seconds = self.processor_seconds = 0.0

    def __call__(self, batch: Batch) -> None:
        if not self.entered.is_set():
            self.entered.set()
            self.release.wait()
        elif not self.called.is_set():
            self.seconds = time.time() - batch.time.timestamp()
            self.processor_seconds = time.process_time()
            self.called.set()


class Engine(LocalEngine):
    """An engine with eight tasks at the same time, which reads nothing."""

    @property
    def parallelism(self) -> int:
        return 8

    def run(self, work: BatchWork, job: Job) -> TierCounts:
        job(Batch(work, None))  # type: ignore[arg-type]
        return TierCounts()


class Source(Upstream):
    """Kafka with one topic that begins at offset 0 and grows all the time, and a group that accepts every commit."""

    def partitions(self, topics: Iterable[str] = (), pattern: str | None = None) -> set[TopicPartition]:
        return {TopicPartition(TOPIC, number) for number in range(PARTITIONS)}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "id")

    listed_topic_ids = topic_ids

    def starting_offsets(
        self, policy: str | Mapping[str, int], partitions: Iterable[TopicPartition], group: str
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, END + int(time.monotonic()))

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        return {}

    def publish(self, group: str, positions: Mapping[TopicPartition, Point]) -> dict[TopicPartition, str]:
        return {}

    def why_silent(self) -> str:
        return ""


class Bare:
    """A server that decodes a report, appends it to a file and syncs the file, one post after the other."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "bare").open("wb", buffering=0)
        app = application("bare", "bench", [])
        self._server = Server(Direct(app, {"/": m.ReportRequest}, handle=self._keep), "http://127.0.0.1:0")

    async def _keep(self, report: m.ReportRequest) -> m.Done:
        self._file.write(msgspec.json.encode(report))
        os.fdatasync(self._file.fileno())
        return m.Done()

    def __enter__(self) -> Bare:
        self.url = self._server.__enter__().url
        return self

    def __exit__(self, *raised: Any) -> None:
        self._server.__exit__(*raised)
        self._file.close()


class _Fleet:
    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "benchmarks.fleet", url, TOPIC, str(RECEIVERS), str(PARTITIONS)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, *arguments: Any) -> Latencies:
        into = self._process.stdin
        assert into is not None
        into.write(" ".join(map(str, arguments)).encode() + b"\n")
        into.flush()
        return msgspec.json.decode(self._line(), type=Latencies)

    def _line(self) -> bytes:
        source: IO[bytes] | None = self._process.stdout
        assert source is not None
        line = source.readline()
        if not line:
            raise RuntimeError("the receivers ended")
        return line

    def __enter__(self) -> _Fleet:
        self._line()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._process.kill()
        self._process.communicate()
