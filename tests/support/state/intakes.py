"""A job that collects offsets, and waits for a whole driver of an ``IngestContext``."""

from __future__ import annotations

import threading
from collections.abc import Callable

from driver import IngestContext
from driver.batches.job.batch import Batch
from forebay import messages as m
from forebay.http.client import Client
from forebay.model.values import TopicPartition
from forebay.settings.schema import Settings
from tests.support.state.columns import column_values

Configure = Callable[..., Settings]


class Collecting:
    """A job that keeps what it saw, by batch id, and tells when ``wanted`` records have come."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.seen: dict[int, list[int]] = {}
        self.reruns: list[int] = []
        self.enough = threading.Event()

    def __call__(self, batch: Batch) -> None:
        rows = [offset for rows in batch.read() for offset in column_values(rows, "offset")]
        if batch.rerun:
            self.reruns.append(batch.id)
        self.seen[batch.id] = rows
        if sum(len(rows) for rows in self.seen.values()) >= self.wanted:
            self.enough.set()

    @property
    def offsets(self) -> list[int]:
        return sorted(offset for rows in self.seen.values() for offset in rows)


def ready(intake: IngestContext, settings: Settings) -> TopicPartition:
    """The first partition, once the driver has begun its incarnation."""
    tp = TopicPartition(settings.kafka.topics[0], 0)
    client = Client(intake.url)
    for _ in range(1000):
        if client.get("/v1/status", m.StatusAnswer).state == "running":
            return tp
        threading.Event().wait(0.02)
    raise AssertionError("the driver did not get ready")


def until(condition: Callable[[], bool]) -> None:
    for _ in range(1_500):
        if condition():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it did not come to be")
