"""Offsets that a job commits to Kafka, with the leader epochs of their ranges. They are collected until the next batch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeAlias

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.errors import ForebayError, UnreachableError, UsageError
from forebay.model.values import TopicPartition

log = logging.getLogger(__name__)

#: called with the offsets that were sent, and the errors of those that Kafka refused, by partition
Callback: TypeAlias = Callable[[Mapping[TopicPartition, int], Mapping[TopicPartition, str]], None]

#: the number of each unfinished batch, with each of its spans
Unfinished: TypeAlias = Iterable[tuple[int, OffsetRange]]


@dataclass(frozen=True, slots=True)
class _Point:
    offset: int
    leader_epoch: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class _Request:
    """One call of ``commit_async``. ``number``: that of its batch."""

    points: Mapping[TopicPartition, _Point]
    callback: Callback | None
    number: int

    def waits_for(self, unfinished: Unfinished) -> bool:
        """Return whether its batch or an earlier one has offsets before those of the request, and is unfinished."""
        return any(
            number <= self.number and span.tp in self.points and self.points[span.tp].offset > span.from_offset
            for number, span in unfinished
        )


@dataclass(slots=True)
class DirectCommits:
    """Collects offsets and commits them.

    The offsets of a batch are committed when that batch and all before it are completed. So a stream that begins at committed
    offsets misses no record, also if batches run at the same time. Thread-safe. ``group``: the consumer group; "" for none, so
    that every commit fails.
    """

    group: str
    _requests: list[_Request] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, ranges: Iterable[OffsetRange], callback: Callback | None = None, number: int = 0) -> None:
        """Add the ends of ``ranges`` to the next commit, which is sent with the next batch or at the stop.

        Of one partition, the highest offset of the newest batch is committed. ``number``: that of the batch of the offsets; they
        wait until it and all batches before it are completed. Raises UsageError without a group.
        """
        if not self.group:
            raise UsageError("commit_async: no consumer group is set: set group.id in kafka_params")
        points = _highest((span.tp, _Point(span.until_offset, span.leader_epoch)) for span in ranges)
        with self._lock:
            self._requests.append(_Request(points, callback, number))

    def send(self, admin: KafkaAdmin, unfinished: Callable[[], Unfinished] = tuple) -> None:
        """Commit the offsets that were added and wait for no batch. Errors go to the callbacks; without callbacks, to the log.

        ``unfinished``: returns the number and each span of all batches that are not completed. A failed commit is not
        repeated, because a later one sends higher offsets. Raises UnreachableError if ``unfinished`` does.
        """
        with self._lock:
            known = len(self._requests)
        if not known:
            return
        spans = tuple(unfinished())  # without the lock, because jobs add meanwhile
        with self._lock:
            first, later = self._requests[:known], self._requests[known:]
            ready = [request for request in first if not request.waits_for(spans)]
            self._requests = [*(request for request in first if request.waits_for(spans)), *later]
        if not ready:
            return
        # a later batch has lower offsets if the topic was created again, or its log cut back
        in_order = sorted(
            ((request.number, point.offset, tp, point) for request in ready for tp, point in request.points.items()),
            key=itemgetter(0, 1),
        )
        points = {tp: point for _, _, tp, point in in_order}
        errors: Mapping[TopicPartition, str] = {}
        try:
            if points:
                errors = admin.publish(self.group, points)
        except ForebayError as error:
            errors = dict.fromkeys(points, str(error))
        self._tell(ready, points, errors)

    def send_last(self, admin: KafkaAdmin, unfinished: Callable[[], Unfinished]) -> None:
        """Commit as :meth:`send` at the end of the stream. Offsets of batches that are not completed are not committed, and the
        callbacks get that as the error."""
        try:
            self.send(admin, unfinished)
        except UnreachableError as error:  # the stream's decision loop has ended
            cause = str(error)
        else:
            cause = "its batch, or one before it, is not completed"
        with self._lock:
            left, self._requests = self._requests, []
        for request in left:
            self._tell([request], request.points, dict.fromkeys(request.points, cause))

    def _tell(
        self,
        requests: Iterable[_Request],
        points: Mapping[TopicPartition, _Point],
        errors: Mapping[TopicPartition, str],
    ) -> None:
        offsets = {tp: point.offset for tp, point in points.items()}
        callbacks = [request.callback for request in requests if request.callback is not None]
        if errors and not callbacks:
            shown = "; ".join(f"{tp}: {cause}" for tp, cause in sorted(errors.items()))
            log.error("cannot commit offsets of group %s: %s", self.group, shown)
        for callback in callbacks:
            try:
                callback(offsets, errors)
            except Exception:
                log.exception("the callback of commit_async failed")


def _highest(points: Iterable[tuple[TopicPartition, _Point]]) -> dict[TopicPartition, _Point]:
    """Return the point with the highest offset of each partition."""
    found: dict[TopicPartition, _Point] = {}
    for tp, point in points:
        if tp not in found or point.offset > found[tp].offset:
            found[tp] = point
    return found
