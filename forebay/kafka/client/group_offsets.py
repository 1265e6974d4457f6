"""Reads and sets a group's committed offsets from outside, by a consumer that never joins the group.

The admin client's requests for this end the whole process while the group's coordinator loads, moves or fails, by an assertion of
librdkafka (#3663, #5040).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.client.denials import is_denied
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock

#: timeout of one poll, which does not return when an answer arrives
_POLL_SECONDS = 0.01
_COORDINATOR_MS = 1_000
#: timeout of the first attempt, doubled for each later one: while a request waits for a coordinator, no reason is known
_ATTEMPT_SECONDS = 1.0
#: errors of single partitions of a commit; others concern the whole commit
_OF_PARTITION = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.OFFSET_METADATA_TOO_LARGE,
    KafkaError.INVALID_COMMIT_OFFSET_SIZE,
}

_Answer = tuple[dict[TopicPartition, int], dict[TopicPartition, KafkaError]]


class Point(Protocol):
    """A position to commit: the next offset to take in, the leader epoch of the record before it (-1: unknown), metadata."""

    @property
    def offset(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def metadata(self) -> str: ...


def commit_list(positions: Mapping[TopicPartition, Point]) -> list[WirePartition]:
    """Return ``positions`` as confluent-kafka takes them."""
    return [
        WirePartition(tp.topic, tp.partition, point.offset, point.metadata, point.leader_epoch)
        if point.leader_epoch >= 0
        else WirePartition(tp.topic, tp.partition, point.offset, point.metadata)
        for tp, point in positions.items()
    ]


class GroupOffsets:
    """The committed offsets of one group. Thread-safe."""

    def __init__(self, options: Mapping[str, str], *, group: str, clock: Clock, errors: ClientErrors) -> None:
        """``options``: those of a client. ``errors``: receives the reasons why brokers can't be reached.

        No I/O. Raises KafkaException for options that librdkafka refuses.
        """
        own = {
            "group.id": group, "enable.auto.commit": "false",
            # without a session: how long a commit waits for a coordinator, and closing waits for such a commit
            "session.timeout.ms": str(_COORDINATOR_MS),
        }  # fmt: skip
        callbacks = {"on_commit": self._on_commit, "error_cb": errors}
        self._consumer = Consumer({**options, **own, **callbacks}, logger=errors)
        self._clock = clock
        self._lock = threading.Lock()
        self._answer: _Answer = ({}, {})

    def close(self) -> None:
        self._consumer.close()

    def metadata(self) -> Any:
        """Return the group metadata with which a transactional producer commits offsets, of confluent-kafka's opaque type."""
        return self._consumer.consumer_group_metadata()

    def committed(self, partitions: Sequence[WirePartition], timeout_seconds: float) -> list[WirePartition]:
        """Return the committed offsets. Raises KafkaException, also for an error of a single partition."""
        answer, seconds, left = None, _ATTEMPT_SECONDS, timeout_seconds
        while answer is None:
            try:
                answer = self._consumer.committed(list(partitions), timeout=min(seconds, left))
            except KafkaException as error:
                self._poll(0)  # reports the reasons, which the request does not have
                left -= seconds
                seconds *= 2
                if error.args[0].code() != KafkaError._TIMED_OUT or left <= 0:
                    raise
        for partition in answer:
            if partition.error is not None:
                raise KafkaException(partition.error)
        return answer

    def commit(
        self, points: Mapping[TopicPartition, Point], timeout_seconds: float
    ) -> dict[TopicPartition, KafkaError]:
        """Commit, and return the partitions that Kafka refused. Raises KafkaException if no answer arrives in time."""
        with self._lock:
            deadline = self._clock.monotonic() + timeout_seconds
            errors = self._commit(points, deadline)
            if len(points) > 1 and any(error.code() in _OF_PARTITION for error in errors.values()):
                # librdkafka reports one partition's error for all of a commit: single commits show which one failed
                each = [self._commit({tp: point}, deadline) for tp, point in points.items()]
                errors = {tp: error for one in each for tp, error in one.items()}
            return errors

    def _commit(self, points: Mapping[TopicPartition, Point], deadline: float) -> dict[TopicPartition, KafkaError]:
        asked = {tp: point.offset for tp, point in points.items()}
        self._answer = ({}, {})
        self._consumer.commit(offsets=commit_list(points), asynchronous=True)
        while self._answer[0] != asked:  # a commit that timed out may be answered late
            if self._clock.monotonic() >= deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer to a commit"))
            self._poll(_POLL_SECONDS)
        return self._answer[1]

    def _poll(self, seconds: float) -> None:
        """Serve callbacks. Raises KafkaException if the authorizer denies the group: its coordinator is never found then."""
        message = self._consumer.poll(seconds)
        error = None if message is None else message.error()
        if error is not None and is_denied(error):
            raise KafkaException(error)

    def _on_commit(self, error: KafkaError | None, wire: list[WirePartition]) -> None:
        """Called within a poll."""
        offsets = {TopicPartition(one.topic, one.partition): one.offset for one in wire}
        own = {TopicPartition(one.topic, one.partition): one.error for one in wire if one.error is not None}
        self._answer = (offsets, own if own or error is None else dict.fromkeys(offsets, error))
