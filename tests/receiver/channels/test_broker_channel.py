"""Requests to the broker beside polling."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import cast

from forebay.model.values import TopicPartition
from receiver import actions as act
from receiver import inputs as inp
from receiver.channels.broker_channel import BrokerChannel
from receiver.sources.source import Source


class Recreated:
    """A broker where the topic is deleted and created again after the first request."""

    def __init__(self) -> None:
        self.ids = iter(["A", "B", "B", "B"])

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(topics, next(self.ids))

    def watermarks(self, tp: TopicPartition, timeout_seconds: float) -> tuple[int, int]:
        return 50, 90


def test_watermarks_are_never_paired_with_the_id_of_another_topic() -> None:
    """INV-5: a new incarnation at the first offset of the old topic would skip records of the new one below it."""
    inputs: list[inp.Input] = []
    both = threading.Event()

    def tell(event: inp.Input) -> None:
        inputs.append(event)
        if len(inputs) == 2:
            both.set()

    with BrokerChannel(cast(Source, Recreated()), 1.0, tell) as line:
        line.send(act.Inspect(1, TopicPartition("t", 0)))
        line.send(act.Inspect(2, TopicPartition("t", 0)))
        assert both.wait(30)
    assert isinstance(inputs[0], inp.BrokerFailed) and "created again" in inputs[0].reason
    assert inputs[1] == inp.Inspected(2, 50, 90, "B")
