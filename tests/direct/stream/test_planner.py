"""When a direct stream compares its positions with Kafka's logs: decisions of the planner, with brokers made up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest

from direct.stream.commits import DirectCommits
from direct.stream.planner import BatchPlanner
from direct.stream.reads import StreamProgress
from direct.stream.settings import StreamSettings
from direct.stream.strategies import Assign
from forebay.kafka.client.log_cuts import LogPoint
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.errors import RangeNotHeldError, UnreachableError
from forebay.model.values import TopicPartition
from forebay.process.clock import ManualClock

TP, OTHER = TopicPartition("t", 0), TopicPartition("u", 0)


class Stream:
    """A stream at offset 10 of ``t/0`` and ``u/0``, both chosen under leader epoch 3. It has no records to read.

    ``epoch``: of the present leaders. ``cut``: where the log of ``t/0`` was cut back, None: nowhere. ``begin``: first offset of
    ``u/0``, which the intake does not have while ``silent``.
    """

    def __init__(self, *, intake: bool = True) -> None:
        self.epoch, self.end = 3, 10
        self.cut: int | None = None
        self.begin, self.silent = 0, False
        self.compared: list[dict[TopicPartition, LogPoint]] = []
        own: Any = self
        self.planner = BatchPlanner(
            safe=own, strategy=Assign([TP, OTHER]), settings=StreamSettings("s", "memory://c"), timeout_seconds=1.0,
            commits=DirectCommits(""), clock=ManualClock(), admin=own, loop=own, kept=own if intake else None,
        )  # fmt: skip

    def ask(self, _: object) -> StreamProgress:
        at = {TP: 10, OTHER: 10}
        return StreamProgress(at, dict.fromkeys(at, "id"), dict.fromkeys(at, 3), dict.fromkeys(at, 1), None, True)

    def partitions(self, topics: Iterable[str]) -> set[TopicPartition]:
        return {TP, OTHER}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "id")

    def places(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.begin if tp == OTHER else 0 for tp in wanted}

    def log_ends(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, LogPoint]:
        return dict.fromkeys(wanted, LogPoint(self.end, self.epoch))

    def cuts(self, points: Mapping[TopicPartition, LogPoint]) -> dict[TopicPartition, int]:
        self.compared.append(dict(points))
        return {} if self.cut is None or TP not in points else {TP: self.cut}

    def kept(self, span: OffsetRange) -> list[tuple[int, int]]:
        if self.silent:
            raise UnreachableError("the intake's driver does not answer")
        return [(span.from_offset, span.until_offset)]


def test_positions_are_compared_once_under_each_other_leader() -> None:
    stream = Stream()
    assert stream.planner.plan(1) is None and stream.compared == []
    stream.epoch = 4
    for _ in range(3):
        assert stream.planner.plan(1) is None
    assert stream.compared == [dict.fromkeys((TP, OTHER), LogPoint(10, 3))]
    stream.epoch, stream.end = 5, 12
    planned = stream.planner.plan(1)
    assert planned is not None and {span.leader_epoch for span in planned.spans} == {5}
    assert len(stream.compared) == 2


def test_cut_ends_the_stream_that_reads_kafka_alone() -> None:
    stream = Stream(intake=False)
    stream.epoch, stream.end, stream.cut = 4, 30, 6
    with pytest.raises(RangeNotHeldError, match=r"t/0: the stream is at offset 10, .* was cut back to 6"):
        stream.planner.plan(1)


def test_cut_is_found_again_if_the_plan_that_found_it_failed() -> None:
    """INV-5."""
    stream = Stream()
    stream.epoch, stream.end, stream.cut, stream.begin, stream.silent = 4, 30, 6, 20, True
    assert stream.planner.plan(1) is None
    stream.silent = False
    with pytest.raises(RangeNotHeldError, match=r"t/0: the stream is at offset 10, .* was cut back to 6"):
        stream.planner.plan(2)
