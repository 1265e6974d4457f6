"""Reading a topic to its current end, with and without native code."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forebay.kafka.consume.whole_topic import read_topic
from forebay.kafka.embedded.broker import KafkaBroker, MockBroker
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from tests.support.kafka.polling import PATIENCE_SECONDS, partitions_of
from tests.support.state.again import produce
from tests.support.state.columns import column_values

pytestmark = pytest.mark.usefixtures("each_way")


@pytest.fixture
def topic(mock_broker: MockBroker, topic_name: Callable[[], str]) -> str:
    name = topic_name()
    mock_broker.create_topic(name)
    return name


def test_each_partition_is_read_in_order_from_its_begin_to_its_end(mock_broker: MockBroker, topic: str) -> None:
    """A partition without a begin is read from its first offset; one without records has no batch."""
    one, two, *_ = partitions_of(topic)
    produce(mock_broker.options, one, 12_000)  # more than a fetch returns
    produce(mock_broker.options, two, 50)
    found: dict[TopicPartition, list[int]] = {}
    for tp, batch in read_topic(mock_broker.options, topic, topic, {two: 20}, PATIENCE_SECONDS):
        assert column_values(batch, "value") == [b"value %d" % offset for offset in column_values(batch, "offset")]
        assert set(column_values(batch, "topic")) == {topic}
        found.setdefault(tp, []).extend(column_values(batch, "offset"))
    assert found == {one: list(range(12_000)), two: list(range(20, 50))}


def test_record_that_arrives_after_the_begin_of_the_reading_is_left_out(mock_broker: MockBroker, topic: str) -> None:
    one, *_ = partitions_of(topic)
    produce(mock_broker.options, one, 12_000)
    reading = read_topic(mock_broker.options, topic, topic, {}, PATIENCE_SECONDS)
    offsets = column_values(next(reading)[1], "offset")
    produce(mock_broker.options, one, 100)
    for _, batch in reading:
        offsets += column_values(batch, "offset")
    assert offsets == list(range(12_000))


@pytest.mark.kafka
def test_topic_that_does_not_exist_is_named(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        list(read_topic(kafka_broker.options, topic_name(), "g", {}, PATIENCE_SECONDS))
