"""Batch and streaming readers against a real Kafka, called as Spark's planner calls them, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from confluent_kafka import Producer

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.log_cuts import LogPoint
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.registry.client import AVRO, RegisteredSchema, RegistryAccess
from forebay.model.errors import RangeNotHeldError, UnknownTopicError, UsageError
from forebay.model.records import DATAFRAME_SCHEMA
from forebay.model.values import TopicPartition
from forebay.process.clock import ManualClock
from forebay.schemas.columns import ColumnDecoding
from pyspark_forebay.decoding import Decoding
from pyspark_forebay.kafka.batch import BatchReader
from pyspark_forebay.kafka.questions import Questions
from pyspark_forebay.kafka.stream import StreamReader
from tests.pyspark_forebay.kafka.readers import ALL, offsets, options, ranges, rows, streaming
from tests.support.kafka.polling import PATIENCE_SECONDS, await_markers
from tests.support.state.again import produce

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


#: options → what a batch query reads of partitions 0 and 1 (10 and 5 records)
STARTING_POINTS: list[tuple[Mapping[str, str], dict[int, list[tuple[int, int]]]]] = [
    ({}, {0: [(0, 10)], 1: [(0, 5)]}),
    ({"startingOffsets": '{"T": {"0": 3, "1": -2}}'}, {0: [(3, 10)], 1: [(0, 5)]}),
    ({"endingOffsets": '{"T": {"0": 3, "1": -1}}'}, {0: [(0, 3)], 1: [(0, 5)]}),
    ({"startingTimestamp": "1700000000004"}, {0: [(4, 10)], 1: [(4, 5)]}),
    ({"startingOffsetsByTimestamp": '{"T": {"0": 1700000000008, "1": 0}}'}, {0: [(8, 10)], 1: [(0, 5)]}),
    (
        {"startingTimestamp": "1700000000007", "startingOffsetsByTimestampStrategy": "latest"},
        {0: [(7, 10)]},
    ),
    ({"endingTimestamp": "1700000000007"}, {0: [(0, 7)], 1: [(0, 5)]}),
    ({"endingOffsetsByTimestamp": '{"T": {"0": 1, "1": 1700000000002}}'}, {1: [(0, 2)]}),
    ({"assign": '{"T": [1]}'}, {1: [(0, 5)]}),
    ({"subscribePattern": "T"}, {0: [(0, 10)], 1: [(0, 5)]}),
    ({"subscribePattern": ".*T?no-such"}, {}),
    ({"minPartitions": "3"}, {0: [(0, 5), (5, 10)], 1: [(0, 5)]}),
    ({"maxRecordsPerPartition": "4"}, {0: [(0, 3), (3, 6), (6, 10)], 1: [(0, 2), (2, 5)]}),
]


def test_batch_query_reads_between_its_limits(kafka_broker: KafkaBroker, topic: str) -> None:
    for given, expected in STARTING_POINTS:
        reader = BatchReader(options(kafka_broker, topic, **given))
        assert ranges(reader) == expected, given


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"startingOffsets": '{"T": {"0": 3}}'}, "missing: T/1"),
        ({"startingOffsets": '{"T": {"0": 3, "1": 0, "7": 0}}'}, "not read by this query: T/7"),
        ({"startingTimestamp": "1700000000007"}, "T/1 has no record at or after 1700000000007"),
        (
            {"startingOffsets": '{"T": {"0": 9, "1": 0}}', "endingOffsets": '{"T": {"0": 4, "1": 5}}'},
            "beyond its ending",
        ),
    ],
)
def test_invalid_start_or_end_is_refused(
    kafka_broker: KafkaBroker, topic: str, given: dict[str, str], word: str
) -> None:
    with pytest.raises(UsageError) as caught:
        BatchReader(options(kafka_broker, topic, **given)).partitions()
    assert word.replace("T/", f"{topic}/") in str(caught.value)


def test_error_names_a_missing_topic(kafka_broker: KafkaBroker, topic_name: Any) -> None:
    name = topic_name()
    with pytest.raises(UnknownTopicError, match=f"Kafka has no topic {name}"):
        BatchReader(options(kafka_broker, name, fetchOffset_numRetries="1")).partitions()


def test_missing_assigned_partition_is_logged_once(
    kafka_broker: KafkaBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-5: Spark's source does not report it."""
    reader = streaming(kafka_broker, topic, assign='{"T": [1, 9]}', startingOffsets="earliest")
    end = reader.latestOffset({}, ALL)
    assert rows(reader, {}, end) and reader.latestOffset(end, ALL) == end
    assert caplog.text.count(f"option assign names {topic}/9, which Kafka does not have") == 1


@pytest.mark.parametrize("starting", ["earliest", '{"T": {"0": -2, "1": -2}}'])
def test_error_names_a_partition_deleted_between_two_requests(
    kafka_broker: KafkaBroker, topic: str, starting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch query is refused; a streaming query reports a loss, or continues without it."""
    real = Questions.beginnings

    def without(self: Questions, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: offset for tp, offset in real(self, partitions).items() if tp.partition == 0}

    monkeypatch.setattr(Questions, "beginnings", without)
    more = options(kafka_broker, topic, startingOffsets=starting)
    with pytest.raises(UnknownTopicError, match=f"{topic}/1 disappeared while the query was planned"):
        BatchReader(more).partitions()
    for loses in ("true", "false"):
        reader = StreamReader({**more, "failOnDataLoss": loses})
        end = reader.latestOffset({}, ALL)
        if loses == "true":
            with pytest.raises(RangeNotHeldError, match=f"Cannot find earliest offsets of {topic}/1"):
                reader.partitions({}, end)
        else:
            assert ranges(reader, {}, end) == {0: [(0, 10)]}
        reader.stop()


def test_rows_have_sparks_columns_nulls_and_headers(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> None:
    topic = topic_name()
    kafka_broker.create_topic(topic, 1)
    producer = Producer({**kafka_broker.options})
    producer.produce(topic, None, b"k", 0, timestamp=1_700_000_000_123)
    producer.produce(topic, b"v", None, 0, headers=[("a", b"1"), ("a", None)], timestamp=1_700_000_000_124)
    producer.flush(PATIENCE_SECONDS)
    reader = BatchReader(options(kafka_broker, topic, includeHeaders="true"))
    (part,) = reader.partitions()
    (batch,) = reader.read(part)
    assert batch.schema.equals(DATAFRAME_SCHEMA(True))
    first, second = batch.to_pylist()
    assert (first["key"], first["value"], first["headers"], first["topic"]) == (b"k", None, None, topic)
    assert first["timestamp"].timestamp() == 1_700_000_000.123 and first["timestampType"] == 0
    assert (second["key"], second["value"]) == (None, b"v")
    assert second["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    (plain,) = BatchReader(options(kafka_broker, topic)).read(part)
    assert plain.schema.equals(DATAFRAME_SCHEMA(False))


def test_header_with_a_schema_is_read_although_rows_keep_no_headers(
    kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    topic = topic_name()
    kafka_broker.create_topic(topic, 1)
    producer = Producer({**kafka_broker.options})
    producer.produce(topic, b"\2x", partition=0, headers=[("a", b"1"), ("__value_schema_id", b"\0\0\0\0\1")])
    producer.produce(topic, b"\0\0\0\0\1\2y", partition=0, headers=[("a", b"1")])
    producer.flush(PATIENCE_SECONDS)
    schema = RegisteredSchema(1, AVRO, '"string"')
    column = ColumnDecoding("value", schema, RegistryAccess("http://none"))
    for headers, kept in ((False, 0), (True, 2)):
        decoding = Decoding((column,), False, headers)
        found = rows(BatchReader(options(kafka_broker, topic), decoding))
        assert [row["value"] for row in found] == ["x", "y"]
        assert sum({"key": "a", "value": b"1"} in row.get("headers", []) for row in found) == kept


def test_aborted_records_are_read_only_with_read_uncommitted(
    kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    topic = topic_name()
    kafka_broker.create_topic(topic, 1)
    producer = Producer({**kafka_broker.options, "transactional.id": topic})
    producer.init_transactions(PATIENCE_SECONDS)
    for value, commit in ((b"kept", True), (b"aborted", False), (b"kept too", True)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(PATIENCE_SECONDS)
        producer.commit_transaction() if commit else producer.abort_transaction()
    await_markers(kafka_broker.options, [TopicPartition(topic, 0)])
    read = {
        isolation: [row["value"] for row in rows(BatchReader(options(kafka_broker, topic, **given)))]
        for isolation, given in (("default", {}), ("committed", {"kafka_isolation_level": "read_committed"}))
    }
    assert read == {"default": [b"kept", b"aborted", b"kept too"], "committed": [b"kept", b"kept too"]}


# ---- streaming -------------------------------------------------------------------------------------------------------


def test_start_is_determined_once_and_stored_in_the_first_end(
    kafka_broker: KafkaBroker, topic: str, admin: KafkaAdmin
) -> None:
    """Spark asks for the start again when it runs the first batch again: it is the same, whatever Kafka has gained or
    deleted."""
    reader = streaming(kafka_broker, topic, startingOffsets="earliest")
    start = reader.initialOffset()
    end = json.loads(json.dumps(reader.latestOffset(start, ALL)))
    assert end["#start"] == {topic: {"0": 0, "1": 0}} and end[topic] == {"0": 10, "1": 5}
    produce(kafka_broker.options, TopicPartition(topic, 1), 2)
    again = streaming(kafka_broker, topic, startingOffsets="latest")  # as after a crash, with other options even
    assert ranges(again, again.initialOffset(), end) == {0: [(0, 10)], 1: [(0, 5)]}
    assert ranges(again, end, again.latestOffset(end, ALL)) == {1: [(5, 7)]}


def test_query_started_at_latest_keeps_its_start_without_records(kafka_broker: KafkaBroker, topic: str) -> None:
    reader = streaming(kafka_broker, topic)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert end != reader.initialOffset()  # so Spark runs the batch, and writes its end first
    assert reader.partitions({}, end) == []
    assert reader.latestOffset(end, ALL) == end and json.dumps(reader.latestOffset(end, ALL)) == json.dumps(end)
    produce(kafka_broker.options, TopicPartition(topic, 0), 3)
    again = streaming(kafka_broker, topic)
    later = again.latestOffset(end, ALL)
    assert offsets(again, end, later) == {0: [10, 11, 12]}
    assert "#start" not in later and again.reportLatestOffset() == {topic: {"0": 13, "1": 5}}


def test_trigger_with_few_offsets_is_one_task_unless_min_partitions_is_set(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    def tasks(**more: str) -> list[list[tuple[int, int]]]:
        reader = streaming(kafka_broker, topic, startingOffsets="earliest", **more)
        found = reader.partitions({}, reader.latestOffset({}, ALL))
        return [[(span.partition, span.size) for span in part.value] for part in found]

    assert tasks() == [[(0, 10), (1, 5)]]
    assert tasks(minPartitions="1") == tasks(maxRecordsPerPartition="10") == [[(0, 10)], [(1, 5)]]
    reader = streaming(kafka_broker, topic, startingOffsets="earliest")
    read = offsets(reader, {}, reader.latestOffset({}, ALL))
    assert read == {0: list(range(10)), 1: list(range(5))}


def test_limit_is_divided_by_lag(kafka_broker: KafkaBroker, topic: str) -> None:
    reader = streaming(kafka_broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger="6")
    first = reader.latestOffset({}, reader.getDefaultReadLimit())
    assert ranges(reader, {}, first) == {0: [(0, 4)], 1: [(0, 2)]}
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert ranges(reader, first, second) == {0: [(4, 8)], 1: [(2, 4)]}
    assert ranges(reader, second, reader.latestOffset(second, ALL)) == {0: [(8, 10)], 1: [(4, 5)]}


def test_trigger_waits_for_min_offsets_or_the_delay(kafka_broker: KafkaBroker, topic: str) -> None:
    clock = ManualClock()
    given = options(kafka_broker, topic, minOffsetsPerTrigger="4", maxTriggerDelay="10s")
    reader = StreamReader(given, clock)
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset({}, limit)  # the first trigger never waits
    produce(kafka_broker.options, TopicPartition(topic, 0), 3)
    assert reader.latestOffset(first, limit) == first
    clock.advance(10)
    second = reader.latestOffset(first, limit)
    assert ranges(reader, first, second) == {0: [(10, 13)]}
    produce(kafka_broker.options, TopicPartition(topic, 1), 4)
    assert ranges(reader, second, reader.latestOffset(second, limit)) == {1: [(5, 9)]}


def test_available_now_stops_at_the_end_at_its_beginning(kafka_broker: KafkaBroker, topic: str) -> None:
    given = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "10", "minOffsetsPerTrigger": "10"}
    reader = streaming(kafka_broker, topic, **given)
    reader.prepareForTriggerAvailableNow()
    produce(kafka_broker.options, TopicPartition(topic, 0), 5)
    at, read, batches = reader.initialOffset(), 0, 0
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        read += len(rows(reader, at, end))
        at, batches = end, batches + 1
    assert (read, batches) == (15, 2)


def test_available_now_reads_nothing_if_it_starts_at_or_after_its_target(kafka_broker: KafkaBroker, topic: str) -> None:
    by_time = {"startingTimestamp": "1740000000000", "startingOffsetsByTimestampStrategy": "latest"}
    for given, young in (({}, 1_730_000_000_000), (by_time, 1_750_000_000_000)):
        reader = streaming(kafka_broker, topic, **given)
        reader.prepareForTriggerAvailableNow()
        produce(kafka_broker.options, TopicPartition(topic, 0), 1)
        produce(kafka_broker.options, TopicPartition(topic, 0), 1, timestamp=young)
        end = reader.latestOffset({}, reader.getDefaultReadLimit())
        assert reader.partitions({}, end) == [] and reader.latestOffset(end, ALL) == end


def test_end_below_the_offset_reached_is_asked_again(
    kafka_broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a change of leaders. An end that stays is a loss."""
    asked: list[int] = []
    real = KafkaAdmin.log_ends

    def ends(self: KafkaAdmin, partitions: Any) -> dict[TopicPartition, LogPoint]:
        asked.append(1)
        return {tp: end._replace(offset=end.offset - (asked == [1])) for tp, end in real(self, partitions).items()}

    reader = streaming(kafka_broker, topic)
    start = {topic: {"0": 10, "1": 5}}  # as Spark's Kafka source writes it
    monkeypatch.setattr(KafkaAdmin, "log_ends", ends)
    end = reader.latestOffset(start, ALL)
    assert end[topic] == start[topic] and len(asked) == 2
    cut = reader.latestOffset({topic: {"0": 10, "1": 7}}, ALL)
    with pytest.raises(RangeNotHeldError, match="offset was changed from 7 to 5"):
        reader.partitions({topic: {"0": 10, "1": 7}}, cut)
    with pytest.raises(UsageError, match="another source planned"):
        reader.partitions({}, start)


def test_target_of_available_now_below_the_offset_reached_is_asked_again(
    kafka_broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without failOnDataLoss the query would continue from there, and read records twice."""
    real = KafkaAdmin.log_ends
    reader = streaming(kafka_broker, topic, failOnDataLoss="false")
    lower = lambda *given: {tp: end._replace(offset=end.offset - 1) for tp, end in real(*given).items()}  # noqa: E731
    monkeypatch.setattr(KafkaAdmin, "log_ends", lower)
    reader.prepareForTriggerAvailableNow()
    monkeypatch.undo()
    start = reader.latestOffset({topic: {"0": 8, "1": 4}}, ALL)
    assert start[topic] == {"0": 9, "1": 4}
    read = {topic: {"0": 10, "1": 4}}
    assert reader.latestOffset(read, ALL)[topic] == {"0": 10, "1": 5}
