"""Batch and streaming readers against a real Kafka, called as Spark's planner calls them, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql.streaming.datasource import ReadAllAvailable

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.log_cuts import LogPoint
from forebay.kafka.consume.range_reader import forget_consumers
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
from tests.support.again import produce
from tests.support.kafka import PATIENCE_SECONDS, await_markers
from tests.support.log_cut import log_to_cut, log_to_return_to

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ALL = ReadAllAvailable()
Partitions = dict[int, tuple[int, int]]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    forget_consumers()


@pytest.fixture
def admin(kafka_broker: KafkaBroker) -> Iterator[KafkaAdmin]:
    with KafkaAdmin(kafka_broker.options) as admin:
        yield admin


def options(broker: KafkaBroker, topic: str, **more: str) -> dict[str, str]:
    """``more``: with ``T`` for the topic; ``fetch_`` and ``kafka_`` stand for the prefixes."""
    return {
        "kafka.bootstrap.servers": broker.options["bootstrap.servers"],
        "fetchOffset.retryIntervalMs": "100",
        **({} if {"assign", "subscribePattern"} & set(more) else {"subscribe": topic}),
        **{name.replace("_", "."): value.replace("T", topic) for name, value in more.items()},
    }


def ranges(reader: BatchReader | StreamReader, *between: dict[str, Any]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for part in reader.partitions(*between):
        for span in part.value:
            found.setdefault(span.partition, []).append((span.from_offset, span.until_offset))
    return found


def rows(reader: BatchReader | StreamReader, *between: dict[str, Any]) -> list[dict[str, Any]]:
    copy = pickle.loads(pickle.dumps(reader))  # as a task has it
    return [
        row
        for part in reader.partitions(*between)
        for batch in copy.read(pickle.loads(pickle.dumps(part)))
        for row in batch.to_pylist()
    ]


def offsets(reader: BatchReader | StreamReader, *between: dict[str, Any]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in rows(reader, *between):
        found.setdefault(row["partition"], []).append(row["offset"])
    return found


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


def streaming(broker: KafkaBroker, topic: str, **more: str) -> StreamReader:
    return StreamReader(options(broker, topic, **more))


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


# ---- data loss -------------------------------------------------------------------------------------------------------


def test_deleted_offsets_end_the_query_or_are_omitted(
    kafka_broker: KafkaBroker, topic: str, admin: KafkaAdmin, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-5: of a range that partly exists, the remaining records are read, and the log names the others."""
    strict = streaming(kafka_broker, topic, startingOffsets="earliest")
    end = strict.latestOffset({}, ALL)
    admin.delete_records({TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 5})
    with pytest.raises(RangeNotHeldError, match=r"0\[0, 10\).*holds offsets 7 to 10.*failOnDataLoss"):
        rows(strict, {}, end)
    lenient = streaming(kafka_broker, topic, failOnDataLoss="false")
    assert offsets(lenient, {}, end) == {0: [7, 8, 9]}
    for lost in (f"{topic}/0[0, 7)", f"{topic}/1[0, 5)"):
        assert f"continuing with the remaining records. Lost: {lost}\n" in caplog.text
    with pytest.raises(RangeNotHeldError):
        rows(BatchReader(options(kafka_broker, topic, startingOffsets='{"T": {"0": 2, "1": 5}}')))
    given = {"startingOffsets": '{"T": {"0": 2, "1": 5}}', "failOnDataLoss": "false"}
    assert offsets(BatchReader(options(kafka_broker, topic, **given))) == {0: [7, 8, 9]}


def test_offsets_that_kafka_holds_and_does_not_return_are_always_an_error(
    kafka_broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-5: for example if a broker that has just started does not know the topic's id yet."""
    reader = streaming(kafka_broker, topic, startingOffsets="earliest", failOnDataLoss="false")
    end = reader.latestOffset({}, ALL)

    def refused(*_: object, **__: object) -> Iterator[None]:
        raise RangeNotHeldError("not now")
        yield

    monkeypatch.setattr("pyspark_forebay.kafka.reading.read_range", refused)
    with pytest.raises(RangeNotHeldError, match="not now"):
        rows(reader, {}, end)
    monkeypatch.setattr(KafkaAdmin, "topic_ids", lambda self, topics: dict.fromkeys(topics, ""))
    with pytest.raises(RangeNotHeldError, match="not now"):
        rows(reader, {}, end)


def test_log_that_was_cut_back_and_has_grown_beyond_the_offset_reached_is_data_loss(
    killed_broker: KafkaBroker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """INV-5: Spark's Kafka source would continue, and miss the records of the new leader below the offset."""
    broker, tp = killed_broker, TopicPartition(topic_name(), 0)
    older = log_to_cut(broker, tp, tmp_path / "older")
    strict = streaming(broker, tp.topic, startingOffsets="earliest")
    first = json.loads(json.dumps(strict.latestOffset({}, ALL)))
    batch = BatchReader(options(broker, tp.topic))
    planned = batch.partitions()
    assert len(rows(strict, {}, first)) == 100
    strict.stop()
    forget_consumers()
    older.cut_back()
    produce(broker.options, tp, 120, key=b"later")

    strict = streaming(broker, tp.topic, startingOffsets="earliest")
    second = strict.latestOffset(first, ALL)
    assert (first[tp.topic], second[tp.topic]) == ({"0": 100}, {"0": 200})
    with pytest.raises(RangeNotHeldError, match=f"{tp} was cut back to 80, .*failOnDataLoss"):
        strict.partitions(first, second)
    with pytest.raises(RangeNotHeldError, match=r"\[0, 100\): Kafka's log was cut back to offset 80.*failOnDataLoss"):
        rows(strict, {}, first)  # the first batch is run again
    with pytest.raises(RangeNotHeldError, match="cut back to offset 80"):
        list(batch.read(planned[0]))
    lenient = streaming(broker, tp.topic, startingOffsets="earliest", failOnDataLoss="false")
    assert [row["key"] for row in rows(lenient, {}, first)] == [b"kept"] * 80
    assert [(row["offset"], row["key"]) for row in rows(lenient, first, second)] == [
        (offset, b"later") for offset in range(80, 200)
    ]
    third = lenient.latestOffset(second, ALL)
    assert third == second and offsets(strict, first | {"#leader-epochs": {}}, second) == {0: list(range(100, 200))}
    strict.stop()
    lenient.stop()


def test_leader_that_leads_again_after_another_one_is_data_loss(
    killed_broker: KafkaBroker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """INV-5: two unclean elections. The first leader's log is longer than the offset that the second leader's log had reached."""
    broker, tp = killed_broker, TopicPartition(topic_name(), 0)
    first_leader = log_to_return_to(broker, tp, tmp_path)
    strict, lenient = (
        streaming(broker, tp.topic, startingOffsets="earliest", failOnDataLoss=fail) for fail in ("true", "false")
    )
    first = strict.latestOffset({}, ALL)
    lenient.latestOffset(first, ALL)
    produce(broker.options, tp, 10, key=b"cut off too")
    second = json.loads(json.dumps(strict.latestOffset(first, ALL)))
    assert (first[tp.topic], second[tp.topic]) == ({"0": 80}, {"0": 90})
    first_leader.cut_back()
    produce(broker.options, tp, 20, key=b"later")
    third = strict.latestOffset(second, ALL)
    assert third[tp.topic] == {"0": 120}
    with pytest.raises(RangeNotHeldError, match=f"{tp} was cut back to 80, .*failOnDataLoss"):
        strict.partitions(second, third)
    assert [row["key"] for row in rows(lenient, second, third)] == [b"cut off"] * 20 + [b"later"] * 20
    strict.stop()
    lenient.stop()


def test_deleted_topic_is_not_compared_with_a_log(kafka_broker: KafkaBroker, topic: str, admin: KafkaAdmin) -> None:
    """A leader that no longer exists would be asked until the batch fails, also without failOnDataLoss."""
    reader = streaming(kafka_broker, topic, startingOffsets="earliest", failOnDataLoss="false")
    first = reader.latestOffset({}, ALL)
    produce(kafka_broker.options, TopicPartition(topic, 0), 3)
    second = reader.latestOffset(first, ALL) | {"#leader-epochs": {topic: {"0": 7, "1": 7}}}
    assert first["#leader-epochs"] == {topic: {"0": 0, "1": 0}}
    admin.delete_topic(topic)
    assert ranges(reader, first, second) == {0: [(10, 13)]}


def test_end_beyond_the_log_is_data_loss(kafka_broker: KafkaBroker, topic: str) -> None:
    given = {"endingOffsets": '{"T": {"0": 12, "1": 5}}'}
    with pytest.raises(RangeNotHeldError, match="log ends at offset 10"):
        rows(BatchReader(options(kafka_broker, topic, **given)))
    lenient = BatchReader(options(kafka_broker, topic, failOnDataLoss="false", **given))
    assert offsets(lenient) == {0: list(range(10)), 1: list(range(5))}


def test_topic_created_again_is_recognized_by_its_id(kafka_broker: KafkaBroker, topic: str, admin: KafkaAdmin) -> None:
    """The new topic has as many records; Spark's Kafka source would return wrong records, or none."""
    strict = streaming(kafka_broker, topic, startingOffsets="earliest")
    first = strict.latestOffset({}, ALL)
    admin.delete_topic(topic)
    kafka_broker.create_topic(topic, 2)
    produce(kafka_broker.options, TopicPartition(topic, 0), 12)
    lenient = streaming(kafka_broker, topic, failOnDataLoss="false")
    with pytest.raises(RangeNotHeldError, match="created again since the batch was planned"):
        strict.partitions({}, first)
    assert lenient.partitions({}, first) == []
    second = lenient.latestOffset(first, ALL)
    with pytest.raises(RangeNotHeldError, match="was deleted and created again"):
        strict.partitions(first, second)
    assert offsets(lenient, first, second) == {0: list(range(12))}


def test_topics_of_a_pattern_begin_at_their_beginning_and_their_deletion_is_a_loss(
    kafka_broker: KafkaBroker, topic: str, admin: KafkaAdmin
) -> None:
    reader = streaming(kafka_broker, topic, subscribePattern="T.*")
    first = reader.latestOffset({}, ALL)
    kafka_broker.create_topic(f"{topic}-new", 1)
    produce(kafka_broker.options, TopicPartition(f"{topic}-new", 0), 3)
    second = reader.latestOffset(first, ALL)
    assert [row["topic"] for row in rows(reader, first, second)] == [f"{topic}-new"] * 3
    admin.delete_topic(f"{topic}-new")
    third = reader.latestOffset(second, ALL)
    with pytest.raises(RangeNotHeldError, match=f"{topic}-new/0 are gone"):
        reader.partitions(second, third)
    lenient = streaming(kafka_broker, topic, subscribePattern="T.*", failOnDataLoss="false")
    assert lenient.partitions(second, third) == []


@pytest.mark.parametrize("with_id", [True, False], ids=["id", "no id"])
@pytest.mark.parametrize("begun", [False, True], ids=["before", "while reading"])
def test_task_announces_what_a_deleted_topic_had_and_continues_without_it(
    kafka_broker: KafkaBroker,
    topic: str,
    admin: KafkaAdmin,
    begun: bool,
    with_id: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """INV-5: as in Spark's source, with the exact ranges. Without the topic's id, partition 0 needs no proof at its end."""
    more = {"startingOffsets": "earliest", "kafkaConsumer_pollTimeoutMs": "3000"}
    strict = streaming(kafka_broker, topic, **more)
    end = strict.latestOffset({}, ALL)
    if not with_id:
        del end["#topic-ids"]
    lenient = streaming(kafka_broker, topic, failOnDataLoss="false", **more)
    (part,) = lenient.partitions({}, end)
    reads = {False: lenient.read(part), True: strict.read(part)}
    rows = {fail: next(read).num_rows if begun else 0 for fail, read in reads.items()}
    forget_consumers()
    admin.delete_topic(topic)
    first = int(begun and not with_id)
    with pytest.raises(RangeNotHeldError, match=rf"{topic}/{first}\[0, .*(deleted|no partition).*failOnDataLoss"):
        list(reads[True])
    assert rows[True] == rows[False] + sum(batch.num_rows for batch in reads[False]) == 10 * begun
    left = [f"{topic}/0[0, 10)", f"{topic}/1[0, 5)"]
    if begun:
        left = ["nothing", left[1]] if with_id else left[1:]
    for lost in left:
        assert f"continuing with the remaining records. Lost: {lost}" in caplog.text
    assert caplog.text.count("continuing with the remaining records") == len(left)
    strict.stop()
    lenient.stop()
