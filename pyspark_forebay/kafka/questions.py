"""What the planner of a query asks Kafka. It joins no group and commits nothing."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import tenacity

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.log_cuts import LeaderEnds, LogPoint
from forebay.kafka.options.librdkafka import check_options
from forebay.model.errors import UnknownTopicError, UnreachableError
from forebay.model.values import TopicPartition
from pyspark_forebay.kafka.planning import lower_ends
from pyspark_forebay.offsets import EARLIEST, LATEST, Offsets, Positions, comma_separated
from pyspark_forebay.options.limits import Limit, check_all_named, no_record_since
from pyspark_forebay.options.source import SourceOptions

_log = logging.getLogger("forebay.source")

T = TypeVar("T")

#: internal topics of Kafka, which a pattern never matches
INTERNAL = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))


class Questions:
    """Asks brokers about partitions, offsets and topic ids.

    Each method retries as ``fetchOffset.numRetries`` and ``fetchOffset.retryIntervalMs`` say. After the last attempt it
    raises UnreachableError, or UnknownTopicError for a topic that Kafka does not have.
    """

    def __init__(self, options: SourceOptions) -> None:
        """Check the Kafka options, without I/O. Raises SettingsError for an option that the client refuses."""
        self._options = options
        check_options(options.kafka)  # including options that only tasks use
        self._admin = KafkaAdmin(options.kafka, client_id="forebay-source")
        self._led = LeaderEnds()
        self._absent: frozenset[TopicPartition] = frozenset()  # partitions that the last warning named
        self._pause = threading.Event()
        self._retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(options.offset_retries + 1),
            wait=tenacity.wait_fixed(options.offset_retry_seconds),
            retry=tenacity.retry_if_exception_type((UnreachableError, UnknownTopicError)),
            before_sleep=lambda state: _log.warning("%s: retrying", state.outcome and state.outcome.exception()),
            reraise=True,
        )

    def close(self) -> None:
        self._admin.close()

    def latest(self, known: Offsets | None = None) -> Offsets:
        """Return the present end of each partition that the query reads, with its leader epoch, and the ids of the topics.

        ``known``: offsets that the query has reached. An end below them may come from a leader that has just been
        elected, so the question is repeated, and such an end is returned only if all attempts return it.
        """
        found = self._again(self._latest)
        for _ in range(self._options.offset_retries):
            lower = lower_ends(known, found) if known is not None else set()
            if not lower:
                break
            _log.warning(
                "Kafka reports ends of %s that are below offsets already read: asking again", comma_separated(lower)
            )
            self._pause.wait(self._options.offset_retry_seconds)
            found = self._again(self._latest)
        return found

    def _latest(self) -> Offsets:
        partitions = self._partitions()
        ids = self._admin.topic_ids({tp.topic for tp in partitions})
        ends = self._admin.log_ends(partitions)
        for tp, end in ends.items():
            self._led.see(tp, ids[tp.topic], end.offset, end.leader_epoch)
        return Offsets(
            {tp: end.offset for tp, end in ends.items()},
            {topic: own for topic, own in ids.items() if own},
            leader_epochs={tp: end.leader_epoch for tp, end in ends.items() if end.leader_epoch >= 0},
        )

    def cuts(self, points: Mapping[TopicPartition, LogPoint]) -> dict[TopicPartition, int]:
        """Return the partitions whose logs were cut back below their points, with the first offset that has another record
        now. Partitions that no longer exist are omitted."""
        if not points:
            return {}

        def ask() -> dict[TopicPartition, int]:
            there = self._partitions_of({tp.topic for tp in points}.__contains__)
            known = {tp: point for tp, point in points.items() if tp in there}
            return self._admin.cuts({tp: self._led.point(tp, at.offset, at.leader_epoch) for tp, at in known.items()})

        return self._again(ask)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the present id of each of ``topics`` that exists and has one."""
        names = sorted(set(topics))
        found = self._again(lambda: self._admin.topic_ids(names))
        return {topic: own for topic, own in found.items() if own}

    def beginnings(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each of ``partitions`` that exists."""
        wanted = set(partitions)
        if not wanted:
            return {}

        def ask() -> dict[TopicPartition, int]:
            there = self._partitions_of({tp.topic for tp in wanted}.__contains__)
            return self._admin.places(dict.fromkeys(wanted & there, "earliest"))

        return self._again(ask)

    def resolve(self, limit: Limit, latest: Positions, *, starting: bool) -> dict[TopicPartition, int]:
        """Return ``limit`` as an offset of each partition of ``latest``; partitions that disappeared meanwhile are
        omitted.

        Raises UsageError if ``limit`` does not name all partitions; and if a partition has no record at or after its
        starting time, unless ``startingOffsetsByTimestampStrategy`` is "latest".
        """
        name = "starting" if starting else "ending"
        if limit.policy == "latest":
            return dict(latest)
        if limit.policy == "earliest":
            return self._beginnings_of(latest)
        if limit.offsets is not None:
            check_all_named(set(latest), set(limit.offsets), f"{name}Offsets")
            earliest = self.beginnings(tp for tp, offset in limit.offsets.items() if offset == EARLIEST)
            given = {tp: offset for tp, offset in limit.offsets.items() if offset != EARLIEST}
            return {**{tp: latest[tp] if offset == LATEST else offset for tp, offset in given.items()}, **earliest}
        if limit.timestamps is not None:
            check_all_named(set(latest), set(limit.timestamps), f"{name}OffsetsByTimestamp")
            times: Mapping[TopicPartition, int] = limit.timestamps
        else:
            times = dict.fromkeys(latest, limit.timestamp or 0)
        found = self._again(lambda: self._admin.places(times))
        none = sorted(tp for tp, offset in found.items() if offset < 0)
        if none and starting and not self._options.latest_without_match:
            raise no_record_since(none[0], times[none[0]])
        return {**found, **{tp: latest[tp] for tp in none}}

    def _beginnings_of(self, latest: Positions) -> dict[TopicPartition, int]:
        found = self.beginnings(latest)
        return {tp: found[tp] for tp in latest if tp in found}

    def _partitions(self) -> set[TopicPartition]:
        wanted = self._options.subscription
        topics = wanted.topics or {tp.topic for tp in wanted.partitions}
        if wanted.pattern is None:
            there = self._partitions_of(topics.__contains__)
        else:
            found = re.compile(wanted.pattern).search  # like Spark's: anywhere in the name
            there = self._partitions_of(lambda topic: topic not in INTERNAL and found(topic) is not None)
        missing = set(topics) - {tp.topic for tp in there}
        if missing:
            self._admin.check_visible(missing)
            raise UnknownTopicError(f"Kafka has no topic {', '.join(sorted(missing))}")
        if not wanted.partitions:
            return there
        absent = wanted.partitions - there
        if absent - self._absent:
            _log.warning(
                "option assign names %s, which Kafka does not have; these are not read", comma_separated(absent)
            )
        self._absent = absent
        return there & wanted.partitions

    def _partitions_of(self, wanted: Callable[[str], bool]) -> set[TopicPartition]:
        counts = self._admin.topics(internal=True)
        return {TopicPartition(topic, n) for topic, count in counts.items() if wanted(topic) for n in range(count)}

    def _again(self, ask: Callable[[], T]) -> T:
        answer: T = self._retrying(ask)
        return answer
