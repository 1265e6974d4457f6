"""The topic that the tests of the source read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from tests.support.again import produce


@pytest.fixture
def topic(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> str:
    """Two partitions with 10 and 5 records, at one millisecond after the other from 1_700_000_000_000 on."""
    name = topic_name()
    kafka_broker.create_topic(name, 2)
    produce(kafka_broker.options, TopicPartition(name, 0), 10)
    produce(kafka_broker.options, TopicPartition(name, 1), 5)
    return name
