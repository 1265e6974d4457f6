"""Ranges of a block read again from a real Kafka: the same records, or an error that says what Kafka holds instead."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume import block_ranges
from forebay.kafka.consume.block_ranges import RangeReader, Wanted, read_ranges
from forebay.kafka.embedded.broker import KafkaBroker, MockBroker
from forebay.kafka.native.received import Received, Records
from forebay.kafka.options.access import KafkaAccess
from forebay.model.digest import digest
from forebay.model.errors import RangeNotHeldError, SettingsError, UnreachableError
from forebay.model.values import TopicPartition
from forebay.process.clock import ManualClock
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.state.again import produce, taken_in
from tests.support.state.columns import column_values

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("no_reader_kept", "each_way")]


@pytest.fixture
def access(kafka_broker: KafkaBroker) -> KafkaAccess:
    return KafkaAccess(kafka_broker.options, "forebay.s")


@pytest.fixture
def tp(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> TopicPartition:
    topic = topic_name()
    kafka_broker.create_topic(topic, 3)
    return TopicPartition(topic, 0)


def inside(wanted: Wanted, rows: pa.RecordBatch, begin: int, end: int) -> tuple[Wanted, pa.RecordBatch]:
    """The part of a range without gaps that begins and ends at these rows."""
    part = rows.slice(begin, end - begin)
    range_ = msgspec.structs.replace(
        wanted.range,
        from_offset=begin,
        until_offset=end,
        records=end - begin,
        digest=digest([part]),
        bytes=0,
    )
    return Wanted(range_, wanted.topic_id), part


def joined(batches: list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches)


@pytest.mark.parametrize("headers", [False, True])
def test_ranges_of_several_partitions_are_read_row_by_row(
    access: KafkaAccess, tp: TopicPartition, headers: bool
) -> None:
    """From the middle of one partition, all of another, and a range without records, which needs no request."""
    other = TopicPartition(tp.topic, 2)
    produce(access.options, tp, 3000)
    produce(access.options, other, 7)
    one, one_rows = taken_in(access.options, tp, headers=headers)
    part, part_rows = inside(one, one_rows, 1100, 2500)
    two, two_rows = taken_in(access.options, other, headers=headers)
    empty = msgspec.structs.replace(two.range, partition=1, records=0, until_offset=3)
    for _ in range(3):  # the second and third by the reader that was kept
        found = read_ranges(access, [part, Wanted(empty, ""), two], headers)
        assert [rows.tp.partition for rows in found] == [0, 1, 2]
        assert joined(list(found[0].batches)) == joined([part_rows])
        assert list(found[1].batches) == []
        assert joined(list(found[2].batches)) == joined([two_rows])
    assert len(block_ranges.kept_readers) == 1


def test_recreated_topic_is_refused_by_its_id(
    kafka_broker: KafkaBroker, access: KafkaAccess, tp: TopicPartition
) -> None:
    produce(access.options, tp, 10)
    wanted, _ = taken_in(access.options, tp)
    with KafkaAdmin(access.options) as admin:
        admin.delete_topic(tp.topic)
        _until_gone(admin, tp.topic)
        with pytest.raises(RangeNotHeldError, match="does not exist"):
            read_ranges(access, [wanted], False)
        admin.create_topic(tp.topic, 3)
    produce(access.options, tp, 10)  # the same offsets, keys, values and timestamps: only the id tells
    with pytest.raises(RangeNotHeldError, match=re.escape(f"had the id {wanted.topic_id}, and now has the id")):
        read_ranges(access, [wanted], False)


def _until_gone(admin: KafkaAdmin, topic: str) -> None:
    waited = threading.Event()
    for _ in range(1000):
        if topic not in admin.topics():
            return
        waited.wait(0.05)
    raise AssertionError(f"{topic} was not deleted")


def test_topic_without_known_id_is_refused(access: KafkaAccess, tp: TopicPartition) -> None:
    produce(access.options, tp, 3)
    wanted, _ = taken_in(access.options, tp)
    with pytest.raises(RangeNotHeldError, match="has no topic id"):
        read_ranges(access, [Wanted(wanted.range, "")], False)


def test_broker_without_topic_ids_is_refused(mock_broker: MockBroker, topic_name: Callable[[], str]) -> None:
    topic = topic_name()
    mock_broker.create_topic(topic)
    tp = TopicPartition(topic, 0)
    produce(mock_broker.options, tp, 3)
    wanted, _ = taken_in(mock_broker.options, tp)
    assert wanted.topic_id == ""
    with pytest.raises(RangeNotHeldError, match="do not return topic ids"):
        read_ranges(KafkaAccess(mock_broker.options, "g"), [Wanted(wanted.range, "an-id")], False)


def test_error_names_records_that_kafka_dropped(access: KafkaAccess, tp: TopicPartition) -> None:
    produce(access.options, tp, 100)
    wanted, rows = taken_in(access.options, tp)
    behind, behind_rows = inside(wanted, rows, 50, 100)
    gone, _ = inside(wanted, rows, 0, 40)
    with KafkaAdmin(access.options) as admin:
        admin.delete_records({tp: 40})
    with pytest.raises(RangeNotHeldError, match="60 records instead of 100; the first offset that it holds is 40"):
        read_ranges(access, [wanted], False)
    with pytest.raises(RangeNotHeldError, match=r"Kafka only holds offsets \[40, 100\)"):
        read_ranges(access, [gone], False)
    (found,) = read_ranges(access, [behind], False)
    assert joined(list(found.batches)) == joined([behind_rows])


def test_log_that_ends_before_range_is_reported_without_wait(access: KafkaAccess, tp: TopicPartition) -> None:
    produce(access.options, tp, 10)
    wanted, _ = taken_in(access.options, tp)
    longer = msgspec.structs.replace(wanted.range, until_offset=12)
    with pytest.raises(RangeNotHeldError, match=r"Kafka only holds offsets \[0, 10\)"):
        read_ranges(access, [Wanted(longer, wanted.topic_id)], False)


def test_other_records_at_the_same_offsets_are_refused(access: KafkaAccess, tp: TopicPartition) -> None:
    produce(access.options, tp, 10)
    wanted, _ = taken_in(access.options, tp)
    for change, message in (
        ({"digest": "0" * 16}, "other records"),
        ({"records": 9}, "more than 9 records"),
        ({"bytes": wanted.range.bytes - 1}, r"more than [0-9]+ bytes"),
    ):
        changed = msgspec.structs.replace(wanted.range, **change)
        with pytest.raises(RangeNotHeldError, match=message):
            read_ranges(access, [Wanted(changed, wanted.topic_id)], False)
    assert not len(block_ranges.kept_readers), "a reader was kept after an error"


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_transactions_are_read_as_they_were_taken_in(access: KafkaAccess, tp: TopicPartition, outcome: str) -> None:
    """Markers and aborted records are inside the range and at its end."""
    produce(access.options, tp, 5)
    producer = Producer({**access.options, "transactional.id": tp.topic})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    for number in range(5):
        producer.produce(tp.topic, b"t%d" % number, partition=tp.partition)
    producer.flush(PATIENCE_SECONDS)
    getattr(producer, f"{outcome}_transaction")(PATIENCE_SECONDS)
    wanted, rows = taken_in(access.options, tp)
    assert (wanted.range.until_offset, wanted.range.records) == (11, 10 if outcome == "commit" else 5)
    (found,) = read_ranges(access, [wanted], False)
    assert joined(list(found.batches)) == joined([rows])


def test_compacted_range_is_read_only_if_complete(access: KafkaAccess, topic_name: Callable[[], str]) -> None:
    """A range without compacted records is read, and so is one that was taken in with its gaps. A range whose records were
    deleted by compaction is refused."""
    tp = TopicPartition(topic_name(), 0)
    with KafkaAdmin(access.options) as admin:
        admin.create_topic(tp.topic, 1, {
            "cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "100", "min.compaction.lag.ms": "0", "delete.retention.ms": "0",
        })  # fmt: skip
    produce(access.options, tp, 50, key=b"k%d", timestamp=0)
    untouched, untouched_rows = taken_in(access.options, tp)
    produce(access.options, tp, 50, key=b"the same", timestamp=0)
    before, _ = taken_in(access.options, tp, from_offset=50)
    waited = threading.Event()

    def gaps() -> bool:
        """Segments roll when something is written, and only closed ones are compacted."""
        produce(access.options, tp, 1, key=b"roll", timestamp=0)
        waited.wait(0.2)
        return bool(column_values(taken_in(access.options, tp, from_offset=50)[1], "offset")[0] > 60)

    assert any(gaps() for _ in range(150)), "never compacted"
    (found,) = read_ranges(access, [untouched], False)
    assert joined(list(found.batches)) == joined([untouched_rows])
    with pytest.raises(RangeNotHeldError, match=r"[0-9]+ records instead of 50"):
        read_ranges(access, [before], False)

    def with_gaps() -> bool:
        after, rows = taken_in(access.options, tp, from_offset=50)
        try:
            (found,) = read_ranges(access, [after], False)
        except RangeNotHeldError:
            return False  # compaction went on in between
        return joined(list(found.batches)) == joined([rows]) and rows.num_rows < after.range.until_offset - 50 - 40

    assert any(with_gaps() for _ in range(20))


def test_silent_broker_is_unreachable_within_timeout(access: KafkaAccess, tp: TopicPartition) -> None:
    """INV-6. A port that takes connections and never answers."""
    produce(access.options, tp, 3)
    wanted, _ = taken_in(access.options, tp)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"}
        with pytest.raises(UnreachableError, match=options["bootstrap.servers"]):
            read_ranges(KafkaAccess(options, "g", timeout_seconds=0.5), [wanted], False)


def test_early_poll_is_not_the_end_and_silence_has_a_limit(access: KafkaAccess, tp: TopicPartition) -> None:
    produce(access.options, tp, 40)
    wanted, rows = taken_in(access.options, tp)
    clock = ManualClock()
    reader = RangeReader(access, False, clock)
    real = reader._fetcher

    class Halting:
        """Gives nothing at every other call, and else one record, however slow the broker is: only the silence made here
        counts. After ``left`` records it gives nothing at all."""

        def __init__(self, left: int) -> None:
            self.left, self.calls = left, 0

        def fetch(self, count: int, timeout: float) -> list[Received]:
            self.calls += 1
            if self.calls % 2 or not self.left:
                clock.advance(access.timeout_seconds / 3)
                return []
            deadline = time.monotonic() + PATIENCE_SECONDS
            while True:
                assert time.monotonic() < deadline
                found: list[Received] = [item for item in real.fetch(1, timeout) if isinstance(item, Records)]
                if found:
                    self.left -= 1
                    return found

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

    reader._fetcher = Halting(10_000)  # type: ignore[assignment]
    (found,) = reader.read([wanted])
    assert joined(list(found.batches)) == joined([rows])
    reader._fetcher = Halting(7)  # type: ignore[assignment]
    with pytest.raises(UnreachableError, match=r"returned no data of .*\[0, 40\)"):
        reader.read([wanted])
    reader._fetcher = real
    reader.close()


def test_client_error_while_reading_is_unreachable(
    access: KafkaAccess, tp: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller continues with the next tier or names this range, so no error of the client may escape."""
    produce(access.options, tp, 3)
    wanted, _ = taken_in(access.options, tp)
    reader = RangeReader(access, False)

    class Refusing:
        def assign(self, partitions: object) -> None:
            raise KafkaException(KafkaError(KafkaError._STATE))

    real, reader._consumer = reader._consumer, Refusing()  # type: ignore[assignment]
    with pytest.raises(UnreachableError, match=access.options["bootstrap.servers"]):
        reader.read([wanted])
    reader._consumer = real
    reader.close()


def test_unusable_options_are_named_without_secrets(access: KafkaAccess) -> None:
    options = {
        **access.options,
        "ssl.ca.location": "/absent/ca.pem",
        "security.protocol": "ssl",
        "sasl.password": "s3cret",
    }
    with pytest.raises(SettingsError, match="ca") as caught:
        read_ranges(KafkaAccess(options, "g"), [], False)
    assert "s3cret" not in str(caught.value)


def test_concurrent_callers_have_separate_clients_and_few_are_kept(access: KafkaAccess, tp: TopicPartition) -> None:
    produce(access.options, tp, 200)
    wanted, rows = taken_in(access.options, tp)
    parts = [inside(wanted, rows, begin, begin + 50) for begin in (0, 50, 100, 150)]
    seen: dict[int, pa.Table] = {}

    def read(number: int) -> None:
        (found,) = read_ranges(access, [parts[number][0]], False)
        seen[number] = joined(list(found.batches))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [seen[number] for number in range(4)] == [joined([part]) for _, part in parts]
    assert len(block_ranges.kept_readers) <= block_ranges.IDLE_READERS_MAX


def test_repr_of_access_shows_only_the_address() -> None:
    access = KafkaAccess({"bootstrap.servers": "b:1", "sasl.password": "s3cret"}, "g")
    assert repr(access) == "<KafkaAccess to b:1>"
    assert access.__rich_repr__() == [("to", "b:1")]
    assert "s3cret" not in f"{access} {[access]}"
