"""Commits from outside a group, with a scripted client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.client import group_offsets
from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.client.group_offsets import GroupOffsets
from forebay.model.values import TopicPartition
from forebay.process.clock import ManualClock
from tests.support.kafka.polling import Commit

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
Answer = tuple[KafkaError | None, dict[TopicPartition, int]]


class Scripted:
    """Answers polls with ``answers`` in order; then time passes without an answer."""

    def __init__(self, answers: list[Answer], clock: ManualClock) -> None:
        self.answers = answers
        self.clock = clock
        self.asked: list[dict[TopicPartition, int]] = []
        self.on_commit: Callable[[KafkaError | None, list[WirePartition]], None] = lambda error, wire: None

    def __call__(self, options: dict[str, Any], logger: object) -> Scripted:
        self.on_commit = options["on_commit"]
        return self

    def commit(self, *, offsets: list[WirePartition], asynchronous: bool) -> None:
        assert asynchronous, "the other way has no time-out"
        self.asked.append({TopicPartition(one.topic, one.partition): one.offset for one in offsets})

    def poll(self, seconds: float) -> None:
        self.clock.advance(seconds)
        if self.answers:
            error, offsets = self.answers.pop(0)
            self.on_commit(error, [WirePartition(tp.topic, tp.partition, at) for tp, at in offsets.items()])


def play(monkeypatch: pytest.MonkeyPatch, *answers: Answer) -> tuple[GroupOffsets, Scripted]:
    clock = ManualClock()
    client = Scripted(list(answers), clock)
    monkeypatch.setattr(group_offsets, "Consumer", client)
    return GroupOffsets({}, group="g", clock=clock, errors=ClientErrors()), client


def test_late_answer_of_earlier_commit_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = KafkaError(KafkaError.UNKNOWN_MEMBER_ID)
    group, _ = play(monkeypatch, (None, {ONE: 3}), (refused, {ONE: 4}))
    assert [error.code() for error in group.commit({ONE: Commit(4)}, 5.0).values()] == [KafkaError.UNKNOWN_MEMBER_ID]


def test_commit_without_answer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6."""
    group, client = play(monkeypatch)
    with pytest.raises(KafkaException) as caught:
        group.commit({ONE: Commit(4)}, 5.0)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT
    assert client.clock.monotonic() == pytest.approx(5.0, abs=0.1)


def test_only_errors_of_single_partitions_cause_single_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent, member = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), KafkaError(KafkaError.UNKNOWN_MEMBER_ID)
    both = {ONE: Commit(1), TWO: Commit(2)}
    group, client = play(monkeypatch, (absent, {ONE: 1, TWO: 2}), (None, {ONE: 1}), (absent, {TWO: 2}))
    assert group.commit(both, 5.0).keys() == {TWO}
    assert client.asked == [{ONE: 1, TWO: 2}, {ONE: 1}, {TWO: 2}]
    group, client = play(monkeypatch, (member, {ONE: 1, TWO: 2}))
    assert group.commit(both, 5.0).keys() == {ONE, TWO}
    assert len(client.asked) == 1
