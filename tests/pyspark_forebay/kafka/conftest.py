"""Readers of Kafka: their shared consumers are closed after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.range_reader import forget_consumers
from forebay.kafka.embedded.broker import KafkaBroker


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    forget_consumers()


@pytest.fixture
def admin(kafka_broker: KafkaBroker) -> Iterator[KafkaAdmin]:
    with KafkaAdmin(kafka_broker.options) as admin:
        yield admin
