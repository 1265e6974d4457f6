"""Offsets that Kafka no longer has end a query or are omitted: readers against a real Kafka, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.range_reader import forget_consumers
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import RangeNotHeldError
from forebay.model.values import TopicPartition
from pyspark_forebay.kafka.batch import BatchReader
from tests.pyspark_forebay.kafka.readers import ALL, offsets, options, ranges, rows, streaming
from tests.support.kafka.log_cut import log_to_cut, log_to_return_to
from tests.support.state.again import produce

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


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
