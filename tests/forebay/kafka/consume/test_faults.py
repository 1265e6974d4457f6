"""Faults of partitions, with a real Kafka: the source reports each, and skips and resets nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.log_cuts import LogPoint
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.embedded.loader import load
from forebay.model.columns import Columns, PartitionFault
from forebay.model.values import TopicPartition
from tests.support.kafka.log_cut import log_to_return_to, log_with_marker_of_newer_leader
from tests.support.kafka.polling import PATIENCE_SECONDS, Reader, await_markers, poll_some, poll_until

pytestmark = pytest.mark.kafka


@pytest.fixture
def topic(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> str:
    name = topic_name()
    kafka_broker.create_topic(name, 1)
    return name


def fill(broker: KafkaBroker, topic: str, records: int) -> None:
    load(broker.options, topic, ((b"k", b"v%d" % n) for n in range(records)), partition=0)


def test_deleted_records_at_position_are_a_fault(kafka_broker: KafkaBroker, topic: str) -> None:
    """INV-5: no silent reset; a start at a held position continues."""
    fill(kafka_broker, topic, 100)
    tp = TopicPartition(topic, 0)
    with KafkaAdmin(kafka_broker.options) as admin:
        admin.delete_records({tp: 40})
    with Reader(kafka_broker.options, topic, [topic]) as reader:
        poll_until(lambda: tp in reader.source.owned, reader)
        reader.start({tp: 10}, generation=7)
        poll_until(lambda: reader.faults(tp), reader)
        poll_some(reader, 3)
        (fault,) = reader.faults(tp)
        assert (fault.kind, fault.generation) == ("out-of-range", 7)
        assert reader.offsets(tp) == []
        assert reader.source.watermarks(tp, 10) == (40, 100)
        reader.start({tp: 40}, generation=8)
        poll_until(lambda: reader.ends(tp), reader)
        assert reader.offsets(tp, 8) == list(range(40, 100))


def test_position_beyond_end_is_a_fault(kafka_broker: KafkaBroker, topic: str) -> None:
    fill(kafka_broker, topic, 10)
    tp = TopicPartition(topic, 0)
    with Reader(kafka_broker.options, topic, [topic]) as reader:
        poll_until(lambda: tp in reader.source.owned, reader)
        reader.start({tp: 50})
        poll_until(lambda: reader.faults(tp), reader)
        assert reader.faults(tp)[0].kind == "out-of-range"


def test_leader_epoch_below_the_positions_is_truncation(kafka_broker: KafkaBroker, topic: str) -> None:
    """Records of an older leader after those of a newer one: the log is not the one that was taken in (rule 8)."""
    fill(kafka_broker, topic, 10)
    tp = TopicPartition(topic, 0)
    with Reader(kafka_broker.options, topic, [topic]) as reader:
        poll_until(lambda: tp in reader.source.owned, reader)
        reader.start({tp: 5}, leader_epoch=5)  # the log's is 0
        poll_until(lambda: reader.faults(tp), reader)
        poll_some(reader, 3)
        assert [type(item) for item in reader.polled] == [PartitionFault]
        assert reader.faults(tp)[0].kind == "truncated"


@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky"])
def test_start_beyond_the_end_of_its_leader_epoch_is_truncation_though_the_log_has_grown_past_it(
    killed_broker: KafkaBroker, topic_name: Callable[[], str], protocol: str
) -> None:
    """Rule 8: as after an unclean election and a new assignment. Offsets 80 to 99 were other records when they were taken in."""
    broker, topic = killed_broker, topic_name()
    broker.create_topic(topic, 1)
    fill(broker, topic, 80)
    broker.kill9()
    broker.start()  # its next term as the leader has the next epoch
    fill(broker, topic, 120)
    tp = TopicPartition(topic, 0)
    with Reader({**broker.options, "partition.assignment.strategy": protocol}, topic, [topic]) as reader:
        poll_until(lambda: tp in reader.source.owned, reader)
        reader.start({tp: 78}, leader_epoch=0)
        poll_until(lambda: reader.ends(tp), reader)
        assert reader.offsets(tp) == list(range(78, 200))
        newer = next(
            item.leader_epoch for item in reader.polled if isinstance(item, Columns) and item.last_offset >= 80
        )
        assert newer > 0
        reader.polled.clear()
        reader.start({tp: 100}, leader_epoch=0, generation=2)
        poll_until(lambda: reader.faults(tp), reader)
        poll_some(reader, 3)
        (fault,) = reader.polled
        assert isinstance(fault, PartitionFault)
        assert (fault.kind, fault.generation, fault.end) == ("truncated", 2, 80)
        reader.polled.clear()
        for generation, (position, epoch) in enumerate(((80, 0), (100, newer), (200, newer), (0, -1)), start=3):
            reader.start({tp: position}, leader_epoch=epoch, generation=generation)
            poll_until(lambda: 200 in reader.ends(tp), reader)
            assert reader.offsets(tp, generation) == list(range(position, 200))
            reader.polled.clear()


def test_leader_that_leads_again_after_another_one_is_truncation_though_its_records_end_at_the_position(
    killed_broker: KafkaBroker, topic_name: Callable[[], str], tmp_path: Path
) -> None:
    """INV-5: two unclean elections. Offsets 80 to 99 were other records before, and the end of the epoch fits."""
    broker, tp = killed_broker, TopicPartition(topic_name(), 0)
    first_leader = log_to_return_to(broker, tp, tmp_path)
    fill(broker, tp.topic, 20)
    with KafkaAdmin(broker.options) as admin:
        (second,) = admin.log_ends([tp]).values()
    assert second.offset == 100
    first_leader.cut_back()
    fill(broker, tp.topic, 20)
    with Reader(broker.options, tp.topic, [tp.topic]) as reader:
        poll_until(lambda: tp in reader.source.owned, reader)
        reader.start({tp: 100}, leader_epoch=second.leader_epoch)
        poll_until(lambda: reader.faults(tp), reader)
        (fault,) = reader.polled
        assert isinstance(fault, PartitionFault)
        assert (fault.kind, fault.end) == ("truncated", 99)


def test_start_behind_the_marker_of_a_newer_leader_is_no_truncation(
    killed_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """Rule 8: the last record before the position is of the older leader, whose records end before the marker."""
    broker, topic = killed_broker, topic_name()
    tp = TopicPartition(topic, 0)
    log_with_marker_of_newer_leader(broker, tp)
    with KafkaAdmin(broker.options) as admin, Reader(broker.options, topic, [topic]) as reader:
        poll_until(lambda: tp in reader.source.owned, reader)
        reader.start({tp: 0})
        poll_until(lambda: 6 in reader.ends(tp), reader)
        assert reader.offsets(tp) == list(range(5))
        (epoch,) = {item.leader_epoch for item in reader.polled if isinstance(item, Columns)}
        assert admin.cuts({tp: LogPoint(6, epoch)}) == {tp: 5}  # by leader epochs alone
        reader.polled.clear()
        reader.start({tp: 6}, leader_epoch=epoch, generation=2)
        fill(broker, topic, 3)
        poll_until(lambda: 9 in reader.ends(tp), reader)
        assert reader.offsets(tp, 2) == [6, 7, 8] and reader.faults(tp) == []


def test_aborted_transactions_are_not_read_and_true_end_is_reported(kafka_broker: KafkaBroker, topic: str) -> None:
    """Aborted records and markers at the end move the end, so lag reaches 0; a start among them is believed after two reads."""
    producer = Producer({**kafka_broker.options, "transactional.id": topic})
    producer.init_transactions(PATIENCE_SECONDS)
    for commit in (True, False, True, False):
        producer.begin_transaction()
        for _ in range(5):
            producer.produce(topic, b"committed" if commit else b"aborted", partition=0)
        producer.flush(PATIENCE_SECONDS)
        if commit:
            producer.commit_transaction(PATIENCE_SECONDS)
        else:
            producer.abort_transaction(PATIENCE_SECONDS)
    tp = TopicPartition(topic, 0)
    await_markers(kafka_broker.options, [tp])
    with Reader(kafka_broker.options, topic, [topic]) as reader:
        poll_until(lambda: tp in reader.source.owned, reader)
        end = reader.source.watermarks(tp, 10)[1]
        assert end == 24
        reader.start({tp: 0})
        poll_until(lambda: end in reader.ends(tp), reader)
        assert reader.offsets(tp) == [*range(5), *range(12, 17)]
        assert set(reader.rows(tp, "value")) == {b"committed"}
        reader.start({tp: 7}, generation=2)  # within the first aborted run
        poll_until(lambda: reader.offsets(tp, 2), reader)
        assert reader.offsets(tp, 2) == list(range(12, 17))
        reader.polled.clear()
        reader.start({tp: 18}, generation=3)  # nothing but markers and aborted records from here
        poll_until(lambda: end in reader.ends(tp), reader)
        assert reader.offsets(tp, 3) == []


def test_a_recreated_topic_has_another_id(kafka_broker: KafkaBroker, topic: str) -> None:
    with KafkaAdmin(kafka_broker.options) as admin, Reader(kafka_broker.options, topic, [topic]) as reader:
        before = reader.source.topic_ids([topic])[topic]
        assert before
        admin.delete_topic(topic)
        assert reader.source.topic_ids([topic, "absent"]) == {topic: "", "absent": ""}
        admin.create_topic(topic, 1)
        after = reader.source.topic_ids([topic])[topic]
        assert after not in ("", before)
