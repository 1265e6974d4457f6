"""Receivers over librdkafka's mock cluster: a second one joins, the first one leaves, no record is lost or repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.consume.consumer import KafkaSource
from forebay.kafka.embedded.broker import MockBroker
from forebay.kafka.embedded.loader import load
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock
from forebay.settings.schema import Settings
from receiver.main import compose
from tests.receiver.fakes import FakeTracker, marked
from tests.receiver.test_service import Running, settings_of, taken_in
from wal.storage.local import LocalStorage

PARTITIONS = 4


def settings_for(tmp_path: Path, tracker: FakeTracker, broker: MockBroker, topic: str, strategy: str) -> Settings:
    import msgspec

    settings = settings_of(tmp_path, tracker.url)
    options = {**broker.options, "partition.assignment.strategy": strategy, "session.timeout.ms": "3000"}
    return msgspec.structs.replace(
        settings, kafka=msgspec.structs.replace(settings.kafka, topics=(topic,), options=options)
    )


def receiver(settings: Settings, tmp_path: Path, name: str) -> Running:
    source = KafkaSource.of(settings, client_id=name)
    return Running(
        compose(
            settings,
            name,
            source=source,
            storage=marked(LocalStorage(str(tmp_path / "wal"))),
            clock=SystemClock(),
            host="h",
        )
    )


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_a_rebalance_while_records_flow_loses_and_repeats_nothing(
    tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str], strategy: str
) -> None:
    """INV-2, rule 6: with eager and cooperative assignment, when a receiver joins and when one is drained."""
    topic = topic_name()
    mock_broker.create_topic(topic, PARTITIONS)
    stop = threading.Event()
    loaded = 0

    def flow() -> None:
        nonlocal loaded
        while not stop.is_set():
            load(
                mock_broker.options, topic, ((b"%d" % n, b"v%d" % n) for n in range(loaded, loaded + 200)), linger_ms=1
            )
            loaded += 200
            stop.wait(0.05)

    with FakeTracker() as tracker:
        settings = settings_for(tmp_path, tracker, mock_broker, topic, strategy)
        flowing = threading.Thread(target=flow)
        flowing.start()
        running: list[Running] = []
        try:
            running.append(receiver(settings, tmp_path, "r-1"))
            tracker.wait_for(lambda: len(tracker.positions) == PARTITIONS)
            running.append(receiver(settings, tmp_path, "r-2"))
            tracker.wait_for(lambda: sum(b.meta.receiver_id == "r-2" for b in tracker.blocks) > 3)
            running[0].service.drain()
            assert running[0].ended() == 0
            seen = len(tracker.blocks)
            tracker.wait_for(
                lambda: len({r.partition for b in tracker.blocks[seen:] for r in b.meta.ranges}) == PARTITIONS
            )
            stop.set()
            flowing.join()
            tracker.wait_for(lambda: sum(tracker.positions.values()) >= loaded)
            running[1].service.drain()
            assert running[1].ended() == 0
        finally:
            stop.set()
            flowing.join()
            for one in running:
                one.service.drain()
    records = taken_in(tmp_path, tracker)
    assert sum(map(len, records.values())) == loaded
    for tp in (TopicPartition(topic, n) for n in range(PARTITIONS)):
        assert [offset for offset, _ in records[tp]] == list(range(tracker.positions[tp]))
    assert sorted(value for own in records.values() for _, value in own) == sorted(b"v%d" % n for n in range(loaded))
