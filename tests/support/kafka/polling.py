"""Shared parts of the tests of Kafka: a source with all its events, and waits for events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.consumer import KafkaSource
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.columns import Columns, EndOfPartition, PartitionFault, Start
from forebay.model.values import TopicPartition

#: maximum wait of a test for an expected event; never asserted on
PATIENCE_SECONDS = 90.0


@dataclass(frozen=True)
class Commit:
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Reader:
    """A source and its listener, with all events of both."""

    def __init__(self, options: Mapping[str, str], group: str, topics: Sequence[str], **more: Any) -> None:
        quick = {"session.timeout.ms": "3000", "heartbeat.interval.ms": "300"}
        self.source = KafkaSource({**quick, **options}, group=group, topics=topics, **more)
        self.rebalances: list[tuple[str, frozenset[TopicPartition]]] = []
        self.polled: list[Columns | EndOfPartition | PartitionFault] = []
        self.on_revoked: Callable[[Sequence[TopicPartition]], None] = lambda partitions: None

    def __enter__(self) -> Reader:
        self.source.subscribe(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.source.close()

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.rebalances.append(("assigned", frozenset(partitions)))

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.rebalances.append(("revoked", frozenset(partitions)))
        self.on_revoked(partitions)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.rebalances.append(("lost", frozenset(partitions)))

    def poll(self, max_records: int = 1_000) -> None:
        self.polled += self.source.poll(max_records, 0.1)

    def start(self, at: Mapping[TopicPartition, int], generation: int = 1, leader_epoch: int = -1) -> None:
        self.source.start([Start(tp, offset, leader_epoch, generation) for tp, offset in at.items()])

    def offsets(self, tp: TopicPartition, generation: int | None = None) -> list[int]:
        return [
            offset
            for item in self.polled
            if isinstance(item, Columns) and item.tp == tp and generation in (None, item.generation)
            for offset in item.batch.column("offset").to_pylist()
        ]

    def ends(self, tp: TopicPartition) -> list[int]:
        return [item.offset for item in self.polled if isinstance(item, EndOfPartition) and item.tp == tp]

    def faults(self, tp: TopicPartition) -> list[PartitionFault]:
        return [item for item in self.polled if isinstance(item, PartitionFault) and item.tp == tp]

    def rows(self, tp: TopicPartition, column: str) -> list[Any]:
        return [
            value
            for item in self.polled
            if isinstance(item, Columns) and item.tp == tp
            for value in item.batch.column(column).to_pylist()
        ]


def poll_until(condition: Callable[[], object], *readers: Reader) -> None:
    """Poll the readers in turn until ``condition`` holds. Fails if it never does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, (
            f"waited without success; {[(reader.rebalances, reader.polled[-3:], reader.source.last_error) for reader in readers]}"
        )
        for reader in readers:
            reader.poll()


def poll_some(reader: Reader, polls: int = 10) -> None:
    """Poll for a while, so that unexpected events would arrive."""
    for _ in range(polls):
        reader.poll()


def partitions_of(topic: str, count: int = 4) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def await_markers(options: Mapping[str, str], partitions: Iterable[TopicPartition]) -> None:
    """Wait until no transaction is open in these partitions.

    A producer learns of a commit or an abort before its markers are in the log. Until then a reader of committed records ends
    before them, and records of other producers may come before them too.
    """
    wanted = list(partitions)
    deadline = time.monotonic() + PATIENCE_SECONDS
    with (
        KafkaAdmin({**options, "isolation.level": "read_committed"}) as committed,
        KafkaAdmin({**options, "isolation.level": "read_uncommitted"}) as all_,
    ):
        while committed.ends(wanted) != all_.ends(wanted):
            assert time.monotonic() < deadline, f"a transaction stays open in one of {wanted}"
            threading.Event().wait(0.01)


def committed_values(broker: KafkaBroker, topic: str, partitions: int) -> list[bytes]:
    """Return the values that a reader of committed records finds in ``topic``, unordered, when no transaction is open in it."""
    await_markers(broker.options, partitions_of(topic, partitions))
    options = {
        **broker.options,
        "group.id": "look",
        "isolation.level": "read_committed",
        "enable.partition.eof": "true",
    }
    consumer = Consumer({**options, "enable.auto.commit": "false"})
    found: list[bytes] = []
    try:
        consumer.assign([WirePartition(topic, number, 0) for number in range(partitions)])
        ended = 0
        while ended < partitions:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None, "the broker is silent"
            error = message.error()
            if error is None:
                found.append(message.value() or b"")
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended += 1
    finally:
        consumer.close()
    return found
