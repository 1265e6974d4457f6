"""The topic that the tests of the source read, and Spark with its own Kafka source."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from tests.conftest import missing
from tests.support.spark import java_classes
from tests.support.spark.jvm_spark import SparkProcess, require_jvm_spark
from tests.support.state.again import produce


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """Spark with its own Kafka source, for all tests of a process that compare with it."""
    require_jvm_spark(missing)
    options = {"spark.driver.extraJavaOptions": " ".join(java_classes.SPARK_OPTIONS)}
    with SparkProcess("kafka", tmp_path_factory.mktemp("jvm"), options) as jvm:
        yield jvm


@pytest.fixture
def topic(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> str:
    """Two partitions with 10 and 5 records, at one millisecond after the other from 1_700_000_000_000 on."""
    name = topic_name()
    kafka_broker.create_topic(name, 2)
    produce(kafka_broker.options, TopicPartition(name, 0), 10)
    produce(kafka_broker.options, TopicPartition(name, 1), 5)
    return name
