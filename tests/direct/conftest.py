from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.processes.direct_runs import Runs
from tests.support.state.again import produce


@pytest.fixture
def runs(kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[Runs]:
    runs = Runs(kafka_broker.options, tmp_path / "checkpoint")
    yield runs
    for stream in runs.streams:
        stream.stop()
        assert stream._ending.wait(PATIENCE_SECONDS)


@pytest.fixture
def tps(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> list[TopicPartition]:
    topic = topic_name()
    kafka_broker.create_topic(topic, 2)
    produce(kafka_broker.options, TopicPartition(topic, 0), 30)
    produce(kafka_broker.options, TopicPartition(topic, 1), 10)
    return [TopicPartition(topic, number) for number in range(2)]
