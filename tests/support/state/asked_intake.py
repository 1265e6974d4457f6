"""An intake in this process that answers requests: the driver's decisions without a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from driver.decisions.intake import intake as shown_intake
from driver.decisions.intake import span
from driver.journal.events import GapRecorded, IncarnationStart
from driver.journal.transitions import apply
from driver.tracker.requests import FoundPartitions
from forebay import messages as m
from forebay.model.values import Gap
from pyspark_forebay.intake import client, cursor
from pyspark_forebay.intake.batch import IntakeBatchReader
from pyspark_forebay.intake.stream import IntakeStreamReader
from tests.support.state.reads import ReadBy
from tests.support.state.tracked import TOPIC, Tracked


class Asked:
    """As ``DriverClient``, of the driver in this process."""

    def __init__(self, tracked: Tracked) -> None:
        self._tracked = tracked
        self._lock = threading.Lock()
        self.before: Callable[[str], None] = lambda path: None
        self.asked: list[str] = []
        self.closed = 0

    def get(self, path: str, answer: Any) -> Any:
        with self._lock:
            self.before(path)
            return self._read_intake(self._tracked.say(ReadBy(shown_intake)))

    def post(self, path: str, body: Any, answer: Any) -> Any:
        with self._lock:
            self.before(path)
            self.asked.append(path)
            if isinstance(body, m.SpanRequest):
                return self._tracked.say(ReadBy(lambda state: span(state, body, (), self._read_intake)))
            return self._tracked.say(body)

    def _read_intake(self, shown: tuple[m.IntakePartition, ...]) -> m.IntakeAnswer:
        return m.IntakeAnswer(stream="flights", partitions=shown, wal_url="memory://none")

    def close(self) -> None:
        self.closed += 1


class Taken:
    """An intake: ``take`` takes ten offsets more in, each partition's into a segment of its own, which no batch holds."""

    def __init__(self) -> None:
        self.tracked = Tracked(partitions=1)
        self._epoch = self.tracked.register()
        self._tokens: dict[int, int] = {}
        self.driver = Asked(self.tracked)

    def take(self, partition: int = 0) -> None:
        if partition not in self._tokens:
            self._tokens[partition] = self.tracked.claim(self._epoch, partition).view.token
        until = self.tracked.state.partitions[f"{TOPIC}/{partition}"].position + 10
        path = f"flights/blocks/r1/{self._epoch:016x}/{partition:08}.seg"
        self.tracked.take_in(self._epoch, self._tokens[partition], until, partition, path=path)
        batch = self.tracked.batch()
        self.tracked.complete(batch)
        self.tracked.archive(batch)

    def lose(self, partition: int, until: int) -> None:
        """Let Kafka lose the next offsets, by an accepted gap."""
        position = self.tracked.state.partitions[f"{TOPIC}/{partition}"].position
        apply(self.tracked.state, GapRecorded(TOPIC, partition, Gap(position, until, "aged out"), self.tracked.now_ms))
        self._tokens.pop(partition, None)

    def add(self, partition: int) -> None:
        self.tracked.say(
            FoundPartitions((IncarnationStart(TOPIC, partition, 0, "id-1"),), self.tracked.now_ms, "found")
        )

    def held(self, partition: int) -> bool:
        """Whether a cursor keeps the partition's segment."""
        path = f"flights/blocks/r1/{self._epoch:016x}/{partition:08}.seg"
        return self.tracked.state.index.segments[path].unread > 0


def asked_in_process(monkeypatch: pytest.MonkeyPatch) -> Taken:
    """Answer all requests to an intake until the end of the test. Readers send nothing by themselves."""
    made = Taken()
    monkeypatch.setattr(client, "DriverClient", lambda *_, **__: made.driver)
    monkeypatch.setattr(cursor, "HEARTBEAT_SECONDS", 3_600.0)
    return made


ALL = ReadAllAvailable()


def begun(identity: str = "q") -> IntakeStreamReader:
    return IntakeStreamReader({"tracker": "http://127.0.0.1:1"}, new_id=lambda: identity)


def records(tasks: list[Any]) -> dict[str, int]:
    """Records that the tasks read, by range."""
    found: dict[str, int] = {}
    for task in tasks:
        for part in task.value.parts:
            found |= {r.label: part.records for r in part.reference.ranges if r.label not in part.unwanted}
    return found


def batch_of(**options: str) -> IntakeBatchReader:
    return IntakeBatchReader({"tracker": "http://127.0.0.1:1", **options})
