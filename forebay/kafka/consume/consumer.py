"""A receiver's source: librdkafka's consumer group, whose records become columns per partition.

Kafka's group decides only which partitions are ours. A partition is read only from :meth:`KafkaSource.start` until the next
revocation, loss, fault or start, and everything polled has the generation of that start. So no record of an older assignment
can pass for one of a newer assignment (rule 3 of *Who owns an offset*), whatever librdkafka's queues still hold.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.client.denials import is_denied, next_step
from forebay.kafka.client.group_offsets import Point
from forebay.kafka.client.log_cuts import LogPoint
from forebay.kafka.consume.assignment import Assignment
from forebay.kafka.consume.commits import ConsumerCommits
from forebay.kafka.consume.fetching import Fetcher, opened
from forebay.kafka.consume.selection import Polled, Selection
from forebay.kafka.options.librdkafka import consumer_options, is_cooperative
from forebay.kafka.options.rights import receiver_rights
from forebay.model.columns import RebalanceListener, Start
from forebay.model.errors import ForebayError, UnknownTopicError, UnreachableError
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock, SystemClock
from forebay.settings.schema import ReceiverSettings, Settings

_log = logging.getLogger("forebay.kafka")

#: maximum time to leave the group
LEAVE_SECONDS = 5.0
#: maximum number of records kept while a synchronous commit is awaited; at this number the wait ends
KEPT_MAX = 10_000

#: calls the listener's method for one kind of rebalance
_Call = Callable[[RebalanceListener, list[TopicPartition]], None]


class KafkaSource:
    """Implements ``receiver.sources.source.Source``. For the polling thread only, except ``watermarks`` and ``topic_ids``.

    One class, because librdkafka's callbacks about the group and about commits come within any call that polls.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        group: str,
        topics: Sequence[str] = (),
        headers: bool = False,
        memory_bytes: int = int(ReceiverSettings().memory),
        client_id: str = "forebay-receiver",
        metadata_refresh_seconds: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``options``: the pass-through keys of ``[kafka]``. ``topics``: the subscription, until :meth:`follow` changes it.
        ``headers``: whether records have a column of headers. ``memory_bytes``: bound of librdkafka's prefetch queue.
        ``metadata_refresh_seconds``: interval at which librdkafka looks for new partitions; None for its own.

        No I/O before :meth:`subscribe`. Raises SettingsError if an option that Forebay needs has another value.
        """
        self._given_options = dict(options)
        self._group = group
        self._options = consumer_options(
            options, group=group, memory_bytes=memory_bytes, client_id=client_id,
            metadata_refresh_seconds=metadata_refresh_seconds,
        )  # fmt: skip
        self._cooperative = is_cooperative(self._options)
        self._assignment = Assignment(lambda: self._kafka, self._cooperative, self._assigning)
        self._topics = list(topics)
        self._headers = headers
        self._client_id = client_id
        self._consumer: Consumer | None = None
        self._admin: KafkaAdmin | None = None
        self._listener: RebalanceListener | None = None
        self._owned: set[TopicPartition] = set()
        self._stopped_in_poll: set[TopicPartition] = set()
        self._starts_in_poll: list[Start] = []
        self._polling = False
        self._closing = False
        self._callback_error: BaseException | None = None
        self._commits = ConsumerCommits(self._serve)
        self._fetcher: Fetcher | None = None
        self._clock: Clock = clock or SystemClock()
        self._fatal: KafkaError | None = None
        self._client_errors = ClientErrors(_log, rights=lambda: receiver_rights(self._topics, group))
        self._selection = Selection(
            self._assignment, errors=self._client_errors, failed=self._on_error, next_record=self._next_record,
            cuts=self._cuts,
        )  # fmt: skip

    @classmethod
    def of(cls, settings: Settings, client_id: str) -> KafkaSource:
        """Return the source of one receiver. The driver sends it the topics that ``kafka.pattern`` matches."""
        return cls(
            settings.kafka.options, group=settings.group, topics=settings.kafka.topics,
            headers=settings.kafka.headers, memory_bytes=settings.receiver.memory, client_id=client_id,
            metadata_refresh_seconds=settings.kafka.discovery_interval,
        )  # fmt: skip

    # ---- the group --------------------------------------------------------------------------------------------------

    def subscribe(self, listener: RebalanceListener) -> None:
        """Join the group. Later polls give partitions to ``listener``. Raises SettingsError for a refused option."""
        self._listener = listener
        # a client of its own for requests: the consumer's calls wait for one another, also for a long poll
        self._admin = KafkaAdmin(self._given_options, client_id=f"{self._client_id}-admin")
        callbacks = {"error_cb": self._on_error, "on_commit": self._commits.on_commit}
        self._consumer, self._fetcher = opened({**self._options, **callbacks}, self._client_errors, self._headers)
        if self._topics:
            self._join(self._consumer)

    def follow(self, topics: Sequence[str]) -> None:
        """Replace the subscription by ``topics``; leave the group if there are none.

        Before :meth:`subscribe`, only store ``topics`` for it.

        Raises ForebayError if librdkafka refuses the subscription.
        """
        self._topics = list(topics)
        if self._consumer is None:
            return
        self._client_errors.forget()  # a reason may concern a topic of the old subscription
        try:
            if self._topics:
                self._join(self._consumer)
            else:
                self._consumer.unsubscribe()
        except KafkaException as error:
            raise _raisable(error) from None

    def _join(self, consumer: Consumer) -> None:
        consumer.subscribe(self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that the group has assigned to this member."""
        return frozenset(self._owned)

    def _on_assign(self, _: Consumer, wire: list[WirePartition]) -> None:
        partitions = _ours(wire)
        self._client_errors.forget()  # the group's coordinator has answered
        # nothing is read before start()
        try:
            self._assignment.assigned()
        except KafkaException as error:
            self._callback_error = self._callback_error or _raisable(error)
        self._owned.update(partitions)
        self._stopped_in_poll.update(partitions)
        self._notify(lambda listener, partitions: listener.assigned(partitions), partitions)

    def _on_revoke(self, _: Consumer, wire: list[WirePartition]) -> None:
        self._withdraw(_ours(wire), lambda listener, partitions: listener.revoked(partitions))

    def _on_lost(self, _: Consumer, wire: list[WirePartition]) -> None:
        self._withdraw(_ours(wire), lambda listener, partitions: listener.lost(partitions))

    def _withdraw(self, wire: list[TopicPartition], call: _Call) -> None:
        """Give the partitions up after the listener has sealed, stored and reported its records of them (rule 6)."""
        # the list may name partitions that were never assigned (confluent-kafka-python#1551)
        partitions = [tp for tp in wire if tp in self._owned]
        self._stopped_in_poll.update(partitions)
        try:
            self._notify(call, partitions)
        finally:
            self._owned.difference_update(partitions)
            try:
                self._assignment.revoked(partitions)
            except KafkaException as error:
                self._callback_error = self._callback_error or _raisable(error)

    def _notify(self, call: _Call, partitions: list[TopicPartition]) -> None:
        """Call the listener. Store its exception for ``poll`` to raise, because it can't pass through librdkafka's C code."""
        if self._closing or self._listener is None or not partitions:
            return
        try:
            call(self._listener, partitions)
        except BaseException as error:  # raised again by poll
            self._callback_error = self._callback_error or error

    def _on_error(self, error: KafkaError, topic: str = "") -> None:
        if error.fatal():
            self._fatal = error
        elif topic and is_denied(error):
            self._client_errors.add(error.str(), step=next_step(error, receiver_rights([topic], self._group)))
        else:
            self._client_errors(error)

    @property
    def last_error(self) -> str:
        """Why brokers can't be reached; "" after records were read again. For status only."""
        return self._client_errors.text()

    # ---- reading ----------------------------------------------------------------------------------------------------

    def start(self, starts: Sequence[Start]) -> None:
        """Unassign these partitions, then assign them at their offset and leader epoch, not paused.

        What is polled of them from now on has the new generation. Other partitions continue at their positions, and stay paused
        if they were. A partition that the group has revoked meanwhile is ignored. Within a callback, the start takes effect when
        the poll returns.
        """
        if self._polling:
            self._starts_in_poll.extend(starts)
            return
        starts = [start for start in starts if start.tp in self._owned]
        self._assignment.start(starts)

    def _assigning(self, assigned: Collection[TopicPartition], anew: Collection[TopicPartition]) -> None:
        if self._fetcher is not None:  # not while it leaves the group
            self._fetcher.assigning(assigned, anew)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return no records of these until they are resumed. Partitions that are not started are ignored.

        The caller must keep polling to stay a member of the group.
        """
        self._assignment.set_paused(partitions, True)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._assignment.set_paused(partitions, False)

    def poll(self, max_records: int, timeout_seconds: float) -> list[Polled]:
        """Return what arrived, soon after the first record or event, and after ``timeout_seconds`` at the latest.

        The Columns of a partition are in order, followed by its EndOfPartition or PartitionFault. After a PartitionFault the
        partition returns nothing until it is started again. Raises ForebayError for a fatal error of librdkafka, and the
        listener's exception.
        """
        collecting = gc.isenabled()
        # without native code, each collection would traverse thousands of messages, and no message can be part of a cycle
        gc.disable()
        try:
            self._assignment.compare()
            self._polling = True
            try:
                received = self._records.fetch(max_records, timeout_seconds)
            finally:
                self._polling = False
            # a rebalance in the same poll stops a partition
            polled = self._selection.take(received, self._stopped_in_poll) if received else []
        finally:
            if collecting:
                gc.enable()
        self._after_callbacks()
        return polled

    def _after_callbacks(self) -> None:
        """Do what callbacks requested, or raise what they raised, now that librdkafka's call has returned."""
        starts, self._starts_in_poll = self._starts_in_poll, []
        self._stopped_in_poll.clear()
        if self._callback_error is not None:
            error, self._callback_error = self._callback_error, None
            raise error
        if self._fatal is not None:
            raise ForebayError(f"Kafka client: fatal error: {self._fatal.str()}")
        if starts:
            self.start(starts)

    # ---- commits ----------------------------------------------------------------------------------------------------

    def commit(self, positions: Mapping[TopicPartition, Point]) -> None:
        """Commit without waiting. :meth:`poll_commit_errors` returns what failed, after a later poll.

        librdkafka reports the error of one partition for every partition of the commit.
        """
        if positions:
            self._commits.send(self._kafka, positions)

    def poll_commit_errors(self) -> dict[TopicPartition, str]:
        """Return the errors of asynchronous commits since the last call, per partition."""
        return self._commits.take_errors()

    def commit_sync(
        self, positions: Mapping[TopicPartition, Point], timeout_seconds: float
    ) -> dict[TopicPartition, str]:
        """Commit and wait for the answer. Return partition → error; {} on success. After the timeout the outcome is unknown.

        Only a member of the group's current generation can commit: a consumer that is not a member, or does not own a partition,
        is refused here, since a broker accepts a commit without membership if the group is empty. The listener may be called
        meanwhile, as within poll. Raises ForebayError within a callback.
        """
        if self._polling:
            raise ForebayError("a synchronous commit within a rebalance callback would wait for itself")
        if not positions:
            return {}
        deadline = self._clock.monotonic() + timeout_seconds
        return self._commits.send_and_wait(self._kafka, positions, self._owned, deadline)

    def _serve(self, done: Callable[[], bool], deadline: float) -> bool:
        """Serve callbacks until ``done`` or the deadline; keep records that arrive for the next poll."""
        while not done():
            left = deadline - self._clock.monotonic()
            if left <= 0 or self._records.kept >= KEPT_MAX:
                return False
            self._polling = True
            try:
                self._records.serve(min(left, 0.1))
            finally:
                self._polling = False
            self._records.drop(self._stopped_in_poll)
            self._after_callbacks()
        return True

    # ---- requests ----------------------------------------------------------------------------------------------------

    def watermarks(self, tp: TopicPartition, timeout_seconds: float) -> tuple[int, int]:
        """Ask the broker for (first offset held, next offset to be written). May be called from any thread.

        Raises UnreachableError, UsageError.
        """
        return self._requests.watermarks([tp], timeout_seconds)[tp]

    def _next_record(self, tp: TopicPartition, offset: int) -> int | None:
        """As ``Selection`` asks, rarely: the poll waits for the answer, for the timeout of requests at most."""
        try:
            return self._requests.next_records({tp: offset}).get(tp)
        except UnreachableError as error:
            _log.warning("%s: no broker says whether records follow offset %d: %s", tp, offset, error)
            return None

    def _cuts(self, points: Mapping[TopicPartition, LogPoint]) -> Mapping[TopicPartition, int] | None:
        """As ``Selection`` asks after changes of leaders: the poll waits for the answer, for the timeout of requests at most."""
        try:
            return self._requests.cuts(points)
        except (UnreachableError, UnknownTopicError) as error:
            _log.warning("records of newer leaders are read again until a broker compares the leader epochs: %s", error)
            return None

    def high_watermark(self, tp: TopicPartition) -> int:
        """Return the next offset to be written as of the last fetch; -1 if unknown. Never waits."""
        answer = self._kafka.get_watermark_offsets(_wire(tp), cached=True)
        return answer[1] if answer is not None and answer[1] >= 0 else -1

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return topic → id; "" if the brokers do not return topic ids, or the topic does not exist. Thread-safe.

        Raises UnreachableError.
        """
        return self._requests.topic_ids(topics)

    def close(self) -> None:
        """Leave the group. The listener is not called, so drain before.

        librdkafka waits for the answers to commits, for most of a minute if no broker answers. This method waits LEAVE_SECONDS;
        after that, the group ends the membership when the session has timed out.
        """
        closing, self._closing = self._closing, True
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher = None
        if self._consumer is not None and not closing:
            leaving = threading.Thread(target=self._consumer.close, name="leave group", daemon=True)
            leaving.start()
            leaving.join(LEAVE_SECONDS)
            if leaving.is_alive():
                # it may still call back, and then needs the consumer
                _log.warning("cannot leave the consumer group: no answer within %g s", LEAVE_SECONDS)
            else:
                self._consumer = None
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    @property
    def _requests(self) -> KafkaAdmin:
        if self._admin is None:
            raise ForebayError("the Kafka source is not subscribed, or closed")
        return self._admin

    @property
    def _records(self) -> Fetcher:
        if self._fetcher is None:
            raise ForebayError("the Kafka source is not subscribed, or closed")
        return self._fetcher

    @property
    def _kafka(self) -> Consumer:
        if self._consumer is None:
            raise ForebayError("the Kafka source is not subscribed, or closed")
        return self._consumer


def _raisable(error: KafkaException) -> ForebayError:
    return ForebayError(f"Kafka client: {error.args[0].str()}")


def _ours(wire: Sequence[WirePartition]) -> list[TopicPartition]:
    return [TopicPartition(partition.topic, partition.partition) for partition in wire]


def _wire(tp: TopicPartition) -> WirePartition:
    return WirePartition(tp.topic, tp.partition)
