"""Reading ``[from, until)`` exactly, from a real Kafka: every record, or an error that names both ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume import range_reader
from forebay.kafka.consume.range_reader import PartitionReader, Reading, read_range
from forebay.kafka.consume.spans import OffsetRange
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.native.received import Event
from forebay.kafka.options.access import KafkaAccess
from forebay.model.errors import (
    OffsetGapError,
    OutOfRangeError,
    OvershotError,
    RangeNotHeldError,
    ShortReadError,
    UnknownTopicError,
    UnreachableError,
)
from forebay.model.values import TopicPartition
from forebay.process.clock import ManualClock, SystemClock
from tests.support.kafka.polling import PATIENCE_SECONDS, await_markers
from tests.support.state.again import produce
from tests.support.state.columns import column_values

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("each_way")]

PLAIN, GAPS_ALLOWED = Reading(), Reading(allow_offset_gaps=True)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    range_reader.forget_consumers()


@pytest.fixture
def access(kafka_broker: KafkaBroker) -> KafkaAccess:
    return KafkaAccess(kafka_broker.options, "forebay-executor-g")


@pytest.fixture
def tp(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> TopicPartition:
    topic = topic_name()
    kafka_broker.create_topic(topic, 1)
    return TopicPartition(topic, 0)


def span(tp: TopicPartition, begin: int, end: int, topic_id: str = "") -> OffsetRange:
    return OffsetRange(tp.topic, tp.partition, begin, end, topic_id)


def offsets(access: KafkaAccess, range_: OffsetRange, reading: Reading = PLAIN, **more: bool) -> list[int]:
    return [
        offset
        for batch in read_range(access, range_, reading, **more)  # type: ignore[arg-type]
        for offset in column_values(batch, "offset")
    ]


def transaction(options: Mapping[str, str], tp: TopicPartition, count: int, outcome: str) -> None:
    """Write ``count`` records and one marker; ``outcome`` "" leaves the transaction open."""
    producer = Producer({**options, "transactional.id": f"{tp.topic}-{outcome}"})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    for number in range(count):
        producer.produce(tp.topic, b"t%d" % number, partition=tp.partition)
    assert producer.flush(PATIENCE_SECONDS) == 0
    if outcome:
        getattr(producer, f"{outcome}_transaction")(PATIENCE_SECONDS)
        await_markers(options, [tp])


def test_range_has_columns_of_sparks_kafka_source(access: KafkaAccess, tp: TopicPartition) -> None:
    produce(access.options, tp, 3)
    (batch,) = read_range(access, span(tp, 1, 3), Reading(headers=True))
    assert batch.to_pylist()[0] | {"timestamp": 0} == {
        "key": b"k1", "value": b"value 1", "topic": tp.topic, "partition": 0, "offset": 1, "timestamp": 0,
        "timestampType": 0, "headers": [{"key": "n", "value": b"1"}],
    }  # fmt: skip
    assert [row["offset"] for row in batch.to_pylist()] == [1, 2]
    assert offsets(access, span(tp, 2, 2)) == []


def test_records_fetched_beyond_range_serve_next_range(
    access: KafkaAccess, tp: TopicPartition, made: list[int]
) -> None:
    produce(access.options, tp, 9_000)
    assert offsets(access, span(tp, 0, 5_000)) == list(range(5_000))
    assert offsets(access, span(tp, 5_000, 5_001)) == [5_000]
    assert offsets(access, span(tp, 5_001, 9_000)) == list(range(5_001, 9_000))
    produce(access.options, tp, 10)  # it has reported the end at 9000 meanwhile
    assert offsets(access, span(tp, 9_000, 9_010)) == list(range(9_000, 9_010))
    assert made == [0]


def test_outdated_end_of_log_is_not_believed(access: KafkaAccess, tp: TopicPartition) -> None:
    produce(access.options, tp, 5)
    reader = PartitionReader(access, tp, position=0, headers=False, clock=SystemClock())
    assert sum(batch.num_rows for batch in reader.read(span(tp, 0, 5), PLAIN)) == 5
    while not reader._ahead:
        reader._ahead = reader._fetcher.fetch(1, PATIENCE_SECONDS)
    assert isinstance(reader._ahead[0], Event)
    produce(access.options, tp, 3)
    assert sum(batch.num_rows for batch in reader.read(span(tp, 5, 8), PLAIN)) == 3
    reader.close()


def test_kept_consumer_serves_only_range_at_its_position_with_same_parameters(
    access: KafkaAccess, tp: TopicPartition, made: list[int]
) -> None:
    produce(access.options, tp, 40)
    uncommitted = msgspec.structs.replace(access, options={**access.options, "isolation.level": "read_uncommitted"})
    for begin, end, reading, who, fresh in (
        (0, 10, PLAIN, access, False),
        (10, 20, PLAIN, uncommitted, False),  # what counts as a record for it is another's
        (20, 30, PLAIN, access, False),  # not its position
        (10, 20, PLAIN, access, True),  # a task that is tried again
        (10, 20, PLAIN, msgspec.structs.replace(access, group="another"), False),
        (10, 20, Reading(keep=False), access, False),
        (30, 40, Reading(headers=True), access, False),
        (30, 40, PLAIN, access, False),  # by the one that read from 20
    ):
        assert offsets(who, span(tp, begin, end), reading, fresh=fresh) == list(range(begin, end))
    assert made == [0, 10, 20, 10, 10, 10, 30]


def test_concurrent_readers_have_separate_consumers(access: KafkaAccess, tp: TopicPartition, made: list[int]) -> None:
    produce(access.options, tp, 200)
    assert offsets(access, span(tp, 0, 10)) == list(range(10))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: offsets(access, span(tp, 10, 200)), range(4)))
    assert found == [list(range(10, 200))] * 4
    assert made == [0, 10, 10, 10]  # the kept one serves the first to come


def test_required_number_of_records_is_checked(access: KafkaAccess, tp: TopicPartition) -> None:
    produce(access.options, tp, 10)
    with pytest.raises(RangeNotHeldError, match=r"\[0, 10\): Kafka holds 10 records instead of 9"):
        offsets(access, msgspec.structs.replace(span(tp, 0, 10), records=9))
    assert offsets(access, msgspec.structs.replace(span(tp, 0, 10), records=10)) == list(range(10))


def test_partly_read_range_leaves_no_consumer(access: KafkaAccess, tp: TopicPartition, made: list[int]) -> None:
    produce(access.options, tp, 9_000)
    reading = read_range(access, span(tp, 0, 9_000), PLAIN)
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert not any(len(kept) for pools in range_reader._pools.values() for kept in pools)


def test_dropped_records_are_out_of_range_and_consumer_is_closed(access: KafkaAccess, tp: TopicPartition) -> None:
    produce(access.options, tp, 100)
    with KafkaAdmin(access.options) as admin:
        admin.delete_records({tp: 40})
    for reading in (PLAIN, GAPS_ALLOWED):  # what is lost is no skipped offset
        with pytest.raises(OutOfRangeError, match=r"\[30, 60\): at offset 30 .* it holds offsets 40 to 100"):
            offsets(access, span(tp, 30, 60), reading)
    with pytest.raises(OutOfRangeError, match=r"\[200, 300\).* it holds offsets 40 to 100"):
        offsets(access, span(tp, 200, 300))
    assert not any(len(kept) for pools in range_reader._pools.values() for kept in pools)
    assert offsets(access, span(tp, 40, 100)) == list(range(40, 100))


def test_log_that_ends_before_range_is_short_read_without_wait(access: KafkaAccess, tp: TopicPartition) -> None:
    produce(access.options, tp, 10)
    with pytest.raises(ShortReadError, match=r"\[4, 12\): Kafka's log ends at offset 10"):
        offsets(access, span(tp, 4, 12))


def test_markers_and_aborted_records_are_gaps_that_must_be_allowed(access: KafkaAccess, tp: TopicPartition) -> None:
    """Offsets: 0–4 records, 5–7 aborted, 8 its marker, 9–10 committed, 11 its marker, 12–13 records."""
    produce(access.options, tp, 5)
    transaction(access.options, tp, 3, "abort")
    transaction(access.options, tp, 2, "commit")
    produce(access.options, tp, 2)
    everything = span(tp, 0, 14)
    assert offsets(access, everything, GAPS_ALLOWED) == [0, 1, 2, 3, 4, 9, 10, 12, 13]
    assert offsets(access, span(tp, 5, 9), GAPS_ALLOWED) == []
    assert offsets(access, span(tp, 9, 12), GAPS_ALLOWED) == [9, 10]
    with pytest.raises(OffsetGapError, match=r"\[0, 14\): from offset 5 on the next record is 9"):
        offsets(access, everything)
    with pytest.raises(OvershotError, match=r"\[0, 7\): from offset 5 on the next record is 9, not inside the range"):
        offsets(access, span(tp, 0, 7))
    uncommitted = msgspec.structs.replace(access, options={**access.options, "isolation.level": "read_uncommitted"})
    assert offsets(uncommitted, everything, GAPS_ALLOWED) == [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 13]


def test_one_consumer_reads_offsets_without_records_in_any_pieces(access: KafkaAccess, tp: TopicPartition) -> None:
    """The client reports the log's end once, in the first piece."""
    produce(access.options, tp, 2)
    transaction(access.options, tp, 6, "abort")
    for piece, found in (((0, 3), [0, 1]), ((3, 6), []), ((6, 9), [])):
        assert offsets(access, span(tp, *piece), GAPS_ALLOWED) == found
    with pytest.raises(ShortReadError, match="ends at offset 9"):
        offsets(access, span(tp, 9, 10), GAPS_ALLOWED)


def test_open_transaction_ends_log_for_read_committed(access: KafkaAccess, tp: TopicPartition) -> None:
    produce(access.options, tp, 2)
    transaction(access.options, tp, 3, "")
    with pytest.raises(ShortReadError, match=r"ends at offset 2 .records of open transactions are not counted"):
        offsets(access, span(tp, 0, 5))


def test_range_at_other_position_reuses_admin_client(
    access: KafkaAccess, tp: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new client takes ten times as long to answer as a small range to read, and Spark moves partitions between workers."""
    produce(access.options, tp, 30)
    with KafkaAdmin(access.options) as admin:
        (topic_id,) = admin.topic_ids([tp.topic]).values()
    made: list[int] = []
    monkeypatch.setattr(range_reader, "KafkaAdmin", lambda *given, **more: made.append(1) or KafkaAdmin(*given, **more))
    for begin in (0, 20, 10):
        assert offsets(access, span(tp, begin, begin + 5, topic_id)) == list(range(begin, begin + 5))
    assert len(made) == 1
    assert offsets(access, span(tp, 5, 7, topic_id), Reading(keep=False)) == [5, 6]
    another = msgspec.structs.replace(access, group="another")
    assert offsets(another, span(tp, 5, 7, topic_id)) == [5, 6]
    assert len(made) == 3


def test_recreated_topic_is_detected_by_id(access: KafkaAccess, tp: TopicPartition) -> None:
    produce(access.options, tp, 4)
    with KafkaAdmin(access.options) as admin:
        (topic_id,) = admin.topic_ids([tp.topic]).values()
        assert offsets(access, span(tp, 0, 2, topic_id)) == [0, 1]
        admin.delete_topic(tp.topic)
        with pytest.raises(RangeNotHeldError, match=rf"{tp.topic}/0\[2, 4\)"):  # by the consumer that had fetched them
            offsets(access, span(tp, 2, 4, topic_id))


def test_topic_that_is_deleted_before_its_end_is_confirmed_is_a_loss(
    access: KafkaAccess, tp: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(access.options, tp, 3)

    def deleted(*_: object) -> dict[TopicPartition, int]:
        raise UnknownTopicError("Kafka has no such topic")

    monkeypatch.setattr(KafkaAdmin, "ends", deleted)
    with pytest.raises(RangeNotHeldError, match=rf"{tp}\[0, 5\): Kafka has no such topic"):
        offsets(access, span(tp, 0, 5), Reading(keep=False))


def test_silent_broker_times_out_with_range(access: KafkaAccess, tp: TopicPartition) -> None:
    """INV-6. A poll that returns early is neither an end nor progress."""
    produce(access.options, tp, 3)
    clock = ManualClock()
    reader = PartitionReader(access, tp, position=0, headers=False, clock=clock)
    real, polls = reader._fetcher, iter([1, 0, 1, 0, 0, 0, 0, 0])

    class Halting:
        def fetch(self, count: int, timeout: float) -> list[Any]:
            if not next(polls):
                clock.advance(8)
                return []
            found: list[Any] = []
            while not found:
                found = real.fetch(1, PATIENCE_SECONDS)
            return found

    reader._fetcher = Halting()  # type: ignore[assignment]
    with pytest.raises(UnreachableError, match=r"returned no data of .*/0\[0, 3\) from 2 on for 24.0 s"):
        list(reader.read(span(tp, 0, 3), PLAIN))
    reader._fetcher = real
    reader.close()


@pytest.mark.parametrize("name", ["{}-not-there/0", "{}/7"])
def test_missing_topic_or_partition_is_not_held(access: KafkaAccess, tp: TopicPartition, name: str) -> None:
    """INV-5. So records of an intake are read from there, and no task waits for a healthy broker."""
    topic, _, number = name.format(tp.topic).rpartition("/")
    missing = TopicPartition(topic, int(number))
    with pytest.raises(RangeNotHeldError, match=f"Kafka has no partition {missing}"):
        list(read_range(msgspec.structs.replace(access, timeout_seconds=1.0), span(missing, 0, 3), PLAIN))


def test_fetched_offsets_without_records_are_progress(access: KafkaAccess, tp: TopicPartition) -> None:
    """The client fetches it in pieces without returning a record."""
    producer = Producer({**access.options, "transactional.id": tp.topic, "batch.num.messages": 1, "linger.ms": 0})
    producer.init_transactions(PATIENCE_SECONDS)
    for count, end in ((400, producer.abort_transaction), (1, producer.commit_transaction)):
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(tp.topic, b"v", partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0
        end(PATIENCE_SECONDS)
    await_markers(access.options, [tp])
    small = {"fetch.message.max.bytes": "100", "statistics.interval.ms": "5"}  # a fetch gives one batch
    slow = KafkaAccess({**access.options, **small}, "g", timeout_seconds=20.0)
    clock = ManualClock()
    reader = PartitionReader(slow, tp, position=0, headers=False, clock=clock)
    real = reader._fetcher

    class Slow:
        def fetch(self, count: int, timeout: float) -> list[Any]:
            fetched = reader._fetched
            while True:
                found: list[Any] = real.fetch(count, 0.01)
                if found or reader._fetched > fetched:
                    clock.advance(15)
                    return found

    reader._fetcher = Slow()  # type: ignore[assignment]
    rows = [
        offset for batch in reader.read(span(tp, 0, 402), GAPS_ALLOWED) for offset in batch.column("offset").to_pylist()
    ]
    reader._fetcher = real
    reader.close()
    assert rows == [401]


def test_slow_range_ends_at_its_time_limit(
    access: KafkaAccess, tp: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "MESSAGES_MAX", 4_000)  # so that the range needs several polls
    produce(access.options, tp, 9_000)
    clock = ManualClock()
    reading = Reading(range_seconds_max=10)
    rows = read_range(access, span(tp, 0, 9_000), reading, clock=clock)
    next(rows)
    clock.advance(11)
    with pytest.raises(UnreachableError, match=r"\[0, 9000\) only up to [0-9]+ within 11.0 s"):
        list(rows)


def test_reader_waits_for_broker_restart(killed_broker: KafkaBroker, topic_name: Callable[[], str]) -> None:
    access = KafkaAccess(killed_broker.options, "g", timeout_seconds=PATIENCE_SECONDS)
    tp = TopicPartition(topic_name(), 0)
    killed_broker.create_topic(tp.topic, 1)
    produce(access.options, tp, 50)
    assert offsets(access, span(tp, 0, 10)) == list(range(10))
    killed_broker.kill9()
    found: list[int] = []
    reading = threading.Thread(target=lambda: found.extend(offsets(access, span(tp, 10, 50), fresh=True)))
    reading.start()
    killed_broker.start()
    reading.join(PATIENCE_SECONDS)
    assert found == list(range(10, 50))
