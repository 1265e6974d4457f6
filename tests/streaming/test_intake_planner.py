"""The planner of a query over an intake, with the driver's decisions and no server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from driver import cursors
from driver.events import LifeStart
from driver.requests import Ask, FoundPartitions
from forebay import messages as m
from forebay.errors import RangeNotHeldError, UsageError
from pyspark_forebay import intake
from pyspark_forebay.intake_stream import IntakeStreamReader
from tests.support.tracked import TOPIC, Tracked

ALL = ReadAllAvailable()


class Asked:
    """As ``DriverClient``, of the driver in this process."""

    def __init__(self, tracked: Tracked) -> None:
        self._tracked = tracked
        self._lock = threading.Lock()
        self.before: Callable[[str], None] = lambda path: None

    def get(self, path: str, answer: Any) -> Any:
        with self._lock:
            self.before(path)
            shown = self._tracked.say(Ask(cursors.intake))
        return m.IntakeAnswer(stream="flights", partitions=shown, wal_url="memory://none")

    def post(self, path: str, body: Any, answer: Any) -> Any:
        with self._lock:
            self.before(path)
            return self._tracked.say(body)

    def close(self) -> None:
        pass


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

    def add(self, partition: int) -> None:
        self.tracked.say(FoundPartitions((LifeStart(TOPIC, partition, 0, "id-1"),), self.tracked.now_ms, "found"))

    def held(self, partition: int) -> bool:
        """Whether a cursor keeps the partition's segment."""
        path = f"flights/blocks/r1/{self._epoch:016x}/{partition:08}.seg"
        return self.tracked.state.index.segments[path].unread > 0


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    made = Taken()
    monkeypatch.setattr(intake, "DriverClient", lambda *_: made.driver)
    monkeypatch.setattr(intake, "KEEP_SECONDS", 3_600.0)
    return made


def begun(identity: str = "q") -> IntakeStreamReader:
    return IntakeStreamReader({"tracker": "http://127.0.0.1:1"}, lambda: identity)


def spans(tasks: list[Any]) -> dict[str, int]:
    """Records that the tasks read, by range."""
    found = {}
    for task in tasks:
        for part in task.value.parts:
            found |= {r.label: part.records for r in part.reference.ranges if r.label not in part.unwanted}
    return found


def test_a_partition_that_came_after_a_batch_was_planned_stays_held_while_that_batch_is_read(taken: Taken) -> None:
    """INV-8: the batch does not name it, and the next one reads it from its beginning."""
    taken.take()
    reader = begun()
    start = reader.latestOffset(reader.initialOffset(), ALL)
    taken.take()
    end = reader.latestOffset(start, ALL)
    taken.add(1)
    taken.take(1)
    assert spans(reader.partitions(start, end)) == {"t/0[10, 20)": 10}
    assert taken.held(1)
    reader.commit(end)
    assert taken.held(1)
    after = reader.latestOffset(end, ALL)
    assert spans(reader.partitions(end, after)) == {"t/1[0, 10)": 10}
    reader.commit(after)
    assert not taken.held(1)


@pytest.mark.parametrize("call", ["plans its last batch again", "commits it"])
def test_a_partition_that_came_while_the_query_was_away_stays_held_when_it_comes_back(taken: Taken, call: str) -> None:
    """INV-8: Spark begins with the batch that was not finished, which does not name the partition."""
    taken.take()
    reader = begun()
    start = reader.latestOffset(reader.initialOffset(), ALL)
    taken.take()
    end = reader.latestOffset(start, ALL)
    reader.stop()
    taken.add(1)
    taken.take(1)
    again = begun("again")
    if call == "commits it":
        again.commit(end)
    else:
        again.partitions(start, end)
    assert taken.held(1)


def test_a_query_whose_beginning_is_refused_holds_nothing(taken: Taken) -> None:
    """INV-6: it may be started again and again."""
    taken.take()
    options = {"tracker": "http://127.0.0.1:1", "startingOffsets": f'{{"{TOPIC}": {{"0": 99}}}}'}
    reader = IntakeStreamReader(options, lambda: "q")
    for _ in range(2):
        with pytest.raises(UsageError, match="beyond what the stream has taken in"):
            reader.latestOffset(reader.initialOffset(), ALL)
        assert not taken.tracked.state.cursors
        assert not taken.held(0)


def test_of_a_partition_that_was_not_held_what_is_gone_of_it_is_told(taken: Taken) -> None:
    """INV-5: its cursor was forgotten meanwhile, say."""
    taken.take()
    reader = begun()
    start = reader.latestOffset(reader.initialOffset(), ALL)
    reader.stop()
    taken.tracked.say(m.DropCursorRequest(cursor="query-q"))
    taken.add(1)
    taken.take(1)
    state = taken.tracked.state
    (gone,) = (path for path, share in state.index.segments.items() if path.endswith("1.seg"))
    state.cleaning_segments[gone] = True
    again = begun("again")
    end = again.latestOffset(start, ALL)
    with pytest.raises(RangeNotHeldError, match=r"t/1\[0, 10\): the WAL has it no more"):
        again.partitions(start, end)
