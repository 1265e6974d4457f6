"""Starts by time: searched in the whole WAL first, then in Kafka."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from driver.journal.events import IncarnationStart
from driver.tracker.requests import FoundPartitions
from forebay import messages as m
from forebay.model.errors import LostBlockError, UsageError
from forebay.model.values import Block, TopicPartition
from pyspark_forebay.intake import client
from pyspark_forebay.intake import source as source_module
from pyspark_forebay.intake.source import IntakeSource
from pyspark_forebay.options.source import read_options
from tests.support.state.asked_intake import Taken, batch_of
from tests.support.state.tracked import TOPIC, Tracked, offsets
from wal.reading import ReadPlan


def test_missing_block_fails_the_search_for_a_time_or_is_skipped(
    taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-5."""
    taken.take()
    with pytest.raises(LostBlockError, match='failOnDataLoss" to "false"'):
        batch_of(startingTimestamp="1").partitions()
    with (
        caplog.at_level(logging.WARNING, "forebay.source"),
        pytest.raises(UsageError, match="t/0 has no record at or after 1 ms"),
    ):
        batch_of(startingTimestamp="1", failOnDataLoss="false").partitions()
    assert "failOnDataLoss is false: searching the next blocks" in caplog.text


class Brokers:
    """As ``KafkaAdmin``: topics have the id ``id-1``, and every place that is asked for is at ``at``."""

    def __init__(self, at: int) -> None:
        self._at = at

    def __call__(self, *_: Any, **__: Any) -> Brokers:
        return self

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "id-1")

    def places(self, asked: Mapping[TopicPartition, Any]) -> dict[TopicPartition, int]:
        return dict.fromkeys(asked, self._at)


@pytest.mark.parametrize(
    ("incarnations", "held", "at", "found"),
    [
        ([(1, 0, "id-1")], (1, 5), 2, (1, 2)),
        ([(1, 0, "id-1")], (1, 5), -1, None),  # no record is as young
        ([(1, 0, "id-0")], (1, 5), 2, None),  # another topic's offsets
        ([(1, 0, "id-0"), (2, 20, "id-1")], (1, 5), 2, None),  # the WAL has all of the newest incarnation
        ([(1, 0, "id-0"), (2, 20, "id-1")], (2, 25), 22, (2, 22)),
        (
            [(1, 0, "id-0"), (2, 20, "id-1")],
            (2, 25),
            3,
            (2, 20),
        ),  # offsets below its start belong to the older incarnation
    ],
)
def test_kafka_is_asked_only_about_the_newest_incarnation(
    incarnations: list[tuple[int, int, str]],
    held: tuple[int, int],
    at: int,
    found: tuple[int, int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-5: another topic's records would pass for ours."""
    monkeypatch.setattr("forebay.kafka.client.admin.KafkaAdmin", Brokers(at))
    options = read_options({"tracker": "http://127.0.0.1:1"}, streaming=False)
    views = tuple(
        m.IncarnationView(number=incarnation, start=start, topic_id=topic_id)
        for incarnation, start, topic_id in incarnations
    )
    tp = TopicPartition(TOPIC, 0)
    known = {tp: m.IntakePartition(topic=TOPIC, partition=0, position=99, incarnations=views)}
    answer = m.IntakeAnswer(stream="s", partitions=(), wal_url="", kafka={"bootstrap.servers": "b:1"})
    source = IntakeSource(options, client.Intake.of(options))
    assert source._in_kafka(answer, known, {tp: held}, {tp: "earliest"}) == ({} if found is None else {tp: found})


@pytest.mark.parametrize("when", ["before the block was named", "before the block was read"])
def test_records_cleaned_up_during_a_search_are_asked_of_kafka(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-2: the block existed when Kafka was asked about older records, and was deleted before it was searched."""
    monkeypatch.setattr("forebay.kafka.client.admin.KafkaAdmin", Brokers(2))
    options = read_options({"tracker": "http://127.0.0.1:1"}, streaming=False)
    tp = TopicPartition(TOPIC, 0)
    incarnation = m.IncarnationView(number=1, start=0, topic_id="id-1")
    known = {tp: m.IntakePartition(topic=TOPIC, partition=0, position=5, incarnations=(incarnation,))}
    answer = m.IntakeAnswer(stream="s", partitions=(), wal_url="", kafka={"bootstrap.servers": "b:1"})
    held = iter([0, 5, 5])

    def times(spans: Sequence[Any]) -> list[Any]:
        if when == "before the block was read":
            raise LostBlockError("no tier can read block r1-1-1")
        return [SimpleNamespace(block=None, reached=span.span.until_offset) for span in spans]

    played = SimpleNamespace(earliest=lambda _: {tp: (1, next(held))}, times=times)
    source = IntakeSource(options, cast(client.Intake, played))
    assert source._at_times(answer, known, {tp: 3}) == {tp: (1, 2)}


def test_time_is_searched_in_the_whole_wal_before_kafka(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-2: times need not increase, and Kafka may have deleted what the WAL still has."""
    taken.tracked.say(FoundPartitions((IncarnationStart(TOPIC, 1, 7, "id-1"),), taken.tracked.now_ms, "found"))
    for _ in range(2):
        taken.take(1)
    looked: list[int] = []

    def times_in(own: IntakeSource, answer: Any, partitions: Any, block: Block, wanted: Any) -> Any:
        (r,) = block.meta.ranges
        looked.append(r.from_offset)
        offsets = np.arange(r.from_offset, r.until_offset)
        return {r.tp: (offsets, offsets)}

    monkeypatch.setattr(IntakeSource, "_times_in", times_in)
    monkeypatch.setattr("forebay.kafka.client.admin.KafkaAdmin", Brokers(25))
    options = {"assign": f'{{"{TOPIC}": [1]}}', "kafka.bootstrap.servers": "b:1"}

    def begins(time: int, **more: str) -> int:
        (task,) = batch_of(**options, startingTimestamp=str(time), **more).partitions()
        parts = task.value.parts if task.value is not None else ()
        return sum(part.records for part in parts)

    assert begins(9) == 18 and looked == [7]
    looked.clear()
    assert begins(21) == 6 and looked == [7, 17]
    with pytest.raises(UsageError, match="t/1 has no record at or after 99 ms"):
        begins(99)
    assert begins(99, startingOffsetsByTimestampStrategy="latest") == 0
    assert begins(9, endingTimestamp="99") == 18


def test_search_for_a_time_reads_only_wanted_ranges_of_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: the planner reads one block for each partition, and a block may have ranges of many partitions."""
    t = Tracked(partitions=2)
    epoch = t.register()
    tokens = [t.claim(epoch, number).view.token for number in range(2)]
    block = t.block(epoch, [offsets(0, 10, token, partition=number) for number, token in enumerate(tokens)])
    passed_over: list[Any] = []

    def read_block(_: Any, plan: ReadPlan) -> Any:
        passed_over.append(plan.lost)
        raise LostBlockError("gone")

    monkeypatch.setattr(source_module, "read_block", read_block)
    options = read_options({"tracker": "http://127.0.0.1:1", "failOnDataLoss": "false"}, streaming=False)
    source = IntakeSource(options, client.Intake.of(options))
    answer = m.IntakeAnswer(stream="s", partitions=(), wal_url="")
    wanted = m.IncarnationSpan(topic=TOPIC, partition=1, incarnation=1, from_offset=0, until_offset=10)
    assert source._times_in(answer, {}, block, {wanted.tp: [wanted]}) == {}
    assert passed_over == [{"t/0[0, 10)"}]
