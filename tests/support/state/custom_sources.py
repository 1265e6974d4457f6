"""Custom sources of tests, and the adapters over them with a manual clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from forebay.model.columns import Columns
from forebay.model.values import TopicPartition
from forebay.settings.reading.load import from_values
from forebay.settings.schema import Settings
from forebay.sources.receiving import Record, Records, ReliableSource, UnreliableSource
from receiver.sources.custom_source import ReliableAdapter, UnreliableAdapter
from receiver.sources.source import CommitPoint

A, B, Q = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("q", 0)


class Lists(ReliableSource):
    """Lists that may grow; an offset is an index. ``fails``: method → what it raises next."""

    def __init__(self, count: int = 0, names: Sequence[str] = ("a", "b")) -> None:
        self.lists = {name: [b"%s%d" % (name.encode(), n) for n in range(count)] for name in names}
        self.at: dict[str, int] = {}
        self.asked: list[Sequence[str]] = []
        self.acknowledged: dict[str, int] = {}
        self.forgotten: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.closed = False

    def _fail(self, method: str) -> None:
        if error := self.fails.pop(method, None):
            raise error

    def partitions(self) -> Sequence[str]:
        self._fail("partitions")
        return list(self.lists)

    def open(self, partition: str, offset: int) -> None:
        self._fail(f"open {partition}")
        self.at[partition] = offset

    def poll(self, partitions: Sequence[str], max_records: int, timeout_seconds: float) -> Mapping[str, Records]:
        self._fail("poll")
        self.asked.append(list(partitions))
        given: dict[str, list[Record]] = {}
        for name in partitions:
            at = self.at[name]
            own = self.lists[name][at : at + max(1, max_records // len(partitions))]
            if own:
                given[name] = [Record(value, offset=at + n) for n, value in enumerate(own)]
                self.at[name] += len(own)
        return given

    def acknowledge(self, positions: Mapping[str, int]) -> None:
        self._fail("acknowledge")
        self.acknowledged.update(positions)

    def forget(self, partitions: Sequence[str]) -> None:
        self._fail("forget")
        self.forgotten += partitions

    def end_offset(self, partition: str) -> int:
        self._fail("end_offset")
        return len(self.lists[partition])

    def close(self) -> None:
        self.closed = True


class Queue(UnreliableSource):
    """Returns each value once."""

    name: ClassVar[str] = "q"

    def __init__(self, count: int = 0, portion: int = 7) -> None:
        self.values = [b"%d" % n for n in range(count)]
        self.portion = portion
        self.begun = 0
        self.ended = False
        self.fails: Exception | None = None

    def start(self) -> None:
        self.begun += 1

    def poll(self, max_records: int, timeout_seconds: float) -> Records:
        if self.fails is not None and not self.values:
            raise self.fails
        count = min(self.portion, max_records)
        given, self.values = self.values[:count], self.values[count:]
        return [Record(value) for value in given]

    def stop(self) -> None:
        self.ended = True


class NotWhole(ReliableSource):
    def open(self, partition: str, offset: int) -> None: ...


class SaysNo(Lists):
    def __init__(self) -> None:
        raise ValueError("no folder is named")


class NamedBadly(Queue):
    name: ClassVar[str] = "a/b"


HERE = __name__


def settings_for(source: str = "Lists", count: int = 1, stream: str = "s", **options: object) -> Settings:
    return from_values(
        {
            "stream": stream,
            "wal": {"url": "file:///w"},
            "receiver": {"source": f"{HERE}:{source}", "count": count, "source_options": options},
            "driver": {"journal": "file:///j"},
            "agent": {"blocks": "/b"},
        }
    )


@dataclass
class HandClock:
    now: float = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 0


@dataclass
class RecordingListener:
    """A listener that keeps the assigned partitions."""

    owned: set[TopicPartition] = field(default_factory=set)
    calls: list[tuple[str, list[TopicPartition]]] = field(default_factory=list)

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("assigned", list(partitions)))

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.calls.append(("revoked", list(partitions)))

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        raise AssertionError("no receiver loses a partition without a revocation")


def reliable(own: Lists, count: int = 1, ordinal: int = 0) -> tuple[ReliableAdapter, RecordingListener, HandClock]:
    clock, listener = HandClock(), RecordingListener()
    own.ordinal = ordinal
    adapter = ReliableAdapter(settings_for(count=count), own, clock)
    adapter.subscribe(listener)
    return adapter, listener, clock


def unreliable(own: Queue) -> UnreliableAdapter:
    adapter = UnreliableAdapter(settings_for("Queue"), own, HandClock())
    adapter.subscribe(RecordingListener())
    return adapter


def offsets(polled: Sequence[Any]) -> list[tuple[str, int, int, int]]:
    return [(c.tp.topic, c.generation, c.first_offset, c.last_offset) for c in polled if isinstance(c, Columns)]


def point(offset: int) -> CommitPoint:
    return CommitPoint(offset, -1, "forebay:1:1")
