"""What is asked of the broker beside polling."""

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
    """Another topic of the same name takes its place after the first question."""

    def __init__(self) -> None:
        self.ids = iter(["A", "B", "B", "B"])

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(topics, next(self.ids))

    def watermarks(self, tp: TopicPartition, timeout_seconds: float) -> tuple[int, int]:
        return 50, 90


def test_watermarks_of_one_topic_never_go_with_the_id_of_another() -> None:
    """INV-5: a new life at the first offset of the old topic would skip what the new one holds below it."""
    told: list[inp.Input] = []
    both = threading.Event()

    def tell(event: inp.Input) -> None:
        told.append(event)
        if len(told) == 2:
            both.set()

    with BrokerChannel(cast(Source, Recreated()), 1.0, tell) as line:
        line.send(act.Inspect(1, TopicPartition("t", 0)))
        line.send(act.Inspect(2, TopicPartition("t", 0)))
        assert both.wait(30)
    assert isinstance(told[0], inp.BrokerFailed) and "created again" in told[0].reason
    assert told[1] == inp.Inspected(2, 50, 90, "B")
