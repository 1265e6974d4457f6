"""Direct streams of topics that are compacted."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from direct.stream.strategies import Assign
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.range_reader import Reading
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import JobError
from forebay.model.values import TopicPartition
from tests.support.kafka.flow import Truth, produce, read_topic
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.processes.direct_runs import RowsRead, Runs

pytestmark = pytest.mark.kafka


def test_compacted_topic_is_read_if_offset_gaps_are_allowed_and_named_otherwise(
    runs: Runs, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-5: all remaining records are read, and offsets without a record are never reported as lost."""
    tp = TopicPartition(topic_name(), 0)
    with KafkaAdmin(kafka_broker.options) as admin:
        admin.create_topic(tp.topic, 1, {
            "cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "100", "min.compaction.lag.ms": "0", "delete.retention.ms": "0",
        })  # fmt: skip
        produced, waited, kept = 0, threading.Event(), 0
        while (
            not produced or kept > produced - 50
        ):  # segments roll when something is written, closed ones are compacted
            records = [(b"k%d" % (n % 7), b"%d" % n) for n in range(produced, produced + 30)]
            produce(kafka_broker.options, tp.topic, records, Truth(), partitions=[0])
            produced += 30
            waited.wait(0.1)
            ends = {(tp.topic, 0): admin.ends([tp])[tp]}
            kept = len(read_topic(kafka_broker.options, ends))
    job = RowsRead(runs, Reading(allow_offset_gaps=True, keep=False))
    stream = runs.start(Assign([tp]), job)
    runs.await_records(produced)
    runs.stop(stream)
    still = read_topic(kafka_broker.options, {(tp.topic, 0): produced}).table().column("offset").to_pylist()
    offsets = [offset for _, offset in job.read]
    assert offsets == sorted(set(offsets)) and set(still) <= set(offsets)
    assert len(offsets) < produced
    runs.checkpoint = runs.checkpoint / "other"
    stream = runs.start(Assign([tp]), RowsRead(runs, Reading(keep=False)), max_failures=1)
    with pytest.raises(JobError, match=r"OffsetGapError.*\[0, \d+\): from offset \d+ on the next record is \d+"):
        stream.await_termination(PATIENCE_SECONDS)
