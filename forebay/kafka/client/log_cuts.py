"""Finds logs that were cut back, as after an unclean election, also if they have grown since: by leader epochs (KIP-320).

Kafka numbers the leaders of a partition, and the log knows where each leader's records begin. librdkafka compares a position
with the leader's log when it seeks to an offset with a leader epoch. It offers no request for that alone, so a consumer without
a group seeks, and its first record, end of the log or error is the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as WirePartition

from forebay.model.values import TopicPartition
from forebay.process.clock import Clock

#: librdkafka's answers to a seek before the assignment takes effect, for example while an earlier reading of the partition stops
SEEK_TOO_EARLY = (KafkaError._STATE, KafkaError._PREV_IN_PROGRESS)
#: where the log ends now, in librdkafka's text for a truncation
_END_REPORTED = re.compile(r"broker end offset is ([0-9]{1,18})")
_OPTIONS = {
    "group.id": "forebay-looks", "enable.auto.commit": "false", "auto.offset.reset": "error", "log_level": "0",
    "enable.partition.eof": "true", "fetch.message.max.bytes": "65536", "queued.max.messages.kbytes": "4096",
}  # fmt: skip
_POLL_SECONDS = 0.02
_MESSAGES_MAX = 1_000


class LogPoint(NamedTuple):
    """A place in a log whose records before ``offset`` are of ``leader_epoch`` or of older leaders."""

    offset: int
    leader_epoch: int


def is_truncation(text: str) -> bool:
    """Return whether librdkafka's error ``text`` says that a log was cut back below a position."""
    return "truncat" in text.lower()


def end_reported(text: str) -> int | None:
    """Return where the log was cut, as the error ``text`` of a truncation says; None if it does not say."""
    found = _END_REPORTED.search(text)
    return int(found[1]) if found is not None else None


def find_cuts(
    options: Mapping[str, Any], points: Mapping[TopicPartition, LogPoint], timeout_seconds: float, clock: Clock
) -> dict[TopicPartition, int]:
    """Return the partitions whose logs were cut back below their points, with the first offset that has another record now.

    ``options``: those of a client. A point before the log's first offset is not a cut. Raises KafkaException; with
    UNKNOWN_LEADER_EPOCH if the leader does not know an epoch, with _TIMED_OUT after ``timeout_seconds``.
    """
    consumer = Consumer({**options, **_OPTIONS})
    try:
        return _compare(consumer, points, clock.monotonic() + timeout_seconds, clock)
    finally:
        consumer.close()


def _compare(
    consumer: Consumer, points: Mapping[TopicPartition, LogPoint], deadline: float, clock: Clock
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    # records that arrive before the seek are read without a comparison
    unsought, waiting = set(points), set(points)
    consumer.assign([_wire(tp, point) for tp, point in points.items()])
    while waiting:
        if clock.monotonic() > deadline:
            names = ", ".join(map(str, sorted(waiting)[:3]))
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no broker compared the leader epoch of {names}"))
        unsought = {tp for tp in unsought if not _seek(consumer, _wire(tp, points[tp]))}
        for message in consumer.consume(_MESSAGES_MAX, _POLL_SECONDS):
            tp = _partition_of(message)
            if tp not in waiting or tp in unsought:
                continue
            error = message.error()
            if error is not None and is_truncation(error.str()):
                end = end_reported(error.str())
                if end is None:
                    words = f"the leader of {tp} does not know leader epoch {points[tp].leader_epoch}"
                    raise KafkaException(KafkaError(KafkaError.UNKNOWN_LEADER_EPOCH, words))
                found[tp] = end
            waiting.discard(tp)
            consumer.pause([WirePartition(tp.topic, tp.partition)])
    return found


def _seek(consumer: Consumer, wire: WirePartition) -> bool:
    try:
        consumer.seek(wire)
    except KafkaException as error:
        if error.args[0].code() not in SEEK_TOO_EARLY:
            raise
        return False
    return True


def _wire(tp: TopicPartition, point: LogPoint) -> WirePartition:
    return WirePartition(tp.topic, tp.partition, point.offset, leader_epoch=point.leader_epoch)


def _partition_of(message: Message) -> TopicPartition | None:
    topic, partition = message.topic(), message.partition()
    if topic is None or partition is None or partition < 0:
        return None  # an error of the whole client
    return TopicPartition(topic, partition)
