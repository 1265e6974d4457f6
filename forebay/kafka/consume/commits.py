"""Commits of a group's member: asynchronous ones with their errors, and ones whose answer is awaited."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.client.group_offsets import Point, commit_list
from forebay.model.values import TopicPartition


class ConsumerCommits:
    """The commits of one consumer. For the polling thread; :meth:`on_commit` is called within a poll."""

    def __init__(self, serve: Callable[[Callable[[], bool], float], bool]) -> None:
        """``serve(done, deadline)``: polls until ``done`` returns true, and returns whether that was before the deadline."""
        self._serve = serve
        self._errors: dict[TopicPartition, str] = {}
        self._unanswered = 0
        self._awaited: _Awaited | None = None

    def send(self, consumer: Consumer, positions: Mapping[TopicPartition, Point]) -> None:
        """Commit without waiting. :meth:`take_errors` returns what failed, after a later poll.

        librdkafka reports the error of one partition for every partition of the commit.
        """
        try:
            consumer.commit(offsets=commit_list(positions), asynchronous=True)
            self._unanswered += 1
        except KafkaException as error:
            self._answer({tp: point.offset for tp, point in positions.items()}, error.args[0], {})

    def send_and_wait(
        self,
        consumer: Consumer,
        positions: Mapping[TopicPartition, Point],
        owned: Container[TopicPartition],
        deadline: float,
    ) -> dict[TopicPartition, str]:
        """Commit and wait for the answer. Return partition → error; {} on success.

        ``owned``: the partitions that this member may commit. A broker accepts a commit without membership if the group is
        empty, so a consumer that is not a member is refused here.
        """
        # librdkafka's own synchronous commit has no timeout and blocks every other call. Earlier commits are awaited first:
        # their answers prove nothing about the current membership
        if not self._serve(lambda: self._unanswered == 0, deadline):
            return dict.fromkeys(positions, "an earlier commit has not been answered yet")
        member = consumer.memberid()
        refused = {
            tp: "not assigned to this member" if member else "not a member of the group"
            for tp in positions
            if tp not in owned or not member
        }
        asked = {tp: point for tp, point in positions.items() if tp not in refused}
        if not asked:
            return refused
        errors = self._send_awaited(consumer, asked, deadline)
        if errors and len(asked) > 1:
            # librdkafka reports one partition's error for all of a commit: single commits show which one failed
            errors = {}
            for tp, point in asked.items():
                errors.update(self._send_awaited(consumer, {tp: point}, deadline))
        return {**refused, **errors}

    def take_errors(self) -> dict[TopicPartition, str]:
        """Return the errors of asynchronous commits since the last call, per partition."""
        errors, self._errors = self._errors, {}
        return errors

    def on_commit(self, error: KafkaError | None, wire: Sequence[WirePartition]) -> None:
        """librdkafka's callback for the answer to a commit."""
        self._unanswered -= 1
        own = {_partition(one): one.error.str() for one in wire if one.error is not None}
        # the error of the whole repeats that of one partition, if a partition has an error of its own
        offsets = {_partition(one): one.offset for one in wire}
        self._answer(offsets, None if own else error, own)

    def _send_awaited(
        self, consumer: Consumer, points: Mapping[TopicPartition, Point], deadline: float
    ) -> dict[TopicPartition, str]:
        self._awaited = awaited = _Awaited({tp: point.offset for tp, point in points.items()})
        self.send(consumer, points)
        self._serve(lambda: awaited.errors is not None, deadline)
        self._awaited = None
        return dict.fromkeys(points, "no answer in time") if awaited.errors is None else awaited.errors

    def _answer(
        self, offsets: dict[TopicPartition, int], error: KafkaError | None, own: dict[TopicPartition, str]
    ) -> None:
        errors = own if error is None else dict.fromkeys(offsets, error.str())
        if self._awaited is not None and self._awaited.offsets == offsets:
            self._awaited.errors = errors
            return
        for tp in offsets:
            self._errors.pop(tp, None)
        self._errors.update(errors)


@dataclass(slots=True)
class _Awaited:
    """A commit whose answer is awaited, identified by its offsets. ``errors``: None until the answer arrives."""

    offsets: dict[TopicPartition, int]
    errors: dict[TopicPartition, str] | None = None


def _partition(wire: WirePartition) -> TopicPartition:
    return TopicPartition(wire.topic, wire.partition)
