"""Finds logs that were cut back, as after an unclean election, also if they have grown since: by leader epochs (KIP-320).

Kafka numbers the leaders of a partition, and the log knows where each leader's records begin. librdkafka compares a position
with the leader's log when it seeks to an offset with a leader epoch. It offers no request for that alone, so a consumer without
a group seeks far beyond the log's end: librdkafka's error has the leader's answer, the log's last epoch up to the asked one, and
the end of that epoch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as WirePartition

from forebay.model.values import TopicPartition
from forebay.process.clock import Clock

#: librdkafka's answers to a seek before the assignment takes effect, for example while an earlier reading of the partition stops,
#: and to one during which the partition is assigned again or revoked (_OUTDATED)
SEEK_TOO_EARLY = (KafkaError._STATE, KafkaError._PREV_IN_PROGRESS, KafkaError._OUTDATED)
#: The leader's answer, in librdkafka's text for a truncation, whose error has a code but no field for the answer.
#: ``tests/forebay/kafka/client/test_log_cuts.py`` reads it from a real Kafka.
_END_REPORTED = re.compile(r"broker end offset is ([0-9]{1,18})(?: \(offset leader epoch ([0-9]{1,10})\))?")
_OUT_OF_RANGE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
#: beyond the end of each log
_FAR = 10**18 - 1
_OPTIONS = {
    "group.id": "forebay-looks", "enable.auto.commit": "false", "auto.offset.reset": "error", "log_level": "0",
    "enable.partition.eof": "true", "fetch.message.max.bytes": "65536", "queued.max.messages.kbytes": "4096",
}  # fmt: skip
_POLL_SECONDS = 0.02
_MESSAGES_MAX = 1_000
#: the newest leaders of a partition whose ends are remembered
_LEADERS_MAX = 16


class LogPoint(NamedTuple):
    """A place in a log whose records before ``offset`` are of ``leader_epoch`` or of older leaders.

    ``since``: an offset before it from which on all of them are of ``leader_epoch``; -1 if none is known.
    """

    offset: int
    leader_epoch: int
    since: int = -1

    def cut_by(self, answer: LogPoint) -> int | None:
        """Return the first offset that has another record now; None if there is none.

        ``answer``: the log's last epoch up to ``leader_epoch``, and the end of that epoch.
        """
        if self.since >= 0 and answer.leader_epoch < self.leader_epoch:
            return min(self.since, answer.offset)  # also if an older epoch is longer than it was: two unclean elections
        return answer.offset if answer.offset < self.offset else None


class LeaderEnds:
    """The first ends of logs that their leaders reported. What a leader's log has gained since is of its leader epoch."""

    def __init__(self) -> None:
        self._first: dict[TopicPartition, tuple[str, dict[int, int]]] = {}

    def see(self, tp: TopicPartition, topic_id: str, end: int, leader_epoch: int) -> None:
        """Take note of an end that the leader reports now. Another ``topic_id`` is another topic, with epochs of its own."""
        known = self._first.get(tp)
        if known is None or known[0] != topic_id:
            known = self._first[tp] = (topic_id, {})
        known[1].setdefault(leader_epoch, end)
        while len(known[1]) > _LEADERS_MAX:
            del known[1][min(known[1])]

    def point(self, tp: TopicPartition, offset: int, leader_epoch: int) -> LogPoint:
        """Return the point of an offset that was chosen at or below an end of the leader with ``leader_epoch``."""
        _, first = self._first.get(tp, ("", {}))
        since = first.get(leader_epoch, offset)
        return LogPoint(offset, leader_epoch, since if since < offset else -1)


def is_truncation(text: str) -> bool:
    """Return whether librdkafka's error ``text`` says that a log was cut back below a position."""
    return "truncat" in text.lower()


def end_reported(text: str) -> int | None:
    """Return where the log was cut, as the error ``text`` of a truncation says; None if it does not say."""
    found = _END_REPORTED.search(text)
    return int(found[1]) if found is not None else None


def _answer_in(text: str) -> LogPoint | None:
    """Return the leader's answer, as the error ``text`` of a truncation says; None if the log has no such epoch."""
    found = _END_REPORTED.search(text)
    return LogPoint(int(found[1]), int(found[2])) if found is not None and found[2] is not None else None


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
    unsought, waiting = set(points), set(points)
    consumer.assign([WirePartition(tp.topic, tp.partition, point.offset) for tp, point in points.items()])
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
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                unsought.add(tp)  # from the offset before the seek
            elif is_truncation(error.str()):
                answer = _answer_in(error.str())
                if answer is None:
                    reason = f"the leader of {tp} does not know leader epoch {points[tp].leader_epoch}"
                    raise KafkaException(KafkaError(KafkaError.UNKNOWN_LEADER_EPOCH, reason))
                cut = points[tp].cut_by(answer)
                if cut is not None:
                    found[tp] = cut
                waiting.discard(tp)
            elif error.code() not in _OUT_OF_RANGE:
                raise KafkaException(error)
            elif message.offset() == _FAR:
                waiting.discard(tp)  # the broker compares no leader epochs, so librdkafka reads there
            else:
                unsought.add(tp)
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
    return WirePartition(tp.topic, tp.partition, _FAR, leader_epoch=point.leader_epoch)


def _partition_of(message: Message) -> TopicPartition | None:
    topic, partition = message.topic(), message.partition()
    if topic is None or partition is None or partition < 0:
        return None  # an error of the whole client
    return TopicPartition(topic, partition)
