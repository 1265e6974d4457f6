"""A partition's log that is cut back, as after an unclean election: one broker starts again with an older copy of the log."""

from __future__ import annotations

import shutil
from pathlib import Path

from confluent_kafka import Producer

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from tests.support.kafka.polling import PATIENCE_SECONDS, await_markers
from tests.support.state.again import produce


def log_to_cut(broker: KafkaBroker, tp: TopicPartition, keep: Path) -> OlderLog:
    """Create the topic with 100 records. A cut leaves the first 80: their key is ``kept``, that of the others ``cut off``."""
    broker.create_topic(tp.topic, 1)
    produce(broker.options, tp, 80, key=b"kept")
    older = OlderLog(broker, tp, keep)
    produce(broker.options, tp, 20, key=b"cut off")
    return older


def log_to_return_to(broker: KafkaBroker, tp: TopicPartition, keep: Path) -> OlderLog:
    """Create the topic, and cut its log back to 80 records. Return the log before the cut, with 100, whose leader may return."""
    older = log_to_cut(broker, tp, keep / "older")
    first_leader = OlderLog(broker, tp, keep / "first")
    older.cut_back()
    return first_leader


def log_with_marker_of_newer_leader(broker: KafkaBroker, tp: TopicPartition) -> None:
    """Create the topic with five records of a transaction, whose marker at offset 5 is of the next leader epoch."""
    broker.create_topic(tp.topic, 1)
    producer = Producer({**broker.options, "transactional.id": tp.topic})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    for _ in range(5):
        producer.produce(tp.topic, b"v", partition=tp.partition)
    assert producer.flush(PATIENCE_SECONDS) == 0
    broker.kill9()
    broker.start()
    producer.commit_transaction(PATIENCE_SECONDS)
    await_markers(broker.options, [tp])


class OlderLog:
    """A copy of the log of ``tp``. All of its records must be acknowledged."""

    def __init__(self, broker: KafkaBroker, tp: TopicPartition, keep: Path) -> None:
        self._broker = broker
        self._folder = broker.directory / "data" / f"{tp.topic}-{tp.partition}"
        self._copy = Path(shutil.copytree(self._folder, keep))

    def cut_back(self) -> None:
        """Kill the broker, and start it with the copy. It leads the partition under a new leader epoch."""
        self._broker.kill9()
        shutil.rmtree(self._folder)
        shutil.copytree(self._copy, self._folder)
        self._broker.start()
