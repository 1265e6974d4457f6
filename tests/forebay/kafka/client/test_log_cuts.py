"""Logs that were cut back and have grown since, with a real Kafka: they are found by leader epochs (KIP-320)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.client import log_cuts
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.log_cuts import LeaderEnds, LogPoint
from forebay.kafka.consume.range_reader import Reading, forget_consumers, read_range
from forebay.kafka.consume.spans import OffsetRange
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.options.access import KafkaAccess
from forebay.model.errors import RangeNotHeldError, UnreachableError
from forebay.model.values import TopicPartition
from forebay.process.clock import ManualClock
from tests.forebay.kafka.consume.test_range_reader import transaction
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.state.again import produce
from tests.support.state.columns import column_values

pytestmark = pytest.mark.kafka


class LeaderKnown(Consumer):
    """A consumer that knows the leader before its assignment: then librdkafka compares nothing without a seek."""

    def assign(self, partitions: list[WirePartition]) -> None:
        self.list_topics(timeout=PATIENCE_SECONDS)
        super().assign(partitions)


@pytest.mark.parametrize(
    ("point", "answer", "cut"),
    [
        (LogPoint(90, 2), LogPoint(130, 2), None),
        (LogPoint(90, 2), LogPoint(90, 1), None),  # leader 2 may have had no record below 90
        (LogPoint(90, 2), LogPoint(85, 1), 85),
        (LogPoint(90, 2, since=80), LogPoint(130, 2), None),
        (LogPoint(90, 2, since=80), LogPoint(100, 1), 80),  # leader 1 has led again
        (LogPoint(90, 2, since=80), LogPoint(90, 1), 80),
        (LogPoint(90, 2, since=80), LogPoint(70, 1), 70),
        (LogPoint(90, 2, since=80), LogPoint(88, 2), 88),
    ],
)
def test_answer_of_an_older_epoch_is_a_cut_if_the_leaders_own_records_are_known(
    point: LogPoint, answer: LogPoint, cut: int | None
) -> None:
    assert point.cut_by(answer) == cut


def test_what_a_log_gains_after_a_leaders_first_end_is_of_this_leader() -> None:
    ends, tp = LeaderEnds(), TopicPartition("t", 0)
    assert ends.point(tp, 90, 2) == LogPoint(90, 2)
    for end, epoch in ((80, 2), (90, 2), (95, 3)):
        ends.see(tp, "id", end, epoch)
    assert ends.point(tp, 90, 2) == LogPoint(90, 2, since=80)
    assert ends.point(tp, 80, 2) == LogPoint(80, 2)
    assert ends.point(tp, 99, 4) == LogPoint(99, 4)
    ends.see(tp, "another id", 10, 0)
    assert ends.point(tp, 90, 2) == LogPoint(90, 2)  # epochs of another topic
    for epoch in range(1, 17):
        ends.see(tp, "another id", 10 + epoch, epoch)
    assert ends.point(tp, 90, 0) == LogPoint(90, 0)  # the newest 16 leaders are remembered
    assert ends.point(tp, 90, 1) == LogPoint(90, 1, since=11)


class Answering:
    """A consumer whose polls return one message each, and that counts its seeks."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.seeks = 0

    def __call__(self, _: object) -> Answering:
        return self

    def seek(self, _: WirePartition) -> None:
        self.seeks += 1

    def consume(self, *_: object) -> list[Message]:
        return [self.messages.pop(0)]

    def assign(self, _: object) -> None:
        pass

    def close(self) -> None:
        pass


FAR, OUT_OF_RANGE = 10**18 - 1, KafkaError._AUTO_OFFSET_RESET
CUT = "Partition log truncation detected: broker end offset is 80 (offset leader epoch 1)."


def answer(code: int | None, offset: int, text: str = "out of range") -> Message:
    return Message(topic="t", partition=0, offset=offset, error=None if code is None else KafkaError(code, text))


@pytest.mark.parametrize(
    ("messages", "found", "seeks"),
    [
        ([answer(OUT_OF_RANGE, -1, CUT)], {TopicPartition("t", 0): 80}, 1),
        ([answer(OUT_OF_RANGE, 90), answer(OUT_OF_RANGE, -1, CUT)], {TopicPartition("t", 0): 80}, 2),
        ([answer(None, 90), answer(OUT_OF_RANGE, -1, CUT)], {TopicPartition("t", 0): 80}, 2),
        ([answer(KafkaError._PARTITION_EOF, 90), answer(OUT_OF_RANGE, -1, CUT)], {TopicPartition("t", 0): 80}, 2),
        ([answer(OUT_OF_RANGE, FAR)], {}, 1),  # the broker compares no leader epochs
    ],
)
def test_only_the_answer_to_the_seek_counts(
    messages: list[Message], found: dict[TopicPartition, int], seeks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-5: what librdkafka read before it looks like a log that was not cut back."""
    consumer = Answering(*messages)
    monkeypatch.setattr(log_cuts, "Consumer", consumer)
    assert log_cuts.find_cuts({}, {TopicPartition("t", 0): LogPoint(90, 2)}, 1.0, ManualClock()) == found
    assert consumer.seeks == seeks


def test_other_error_than_an_answer_fails_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_cuts, "Consumer", Answering(answer(KafkaError.TOPIC_AUTHORIZATION_FAILED, 90, "denied")))
    with pytest.raises(KafkaException, match="denied"):
        log_cuts.find_cuts({}, {TopicPartition("t", 0): LogPoint(90, 2)}, 1.0, ManualClock())


def test_points_and_ranges_of_an_older_leader_are_compared_with_the_newer_leaders_log(
    own_kafka_broker: KafkaBroker, topic_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets 0 to 77 are records of the first leader, 78 one of a transaction, 79 its marker; the next leader has 80 to 199.

    A point above 80 under the first leader is as after an unclean election: it had other records there.
    """
    broker, tp = own_kafka_broker, TopicPartition(topic_name(), 0)
    broker.create_topic(tp.topic, 1)
    produce(broker.options, tp, 78)
    transaction(broker.options, tp, 1, "commit")
    # returns when the coordinator has recorded the end of the transaction: before, it would write the marker again after the kill
    Producer({**broker.options, "transactional.id": f"{tp.topic}-commit"}).init_transactions(PATIENCE_SECONDS)
    with KafkaAdmin(broker.options) as admin:
        (before,) = admin.log_ends([tp]).values()
    broker.kill9()
    broker.start()
    produce(broker.options, tp, 120)
    with KafkaAdmin(broker.options) as admin:
        (now,) = admin.log_ends([tp]).values()
        assert (before.offset, now.offset) == (80, 200)
        old, new = before.leader_epoch, now.leader_epoch
        assert 0 <= old < new
        for point, cut in (
            (LogPoint(200, old), 80),
            (LogPoint(81, old), 80),
            (LogPoint(80, old), None),
            (LogPoint(10, old), None),
            (LogPoint(100, new), None),
            (LogPoint(200, new), None),
        ):
            assert admin.cuts({tp: point}).get(tp) == cut, point
        assert admin.cuts({}) == {}
        admin.delete_records({tp: 40})
        assert admin.cuts({tp: LogPoint(20, old)}) == {}
        assert admin.cuts({tp: LogPoint(90, old)}) == {tp: 80}
        with monkeypatch.context() as patch:
            patch.setattr(log_cuts, "Consumer", LeaderKnown)
            assert admin.cuts({tp: LogPoint(90, old)}) == {tp: 80}
    unknown = f"the leader of {tp} does not know leader epoch {new + 7}"
    with KafkaAdmin(broker.options, timeout_seconds=6.0) as admin, pytest.raises(UnreachableError, match=unknown):
        admin.cuts({tp: LogPoint(90, new + 7)})

    access = KafkaAccess(broker.options, "forebay-executor-g")
    lenient = Reading(allow_offset_gaps=True)

    def offsets(begin: int, end: int, epoch: int, reading: Reading) -> list[int]:
        span = OffsetRange(tp.topic, 0, begin, end, leader_epoch=epoch)
        return [offset for batch in read_range(access, span, reading) for offset in column_values(batch, "offset")]

    for begin, end in ((70, 100), (90, 95)):
        with pytest.raises(RangeNotHeldError, match=rf"{begin}, {end}\): Kafka's log was cut back to offset 80"):
            offsets(begin, end, old, lenient)
    # the marker has no record, so the first record of the next leader is polled with this range
    assert offsets(70, 80, old, lenient) == list(range(70, 79))
    assert offsets(70, 100, new, lenient) == offsets(70, 100, -1, lenient) == [*range(70, 79), *range(80, 100)]
    assert offsets(90, 95, new, Reading()) == list(range(90, 95))
    forget_consumers()


def test_kept_consumer_serves_no_range_of_another_leader(
    kafka_broker: KafkaBroker, topic_name: Callable[[], str], made: list[int]
) -> None:
    """It may have fetched records that the next leader's log does not have."""
    tp = TopicPartition(topic_name(), 0)
    kafka_broker.create_topic(tp.topic, 1)
    produce(kafka_broker.options, tp, 30)
    access = KafkaAccess(kafka_broker.options, "forebay-executor-g")
    first = OffsetRange(tp.topic, 0, 0, 10, leader_epoch=5)
    for span in (first, msgspec.structs.replace(first, from_offset=10, until_offset=20)):
        assert sum(batch.num_rows for batch in read_range(access, span, Reading())) == 10
    last = msgspec.structs.replace(first, from_offset=20, until_offset=30, leader_epoch=6)
    assert sum(batch.num_rows for batch in read_range(access, last, Reading())) == 10
    assert made == [0, 20]
    forget_consumers()
