"""Offsets that a user's job wants committed to Kafka, gathered until the next batch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.spans import Span
from forebay.model.errors import ForebayError, UsageError
from forebay.model.values import TopicPartition

log = logging.getLogger(__name__)

#: hears the offsets that were sent, and partition → error for those that Kafka did not take
Callback: TypeAlias = Callable[[Mapping[TopicPartition, int], Mapping[TopicPartition, str]], None]


@dataclass(frozen=True, slots=True)
class _Point:
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(slots=True)
class Commits:
    """From any thread. ``group``: "" where none was given, so that nothing can be committed."""

    group: str
    _offsets: dict[TopicPartition, int] = field(default_factory=dict)
    _callbacks: list[Callback] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, ranges: Iterable[Span], callback: Callback | None = None) -> None:
        """The ends of ``ranges`` are committed with the next batch, or at the stop; of one partition the highest wins. Raises
        UsageError without a group."""
        if not self.group:
            raise UsageError("commit_async: there is no group to commit for: give kafka.'group.id'")
        with self._lock:
            for span in ranges:
                self._offsets[span.tp] = max(span.until_offset, self._offsets.get(span.tp, 0))
            if callback is not None:
                self._callbacks.append(callback)

    def send(self, admin: KafkaAdmin) -> None:
        """Commits what was added so far. What goes wrong reaches the callbacks, or, if there is none, the log: whoever commits
        an offset later sends a higher one anyhow."""
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
            shown = "; ".join(f"{tp}: {words}" for tp, words in sorted(errors.items()))
            log.error("offsets of group %s were not committed: %s", self.group, shown)
        for callback in callbacks:
            try:
                callback(offsets, errors)
            except Exception:
                log.exception("the callback of commit_async failed")
