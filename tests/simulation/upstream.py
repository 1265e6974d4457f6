"""The driver's requests to Kafka: each is a step, and may get no answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from forebay.kafka.client.admin import Committed
from forebay.kafka.client.group_offsets import Point
from forebay.model.values import TopicPartition
from tests.simulation.shells import pause

if TYPE_CHECKING:
    from tests.simulation.driver_process import DriverProcess

#: the steps before the answers of Kafka
KAFKA_STEPS = ("partitions", "topic-ids", "starts", "committed", "publish")


class SimulatedUpstream:
    """``forebay.sources.kind.Upstream`` over the simulated Kafka. ``published``: what this driver published as completed."""

    def __init__(self, driver: DriverProcess) -> None:
        self._driver = driver
        self._kafka = driver.world.kafka
        self.published: dict[TopicPartition, int] = {}

    def partitions(self, topics: Iterable[str] = (), pattern: str | None = None) -> set[TopicPartition]:
        pause("partitions")
        return set(self._kafka.partitions())

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        pause("topic-ids")
        return {topic: self._kafka.topic_id(topic) for topic in topics}

    listed_topic_ids = topic_ids

    def starting_offsets(
        self, policy: str | Mapping[str, int], partitions: Iterable[TopicPartition], group: str
    ) -> dict[TopicPartition, int]:
        pause("starts")
        return {tp: self._kafka.log(tp).low for tp in partitions}

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        raise AssertionError("only with --until-caught-up")

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        pause("committed")
        commits = self._kafka.group.committed
        return {tp: Committed(commits[tp].offset, -1, commits[tp].metadata) for tp in partitions if tp in commits}

    def publish(self, group: str, positions: Mapping[TopicPartition, Point]) -> dict[TopicPartition, str]:
        if positions:
            pause("publish")
            self._driver.world.invariants.published(self._driver, positions)
            self.published.update({tp: point.offset for tp, point in positions.items()})
        return {}

    def why_silent(self) -> str:
        return ""
