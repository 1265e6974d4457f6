"""Offsets that a job commits to Kafka. They are collected until the next batch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.errors import ForebayError, UsageError
from forebay.model.values import TopicPartition

log = logging.getLogger(__name__)

#: called with the offsets that were sent, and the errors of those that Kafka refused, by partition
Callback: TypeAlias = Callable[[Mapping[TopicPartition, int], Mapping[TopicPartition, str]], None]


@dataclass(frozen=True, slots=True)
class _Point:
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(slots=True)
class Commits:
    """Collects offsets and commits them.

    Thread-safe. ``group``: the consumer group; "" for none, so that every commit fails.
    """

    group: str
    _offsets: dict[TopicPartition, int] = field(default_factory=dict)
    _callbacks: list[Callback] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, ranges: Iterable[OffsetRange], callback: Callback | None = None) -> None:
        """Add the ends of ``ranges`` to the next commit, which is sent with the next batch or at the stop.

        Of one partition the highest offset is committed. Raises UsageError without a group.
        """
        if not self.group:
            raise UsageError("commit_async: no consumer group is set: set group.id in kafka_params")
        with self._lock:
            for span in ranges:
                self._offsets[span.tp] = max(span.until_offset, self._offsets.get(span.tp, 0))
            if callback is not None:
                self._callbacks.append(callback)

    def send(self, admin: KafkaAdmin) -> None:
        """Commit the offsets that were added. Errors go to the callbacks; without callbacks, to the log.

        A failed commit is not repeated, because a later one sends higher offsets.
        """
        with self._lock:
            offsets, self._offsets = self._offsets, {}
            callbacks, self._callbacks = self._callbacks, []
        errors: Mapping[TopicPartition, str] = {}
        try:
            if offsets:
                errors = admin.publish(self.group, {tp: _Point(offset) for tp, offset in offsets.items()})
        except ForebayError as error:
            errors = dict.fromkeys(offsets, str(error))
        if errors and not callbacks:
            shown = "; ".join(f"{tp}: {cause}" for tp, cause in sorted(errors.items()))
            log.error("cannot commit offsets of group %s: %s", self.group, shown)
        for callback in callbacks:
            try:
                callback(offsets, errors)
            except Exception:
                log.exception("the callback of commit_async failed")
