"""How the source checks librdkafka: a scripted consumer returns what a real one returns only in rare cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.client.log_cuts import LogPoint
from forebay.kafka.consume.consumer import KafkaSource
from forebay.kafka.consume.fetching import MessageFetcher
from forebay.kafka.consume.messages import FAULTS
from forebay.kafka.consume.selection import CONFIRMATIONS_MAX
from forebay.model.columns import Columns, EndOfPartition, PartitionFault, Start
from forebay.model.errors import ForebayError, UnreachableError
from forebay.model.values import TopicPartition

TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


class ScriptedConsumer:
    """Returns the given batches, one for each consume, and records the calls."""

    def __init__(self) -> None:
        self.batches: list[list[Message] | Callable[[], list[Message]]] = []
        self.asked: list[tuple[str, list[tuple[int, int]]]] = []
        self.unstarted = 0

    def consume(self, _: int, __: float) -> list[Message]:
        if not self.batches:
            return []
        batch = self.batches.pop(0)
        return batch() if callable(batch) else batch

    def seek(self, wire: WirePartition) -> None:
        """Raise the error ``unstarted``, as librdkafka does before an assignment takes effect."""
        if self.unstarted:
            raise KafkaException(KafkaError(self.unstarted))
        self.asked.append(("seek", [(wire.partition, wire.offset)]))

    def __getattr__(self, name: str) -> Callable[[Sequence[WirePartition]], None]:
        def asked(wire: Sequence[WirePartition] = ()) -> None:
            self.asked.append((name, [(part.partition, part.offset) for part in wire]))

        return asked


def record(offset: int, partition: int = 0, leader_epoch: int = 0) -> Message:
    return Message(
        topic="t", partition=partition, offset=offset, key=b"k", value=b"v", timestamp=(1, 5), leader_epoch=leader_epoch
    )


def event(code: int, offset: int, partition: int = 0) -> Message:
    return Message(topic="t", partition=partition, offset=offset, error=KafkaError(code))


class Scripted:
    def __init__(self, protocol: str = "cooperative-sticky") -> None:
        options = {"bootstrap.servers": "nowhere", "partition.assignment.strategy": protocol}
        self.source = KafkaSource(options, group="g", topics=["t"])
        self.consumer = ScriptedConsumer()
        inner: Any = self.source
        inner._consumer = self.consumer
        inner._fetcher = MessageFetcher(self.consumer, headers=False)  # type: ignore[arg-type]
        self.rebalance: Any = self.source

        def assigned() -> list[Message]:
            self.assign(0, 1)
            return []

        self.poll(assigned)

    def assign(self, *partitions: int) -> None:
        self.rebalance._on_assign(self.consumer, [WirePartition("t", part) for part in partitions])

    def revoke(self, *partitions: int) -> None:
        self.rebalance._on_revoke(self.consumer, [WirePartition("t", part) for part in partitions])

    def start(self, offset: int, generation: int = 1, tp: TopicPartition = TP, leader_epoch: int = -1) -> None:
        self.source.start([Start(tp, offset, leader_epoch, generation)])

    def poll(self, *batches: list[Message] | Callable[[], list[Message]]) -> list[tuple[Any, ...]]:
        polled: list[tuple[Any, ...]] = []
        self.consumer.batches += batches
        while self.consumer.batches:
            for item in self.source.poll(100, 0.0):
                if isinstance(item, Columns):
                    polled.append((item.tp.partition, item.generation, item.batch.column("offset").to_pylist()))
                elif isinstance(item, EndOfPartition):
                    polled.append((item.tp.partition, item.generation, item.offset))
                else:
                    polled.append((item.tp.partition, item.generation, item.kind))
        return polled


@pytest.fixture(params=["cooperative-sticky", "range"])
def scripted(request: pytest.FixtureRequest) -> Scripted:
    return Scripted(request.param)


def test_records_of_older_assignment_do_not_look_like_a_gap(scripted: Scripted) -> None:
    """Rule 3: a gap at a start is read a second time; if there are records, they count."""
    scripted.start(10)
    assert scripted.poll([record(50), record(51)], [record(10), record(11)]) == [(0, 1, [10, 11])]


def test_gap_at_start_is_believed_after_second_read(scripted: Scripted) -> None:
    scripted.start(10)
    asked = len(scripted.consumer.asked)
    assert scripted.poll([record(12), record(15)], [record(12), record(15)]) == [(0, 1, [12, 15])]
    assert scripted.consumer.asked[asked:][-1][1][0] == (0, 10)  # assigned again, at the same position


def test_gap_up_to_end_is_believed_after_second_read(scripted: Scripted) -> None:
    scripted.start(10)
    end = event(KafkaError._PARTITION_EOF, 14)
    assert scripted.poll([end], [end]) == [(0, 1, 14)]


def test_gap_that_changes_with_each_read_becomes_a_fault(scripted: Scripted) -> None:
    """INV-6: the number of reads is bounded. INV-5: the fault is reported."""
    scripted.start(0)
    polled = scripted.poll(*[[record(100 + number)] for number in range(CONFIRMATIONS_MAX + 1)])
    assert polled == [(0, 1, "out-of-range")]


def test_records_of_a_partition_that_was_not_started_are_dropped(scripted: Scripted) -> None:
    scripted.start(0)
    assert scripted.poll([record(0), record(0, partition=1), record(1)]) == [(0, 1, [0, 1])]


def test_records_polled_before_rebalance_are_dropped(scripted: Scripted) -> None:
    """Records polled before the revocation never get the generation of a start within the callback."""
    scripted.start(0)

    def rebalanced() -> list[Message]:
        scripted.revoke(0)
        scripted.assign(0)
        scripted.start(0, generation=2)
        return [record(0), record(1), event(KafkaError._PARTITION_EOF, 2)]

    assert scripted.poll(rebalanced) == []
    assert scripted.poll([record(0)]) == [(0, 2, [0])]


def test_record_is_not_returned_twice(scripted: Scripted) -> None:
    scripted.start(0)
    assert scripted.poll([record(0), record(1)], [record(1), record(2)]) == [(0, 1, [0, 1]), (0, 1, [2])]


def test_offsets_out_of_order_end_the_source(scripted: Scripted) -> None:
    scripted.start(0)
    with pytest.raises(ForebayError, match="out of order"):
        scripted.poll([record(0), record(2), record(1)])


def test_records_after_corrupt_batch_are_not_returned(scripted: Scripted) -> None:
    """INV-5: librdkafka continues after a batch with a wrong checksum, which would be a silent gap."""
    scripted.start(0)
    polled = scripted.poll([record(0), event(KafkaError._BAD_MSG, 1), record(5)], [record(6)])
    assert polled == [(0, 1, [0]), (0, 1, "corrupt")]
    scripted.start(1, generation=2)
    assert scripted.poll([record(1)]) == [(0, 2, [1])]


@pytest.mark.parametrize("refusal", [KafkaError._STATE, KafkaError._PREV_IN_PROGRESS, KafkaError._OUTDATED])
def test_nothing_is_returned_before_the_position_was_compared_with_the_leaders_log(
    scripted: Scripted, refusal: int
) -> None:
    """Rule 8: an assignment may take effect after librdkafka has refused the seek. What was read before is read again."""
    scripted.consumer.unstarted = refusal
    scripted.start(5, leader_epoch=3)
    scripted.start(7, tp=OTHER)  # without a leader epoch there is nothing to compare
    assert scripted.poll([record(5, leader_epoch=3), record(7, partition=1)]) == [(1, 1, [7])]
    scripted.consumer.unstarted = 0
    assert scripted.poll([record(5, leader_epoch=3)]) == [(0, 1, [5])]
    assert [asked for asked in scripted.consumer.asked if asked[0] == "seek"] == [("seek", [(0, 5)])]


def test_lower_leader_epoch_is_truncation(scripted: Scripted) -> None:
    scripted.start(0, leader_epoch=3)
    assert scripted.poll([record(0, leader_epoch=3)], [record(1, leader_epoch=2)]) == [(0, 1, [0]), (0, 1, "truncated")]


class Comparing:
    """An admin client whose comparisons have the given results, one after the other; None: no broker answers."""

    def __init__(self, *results: dict[TopicPartition, int] | None) -> None:
        self.results = list(results)
        self.asked: list[dict[TopicPartition, LogPoint]] = []

    def cuts(self, points: dict[TopicPartition, LogPoint]) -> dict[TopicPartition, int]:
        self.asked.append(points)
        result = self.results.pop(0)
        if result is None:
            raise UnreachableError("no broker answers")
        return result


def test_newer_leader_without_records_of_the_last_leader_epoch_is_truncation(scripted: Scripted) -> None:
    """INV-5: the leader before the last one leads again, and its own records end at the position."""
    scripted.rebalance._admin = admin = Comparing({TP: 89})
    scripted.start(90, leader_epoch=2)
    assert scripted.poll([record(90, leader_epoch=3)]) == [(0, 1, "truncated")]
    assert admin.asked == [{TP: LogPoint(0, 2, since=89)}]


def test_records_of_a_newer_leader_are_returned_when_a_broker_has_compared_the_epochs(scripted: Scripted) -> None:
    scripted.rebalance._admin = admin = Comparing(None, {}, {})
    scripted.start(90, leader_epoch=2)
    assert scripted.poll([record(90, leader_epoch=3)]) == []
    assert scripted.poll([record(90, leader_epoch=3), record(91, leader_epoch=3)]) == [(0, 1, [90, 91])]
    assert scripted.poll([record(92, leader_epoch=3)]) == [(0, 1, [92])]
    assert scripted.poll([record(93, leader_epoch=4)]) == [(0, 1, [93])]
    assert [point.leader_epoch for (point,) in map(dict.values, admin.asked)] == [2, 2, 3]


def truncation(offset: int, end: int) -> Message:
    """The text is librdkafka's, for ``auto.offset.reset=error``."""
    text = f"Partition log truncation detected at offset {offset}: broker end offset is {end} (offset leader epoch 2). Reset."
    return Message(topic="t", partition=0, offset=offset, error=KafkaError(KafkaError._AUTO_OFFSET_RESET, text))


class Following:
    """An admin client that finds its next record at ``offset``; None: no broker answers."""

    def __init__(self, offset: int | None) -> None:
        self.offset = offset
        self.asked: list[dict[TopicPartition, int]] = []

    def next_records(self, positions: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        self.asked.append(positions)
        if self.offset is None:
            raise UnreachableError("no broker answers")
        return dict.fromkeys(positions, self.offset)


@pytest.mark.parametrize("following", [80, 99, None])
def test_truncation_has_end_of_log_if_broker_reports_it(scripted: Scripted, following: int | None) -> None:
    """INV-5: a record between that end and the position would be missed, so the doubt is a fault too."""
    scripted.rebalance._admin = Following(following)
    scripted.start(100, leader_epoch=2)
    scripted.consumer.batches = [[truncation(100, 80)]]
    (fault,) = scripted.source.poll(10, 0.0)
    assert isinstance(fault, PartitionFault)
    assert (fault.kind, fault.end) == ("truncated", 80)


@pytest.mark.parametrize("following", [100, 120])
def test_position_behind_markers_of_a_newer_leader_is_read_on(scripted: Scripted, following: int) -> None:
    """Rule 8: no record follows the end of the position's leader epoch up to the position, so none can be missed there."""
    scripted.rebalance._admin = admin = Following(following)
    scripted.start(100, leader_epoch=2)
    asked = len(scripted.consumer.asked)
    assert scripted.poll([truncation(100, 98)]) == []
    assert admin.asked == [{TP: 98}]
    assert ("seek", [(0, 100)]) not in scripted.consumer.asked[asked:]  # it has no leader epoch to compare any more
    assert scripted.consumer.asked[asked:][-1][1] == [(0, 100)]
    assert scripted.poll([record(100, leader_epoch=5)]) == [(0, 1, [100])]


def test_truncation_above_the_position_is_a_fault(scripted: Scripted) -> None:
    """It concerns records that librdkafka has fetched and not returned."""
    scripted.rebalance._admin = admin = Following(200)
    scripted.start(100, leader_epoch=2)
    assert scripted.poll([truncation(150, 120)]) == [(0, 1, "truncated")]
    assert admin.asked == []


@pytest.mark.parametrize(("code", "kind"), FAULTS.items(), ids=[KafkaError(code).name() for code in FAULTS])
def test_each_error_of_the_table_becomes_its_kind_of_fault(code: int, kind: str) -> None:
    scripted = Scripted()
    scripted.start(0)
    scripted.start(0, tp=OTHER)
    assert scripted.poll([event(code, 0), record(0, partition=1)]) == [(1, 1, [0]), (0, 1, kind)]


def test_transient_error_is_shown_until_next_record(scripted: Scripted) -> None:
    scripted.start(0)
    assert scripted.poll([event(KafkaError._TRANSPORT, 0)]) == []
    assert scripted.source.last_error
    scripted.poll([record(0)])
    assert scripted.source.last_error == ""


def test_transient_error_ends_with_assignment(scripted: Scripted) -> None:
    """A member without partitions reads no records, which would end the error."""
    scripted.poll([event(KafkaError._TRANSPORT, 0)])
    assert scripted.source.last_error
    scripted.assign()
    assert scripted.source.last_error == ""


def test_fault_does_not_affect_other_partitions(scripted: Scripted) -> None:
    scripted.start(0)
    scripted.start(0, tp=OTHER)
    scripted.poll([record(0), record(0, partition=1), event(KafkaError.OFFSET_OUT_OF_RANGE, 1)])
    assert scripted.poll([record(1, partition=1), record(2)]) == [(1, 1, [1])]
