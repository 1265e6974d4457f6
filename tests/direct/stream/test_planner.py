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
from driver.tracker.requests import BeginSpans
from forebay.kafka.client.log_cuts import LogPoint
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.errors import RangeNotHeldError, UnknownTopicError, UnreachableError
from forebay.model.values import TopicPartition
from forebay.process.clock import ManualClock

TP, OTHER, NEW = TopicPartition("t", 0), TopicPartition("u", 0), TopicPartition("v", 0)


class Stream:
    """A stream at offset 10 of ``t/0`` and ``u/0``, both chosen under leader epoch 3. It has no records to read.

    ``epoch``: of the present leaders. ``cut``: where the log of ``t/0`` was cut back, None: nowhere. ``begin``: first offset of
    ``u/0``, which the intake does not have while ``silent``. ``ids``: topic → id, "id" if it is omitted. ``new``: a partition
    that brokers list besides these. ``unknown``: requests that reach a broker which does not know it. ``known``: whether the
    checkpoint has partitions.
    """

    def __init__(self, *, intake: bool = True) -> None:
        self.epoch, self.end = 3, 10
        self.cut: int | None = None
        self.begin, self.silent = 0, False
        self.options = {"bootstrap.servers": "b:9092"}
        self.group, self.reset = "", "earliest"
        self.ids: dict[str, str] = {}
        self.new: TopicPartition | None = None
        self.unknown: set[str] = set()
        self.begun: list[BeginSpans] = []
        self.known = True
        self.compared: list[dict[TopicPartition, LogPoint]] = []
        own: Any = self
        settings = StreamSettings("s", "memory://c", tracker="http://d:7080" if intake else None)
        self.planner = BatchPlanner(
            safe=own, strategy=Assign([TP, OTHER, NEW]), settings=settings, timeout_seconds=1.0,
            commits=DirectCommits(""), clock=ManualClock(), admin=own, loop=own, kept=own if intake else None,
        )  # fmt: skip

    def ask(self, request: object) -> StreamProgress | None:
        if isinstance(request, BeginSpans):
            self.begun.append(request)
            return None
        at = {TP: 10, OTHER: 10} if self.known else {}
        at |= {self.new: 0} if self.new is not None and self.begun else {}
        return StreamProgress(at, dict.fromkeys(at, "id"), dict.fromkeys(at, 3), dict.fromkeys(at, 1), None, self.known)

    def partitions(self, topics: Iterable[str]) -> set[TopicPartition]:
        return {TP, OTHER} if self.new is None else {TP, OTHER, self.new}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {topic: self.ids.get(topic, "id") for topic in topics}

    def listed_topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        if "" in (found := self.topic_ids(topics)).values():
            raise UnreachableError("a broker does not know the topic")
        return found

    def _check(self, request: str, wanted: Iterable[TopicPartition]) -> None:
        if request in self.unknown and any(tp == self.new for tp in wanted):
            raise UnknownTopicError(f"{request} of {self.new}: Kafka has no such topic or partition")

    def places(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self._check("places", wanted)
        return {tp: self.begin if tp == OTHER else 0 for tp in wanted}

    def log_ends(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, LogPoint]:
        self._check("ends", wanted)
        return dict.fromkeys(wanted, LogPoint(self.end, self.epoch))

    def cuts(self, points: Mapping[TopicPartition, LogPoint]) -> dict[TopicPartition, int]:
        self._check("cuts", points)
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


@pytest.mark.parametrize(("intake", "more"), [(False, ""), (True, " --tracker http://d:7080")])
def test_cut_ends_the_stream_with_the_command_that_shows_the_loss(intake: bool, more: str) -> None:
    """Without the tracker, the command would also offer what the intake still holds."""
    stream = Stream(intake=intake)
    stream.epoch, stream.end, stream.cut = 4, 30, 6
    with pytest.raises(RangeNotHeldError, match=r"t/0: the stream is at offset 10, .* was cut back to 6") as caught:
        stream.planner.plan(1)
    assert f"`forebay direct accept-loss memory://c s --broker b:9092{more}`" in str(caught.value)


def test_cut_is_found_again_if_the_plan_that_found_it_failed() -> None:
    """INV-5."""
    stream = Stream()
    stream.epoch, stream.end, stream.cut, stream.begin, stream.silent = 4, 30, 6, 20, True
    assert stream.planner.plan(1) is None
    stream.silent = False
    with pytest.raises(RangeNotHeldError, match=r"t/0: the stream is at offset 10, .* was cut back to 6"):
        stream.planner.plan(2)


@pytest.mark.parametrize("request_kind", ["places", "ends"])
def test_partition_that_another_broker_does_not_know_yet_is_begun_by_a_later_plan(
    request_kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A new topic is known to some brokers first; one that is being deleted no longer to all."""
    stream = Stream()
    stream.new, stream.unknown = NEW, {request_kind}
    assert stream.planner.plan(1) is None
    assert f"{request_kind} of v/0: Kafka has no such topic or partition, although a broker listed it" in caplog.text
    assert bool(stream.begun) == (request_kind == "ends")
    stream.unknown = set()
    planned = stream.planner.plan(2)
    assert planned is not None and {span.tp for span in planned.spans} == {NEW}
    assert [begun.offsets for begun in stream.begun] == [{"v/0": 0}]


def test_log_that_no_broker_knows_any_more_is_compared_by_a_later_plan() -> None:
    stream = Stream()
    stream.new = NEW
    assert stream.planner.plan(1) is not None
    stream.epoch, stream.unknown = 4, {"cuts"}
    assert stream.planner.plan(2) is None and stream.compared == []
    stream.unknown = set()
    assert stream.planner.plan(3) is not None and len(stream.compared) == 1


@pytest.mark.parametrize("own", ["", "other"])
def test_partition_begins_when_brokers_agree_about_its_topic(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-5: without the id of its records, the stream would not notice that the topic is created again."""
    stream = Stream()
    stream.new, stream.ids = NEW, {"v": own}
    places = stream.places

    def created_again(wanted: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        if NEW in wanted and own:
            stream.ids = {}
        return places(wanted)

    monkeypatch.setattr(stream, "places", created_again)
    assert stream.planner.plan(1) is None and stream.begun == []
    stream.ids = {}
    assert stream.planner.plan(2) is not None and [begun.topic_ids for begun in stream.begun] == [{"v": "id"}]


def test_start_of_a_new_stream_says_which_partition_a_broker_does_not_know() -> None:
    """Nothing else says where its partitions begin."""
    stream = Stream()
    stream.known, stream.new, stream.unknown = False, NEW, {"places"}
    with pytest.raises(
        UnreachableError, match="places of v/0: Kafka has no such topic or partition, although a broker"
    ):
        stream.planner.begin()
    stream.known = True
    stream.planner.begin()
    assert stream.begun == []
