"""A task that is tried again reads by a consumer that fetched nothing yet; so does one that goes on after a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from direct.rdd import tasks
from direct.rdd.tasks import TaskReading, read_batches
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume import range_reader
from forebay.kafka.consume.range_reader import Reading
from forebay.kafka.consume.spans import OffsetRange
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.options.access import KafkaAccess
from forebay.model.values import TopicPartition
from pyspark_forebay.kafka import reading
from pyspark_forebay.options.source import SourceOptions, read_options
from tests.support.state.again import produce
from tests.support.state.columns import column_values

pytestmark = pytest.mark.kafka

Read = Callable[[int, int], list[int]]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    range_reader.forget_consumers()


@pytest.fixture
def tp(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> TopicPartition:
    topic = topic_name()
    kafka_broker.create_topic(topic, 1)
    produce(kafka_broker.options, TopicPartition(topic, 0), 40)
    return TopicPartition(topic, 0)


def attempt(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """What Spark says of the task from now on."""
    task = SimpleNamespace(attemptNumber=lambda: number)
    for module in (tasks, reading):
        monkeypatch.setattr(module, "TaskContext", SimpleNamespace(get=lambda: task))
        monkeypatch.setattr(module, "freeze_modules", lambda: None, raising=False)


def options(broker: KafkaBroker, topic: str, **more: str) -> SourceOptions:
    return read_options({"kafka.bootstrap.servers": broker.address, "subscribe": topic, **more}, streaming=False)


def of_direct_streams(broker: KafkaBroker, tp: TopicPartition) -> Read:
    how = TaskReading(KafkaAccess(broker.options, "g"), Reading())
    return lambda begin, end: [
        offset
        for batch in read_batches(how, 0, [tasks.encode(OffsetRange(tp.topic, tp.partition, begin, end))])
        for offset in column_values(batch, "offset")
    ]


def of_the_source(broker: KafkaBroker, tp: TopicPartition) -> Read:
    given = options(broker, tp.topic)
    return lambda begin, end: [
        offset
        for batch in reading.read_span(given, OffsetRange(tp.topic, tp.partition, begin, end))
        for offset in column_values(batch, "offset")
    ]


@pytest.mark.parametrize("reads", [of_direct_streams, of_the_source])
def test_task_that_is_tried_again_takes_no_consumer_that_was_used_before(
    kafka_broker: KafkaBroker,
    tp: TopicPartition,
    made: list[int],
    monkeypatch: pytest.MonkeyPatch,
    reads: Callable[[KafkaBroker, TopicPartition], Read],
) -> None:
    read = reads(kafka_broker, tp)
    attempt(monkeypatch, 0)
    assert read(0, 10) == list(range(10))
    assert read(10, 20) == list(range(10, 20))
    assert made == [0]
    attempt(monkeypatch, 1)
    assert read(20, 30) == list(range(20, 30))
    assert made == [0, 20]


def test_source_goes_on_after_a_loss_by_a_consumer_that_fetched_nothing_before_it(
    kafka_broker: KafkaBroker, tp: TopicPartition, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept consumer is where Kafka's log begins after the loss, and was made before it."""
    attempt(monkeypatch, 0)
    given = options(kafka_broker, tp.topic, failOnDataLoss="false")
    rows = [batch.num_rows for batch in reading.read_span(given, OffsetRange(tp.topic, tp.partition, 10, 20))]
    assert (sum(rows), made) == (10, [10])
    with KafkaAdmin(kafka_broker.options) as admin:
        admin.delete_records({tp: 20})
    left = [batch.num_rows for batch in reading.read_span(given, OffsetRange(tp.topic, tp.partition, 0, 40))]
    assert sum(left) == 20
    assert made[-1] == 20 and made.count(20) == 1
