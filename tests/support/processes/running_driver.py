"""A driver as ``forebay driver`` runs it, in a thread of the test: a local engine, a mock broker, and receivers that the test
plays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from driver.batches.job.batch import Batch
from driver.batches.job.engine import NamedJob
from driver.batches.local_engine import LocalEngine
from driver.listeners import Listener
from driver.service import Driver, DriverOptions
from forebay import messages as m
from forebay.http.client import Client
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import MockBroker
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock
from forebay.settings.reading.load import from_values
from forebay.settings.schema import Settings
from tests.support.processes.played import PlayedReceiver


def local_settings(folder: Path, broker: MockBroker, topic: str, **driver: Any) -> Settings:
    """Creates the topic. ``driver``: further keys of ``[driver]``."""
    broker.create_topic(topic)
    return from_values(
        {
            "stream": "s",
            "kafka": {"topics": [topic], "group": topic, **broker.options},
            "wal": {"url": f"file://{folder}/wal"},
            "driver": {
                "journal": f"file://{folder}/journal",
                "url": "http://127.0.0.1:0",
                "engine": "local",
                "batch_interval": "20ms",
                "job_retry_delay": "1ms",
                "job_max_failures": 3,
                "lease_duration": "300ms",
                "receiver_timeout": "2s",
                "snapshot_copy_interval": "0s",
                **driver,
            },
            "agent": {"blocks": f"{folder}/blocks"},
        }
    )


class Running:
    """The driver and a client of it."""

    def __init__(
        self, settings: Settings, *jobs: Callable[[Batch], None], listeners: tuple[Listener, ...] = ()
    ) -> None:
        self.settings = settings
        named = [NamedJob(f"job-{number}", job) for number, job in enumerate(jobs)]
        self.driver = Driver(
            settings,
            upstream=KafkaAdmin(settings.kafka.options),
            engine=LocalEngine(settings, dict),
            jobs=named,
            clock=SystemClock(),
            options=DriverOptions(release="test", waits_when_failed=True),
            listeners=listeners,
        )
        self.error: BaseException | None = None
        self.driver.start()
        self.client = Client(self.driver.url)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.driver.run()
        except BaseException as error:
            self.error = error

    def status(self) -> m.StatusAnswer:
        return self.client.get("/v1/status", m.StatusAnswer)

    def until(self, holds: Callable[[m.StatusAnswer], Any]) -> m.StatusAnswer:
        for _ in range(1500):
            if holds(answer := self.status()):
                return answer
            threading.Event().wait(0.02)
        raise AssertionError(f"it never came: {answer}")

    def take_in(self, until: int) -> None:
        self.until(lambda answer: answer.partitions and not answer.detail.startswith("finding"))
        tp = TopicPartition(self.settings.kafka.topics[0], 0)
        PlayedReceiver(self.settings, self.driver.url).take_in(tp, until)

    def post(self, path: str, request: m.Message) -> str:
        """Send an operator's request; return the message of the answer."""
        return self.client.post(f"/v1/operator/{path}", request, m.OperatorAnswer).message

    def end(self) -> None:
        self.driver.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()
        self.driver.close()
        self.client.close()


@contextmanager
def running(
    settings: Settings, *jobs: Callable[[Batch], None], listeners: tuple[Listener, ...] = ()
) -> Iterator[Running]:
    driver = Running(settings, *jobs, listeners=listeners)
    try:
        yield driver
    finally:
        driver.end()


def failed(answer: m.StatusAnswer) -> bool:
    return any(batch.state == "failed" for batch in answer.batches)


class Carriers:
    """A job that lacks a key until it is corrected."""

    def __init__(self) -> None:
        self.is_fixed = False
        self.runs: list[tuple[int, int]] = []

    def __call__(self, batch: Batch) -> None:
        self.runs.append((batch.id, batch.records))
        if not self.is_fixed:
            look_up({}, "carrier")


def look_up(row: dict[str, str], column: str) -> str:
    return row[column]
