"""Follows an offset range, a batch, a setting and reading tasks through the code: ``python -m tests.support.layout.ways [NAME]``.

Prints the modules that each of them passes, in order, and their counts (:mod:`~tests.support.layout.followed`). The ways are
those of docs/architecture/ways.md: without errors, metrics and observers. Everything runs in this process: a Kafka of lists, a
driver and a receiver with their real threads and HTTP, stores in memory or in a temporary folder.
"""

from __future__ import annotations

import itertools
import logging
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from driver.batches.job.engine import NamedJob
from driver.batches.local_engine import LocalEngine
from driver.batches.runner import AttemptRules, BatchHooks
from driver.batches.scheduler import BatchOptions, Scheduler
from driver.batches.tasks.reading import read_in_task
from driver.decision_loop.loop import DriverLoop
from driver.journal import events as ev
from driver.journal.log import opening
from driver.listeners.dispatch import Listeners
from driver.service import Driver, DriverOptions
from driver.service.composition import make_scheduler
from driver.service.options import Given
from driver.tracker import Tracker
from driver.tracker.requests import FoundPartitions
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import MockBroker
from forebay.model.identifiers import numbered
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock
from forebay.settings.reading.load import from_values, load
from receiver.main import compose
from receiver.sources.source import CommitPoint
from tests.receiver.fakes import FakeKafka, running
from tests.support.layout.followed import Follower, Way
from tests.support.state.rows import block, filler
from tests.support.state.stored import Stored
from tests.support.state.tracked import STREAM, TOPIC, Tracked, tracker_options
from wal.blocks.digests import completed
from wal.storage import MemoryStorage
from wal.storage.local import LocalStorage

#: metrics, observers, traces and logs; the status of running batches, their statistics and failures; positions that are
#: published
LEFT_OUT = (
    "driver.background.",
    "driver.batches.batch_events",
    "driver.batches.batch_log",
    "driver.batches.entries",
    "driver.batches.job_failures",
    "driver.batches.job.measure",
    "driver.http.observation.",
    "driver.listeners",
    "driver.metrics.",
    "driver.service.activity",
    "driver.service.commits",
    "driver.service.housekeeping",
    "driver.service.answers.metrics",
    "driver.service.answers.observing",
    "forebay.metrics.",
    "forebay.process.",
    "forebay.traces.",
    "receiver.metrics",
)
#: what is no part of an offset range's way, by function, argument and wanted types: other inputs of the receiver, other requests
#: to the driver, local copies
IGNORED = {
    "tell": ("event", ("Polled", "Tick", "BlockStored", "ReportAnswered")),
    "decide": ("request", ("ReportRequest",)),
    "_copy": ("block", ()),  # beside the WAL, in a thread of its own
}
SECONDS = 60.0
#: records before the followed ones, so that hardly another number equals an offset
BEFORE = 70_001
INTERVAL_MS = 3_600_000


class _Kafka(FakeKafka):
    """``after_commit``: called with each commit."""

    after_commit: Callable[[], None] = staticmethod(lambda: None)

    def commit(self, positions: Mapping[TopicPartition, CommitPoint]) -> None:
        super().commit(positions)
        self.after_commit()


def offset_range(folder: Path) -> Way:
    """From polled records to the request to commit their end."""
    tp = TopicPartition("flights", 0)
    follower = Follower(LEFT_OUT, ignored=IGNORED)
    committed = threading.Semaphore(0)
    with MockBroker() as broker, follower.installed():
        broker.create_topic(tp.topic)
        values: dict[str, Any] = {
            "stream": STREAM,
            "kafka": {"topics": [tp.topic], "group": STREAM, **broker.options},
            "wal": {"url": f"file://{folder}/wal"},
            "driver": {
                "journal": f"file://{folder}/journal", "url": "http://127.0.0.1:0", "engine": "local",
                "batch_interval": "1h", "lease_duration": "60s", "snapshot_copy_interval": "0s",
            },
            "receiver": {"heartbeat_interval": "15s", "local_copies": False},
            "agent": {"blocks": f"{folder}/blocks"},
        }  # fmt: skip
        settings = from_values(values)
        driver = Driver(
            settings,
            upstream=KafkaAdmin(settings.kafka.options),
            engine=LocalEngine(settings, dict),
            jobs=[NamedJob("job", lambda batch: None)],
            clock=SystemClock(),
            options=DriverOptions(release="test"),
        )
        driver.start()
        jobs = threading.Thread(target=driver.run, name="jobs")
        jobs.start()
        try:
            kafka = _Kafka({tp: [b""] * BEFORE}, poll_records=BEFORE)
            kafka.after_commit = committed.release
            values["driver"]["url"] = driver.url
            storage = LocalStorage(f"{folder}/wal")
            with running(
                compose(from_values(values), "r1", source=kafka, storage=storage, clock=SystemClock(), host="h1")
            ):
                assert committed.acquire(timeout=SECONDS)
                follower.begin(BEFORE + 4, BEFORE + 5)  # its last offset and its end
                kafka.values[tp] += [b""] * 5
                assert committed.acquire(timeout=SECONDS)
                follower.end()
        finally:
            driver.stop()
            jobs.join()
            driver.close()
    return follower.way()


class _Led(Tracked):
    """A tracker behind a decision loop, with a journal in memory."""

    def __post_init__(self) -> None:
        self.sequence, self.claims = {}, 0
        number = itertools.count(1)
        storage = MemoryStorage("memory://followed")
        journal, self.state = opening.lead(storage, STREAM, "test", 1, lambda: 1.0, lambda: next(number))
        self.tracker = Tracker(self.state, journal.epoch, tracker_options())
        self.loop = DriverLoop(
            self.tracker, journal, SystemClock(), perform=lambda action: None, failed=lambda error: None
        )
        self.loop.start()
        self.say(FoundPartitions((ev.IncarnationStart(TOPIC, 0, 0, "id-1"),), self.now_ms, "earliest"))

    def say(self, request: Any) -> Any:
        return self.loop.ask(request)


class _Clock:
    """Shortly before the end of an interval."""

    def wall_ms(self) -> int:
        return INTERVAL_MS - 50

    def monotonic(self) -> float:
        return SystemClock().monotonic()


def batch(folder: Path) -> Way:
    """From the end of an interval to the completion in the journal."""
    settings = from_values(
        {
            "stream": STREAM,
            "kafka": {"topics": [TOPIC], "bootstrap.servers": "unused:1"},
            "wal": {"url": f"file://{folder}/wal"},
            "driver": {"journal": f"file://{folder}/journal"},
            "agent": {"blocks": f"{folder}/blocks"},
        }
    )
    follower = Follower(LEFT_OUT)
    completed = threading.Event()
    with follower.installed():
        led = _Led()
        epoch = led.register()
        token = led.claim(epoch).view.token
        for until in (5, 9):  # the id of the third batch equals no epoch and no token
            led.take_in(epoch, token, until)
            led.complete(led.batch())
        led.take_in(epoch, token, 12)
        scheduler = Scheduler(
            led.loop,
            LocalEngine(settings, dict),
            [NamedJob("job", lambda batch: None)],
            clock=_Clock(),
            options=BatchOptions(batch_interval_seconds=INTERVAL_MS / 1000, tasks=lambda: 1, headers=False),
            rules=AttemptRules(max_failures=1, retry_delay_seconds=0.0, unreadable_retry_seconds=0.0),
            hooks=BatchHooks(completed=lambda *_: completed.set()),
        )
        worker = threading.Thread(target=scheduler.run, name="worker")
        worker.start()
        try:
            follower.begin(INTERVAL_MS, numbered(1, 3))  # the batch's time and id
            scheduler.start()
            assert completed.wait(SECONDS)
            follower.end()
        finally:
            scheduler.stop()
            worker.join()
            scheduler.join()
            led.loop.stop()
    return follower.way()


def setting(folder: Path) -> Way:
    """From the file to the object that uses it, for ``driver.unreadable_retry``."""
    path = folder / "forebay.toml"
    path.write_text(
        'stream = "s"\nkafka.topics = ["t"]\nkafka."bootstrap.servers" = "unused:1"\nwal.url = "file:///unused"\n'
        'agent.blocks = "/unused"\ndriver.journal = "file:///unused/journal"\ndriver.unreadable_retry = "4321s"\n'
    )
    follower = Follower(LEFT_OUT)
    with follower.installed():
        follower.begin("4321s", 4321.0)
        settings = load(path, {})
        unused = cast(Any, None)
        given = Given(
            settings=settings,
            upstream=unused,
            engine=cast(Any, SimpleNamespace(parallelism=1)),
            jobs=(),
            clock=SystemClock(),
            options=DriverOptions(release="test"),
            listeners=Listeners([], lambda: 0),
        )
        led = _Led()
        make_scheduler(given, led.loop, led.state, epoch=1, completions=given.clock, copies=dict, counting=unused)
        follower.end()
        led.loop.stop()
    return follower.way()


def reading_copy(folder: Path) -> Way:
    """From the start of a task to its rows: one large block, whose host's copy the task maps into memory."""
    return _reading(folder, "local", [60_000])


def reading_wal(folder: Path) -> Way:
    """From the start of a task to its rows: one large block from the WAL."""
    return _reading(folder, "wal", [60_000])


def reading_small_blocks(folder: Path) -> Way:
    """From the start of a task to its rows: small blocks, read together from the host's copies."""
    return _reading(folder, "local", [20, 20, 20])


def _reading(folder: Path, tier: Any, counts: list[int]) -> Way:
    stored = Stored(folder)
    references = []
    for sequence, count in enumerate(counts, start=1):
        meta, payload = completed(*block({("t", 0): filler(count, BEFORE * sequence)}, sequence=sequence), None)
        references.append(stored.add(meta, payload))
    follower = Follower(LEFT_OUT)
    plan = stored.plan(tier)
    with follower.installed():
        for _ in range(2):  # modules are imported and stores opened once
            marks = [mark for r in references for mark in (r.id, *(part.from_offset for part in r.ranges))]
            follower.begin(*marks)
            assert sum(batch.num_rows for batch in read_in_task(references, plan, lambda read: None)) == sum(counts)
            follower.end()
    return follower.way()


WAYS: dict[str, Callable[[Path], Way]] = {
    "offset-range": offset_range,
    "batch": batch,
    "setting": setting,
    "reading-copy": reading_copy,
    "reading-wal": reading_wal,
    "reading-small-blocks": reading_small_blocks,
}


def main(names: list[str]) -> None:
    logging.disable()
    for name in names or WAYS:
        with tempfile.TemporaryDirectory() as folder:
            way = WAYS[name](Path(folder))
        print(f"{name}: {way}")
        for step in way.steps:
            mark = "  " if step.first else "<<"
            print(f"  {mark} {f'{step.source} → ' if step.source else f'[{step.thread}] '}{step.function}")


if __name__ == "__main__":
    main(sys.argv[1:])
