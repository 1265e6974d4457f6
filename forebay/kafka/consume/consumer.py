"""The source of a receiver: librdkafka's consumer group, given as columns per topic-partition.

Kafka's group only says which partitions are ours. A partition is read only between :meth:`KafkaSource.start` and the next
revocation, loss, trouble or start, and everything polled carries the generation of that start. So no record of an older
assignment can pass for one of a newer one (rule 3 of *Who owns an offset*), whatever is still queued inside librdkafka.

How the assignment is kept apart from reading: in the assignment callback librdkafka is given an **empty** assignment, which
keeps the membership (the group's own list is kept separately in librdkafka) and asks the broker for nothing. ``start`` then
adds exactly the partitions named. Cooperative groups change the assignment by adding and removing; eager groups refuse that
outside a callback, so there the whole list is assigned again, every other partition at its own position.
"""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.client.options import consumer_options, is_cooperative
from forebay.kafka.client.positions import Point, commit_list
from forebay.model.columns import Columns, EndOfPartition, PartitionFault, Start
from forebay.model.errors import ForebayError, SettingsError
from forebay.model.records import SOURCE_SCHEMA, bytes_column, numbers_column
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock, SystemClock
from forebay.settings.schema import Settings

Polled = Columns | EndOfPartition | PartitionFault
_log = logging.getLogger("forebay.kafka")
_Numbers = npt.NDArray[np.int64]

#: once a record is there, how long a poll gathers more; bounds both the latency it adds and, times the network's rate, its memory
GATHER_SECONDS = 0.01
#: records kept while a synchronous commit is awaited; the commit is given up rather than hold more
KEPT_MAX = 10_000
#: how often a hole right at a start may change between reads before the partition is given up
CONFIRMATIONS_MAX = 8

#: confluent-kafka's timestamp types by number → Spark's (0 create time, 1 log append time, -1 none)
_TIMESTAMP_TYPES = np.full(3, -1, np.int32)
_TIMESTAMP_TYPES[TIMESTAMP_CREATE_TIME] = 0
_TIMESTAMP_TYPES[TIMESTAMP_LOG_APPEND_TIME] = 1

#: librdkafka's words for a truncation: up to where the log still is what was read
_END_TOLD = re.compile(r"broker end offset is ([0-9]{1,18})")
#: error of a message → kind of trouble (``messages.Fault``); tests/kafka/test_trouble.py goes over the rows
FAULTS: dict[int, str] = {
    KafkaError.OFFSET_OUT_OF_RANGE: "out-of-range",
    KafkaError._AUTO_OFFSET_RESET: "out-of-range",
    KafkaError._NO_OFFSET: "out-of-range",
    KafkaError._LOG_TRUNCATION: "truncated",
    KafkaError._BAD_MSG: "corrupt",
    KafkaError._BAD_COMPRESSION: "corrupt",
    KafkaError.INVALID_MSG: "corrupt",
    KafkaError.INVALID_MSG_SIZE: "corrupt",
    KafkaError.INVALID_RECORD: "corrupt",
    KafkaError._UNKNOWN_TOPIC: "recreated",
    KafkaError._UNKNOWN_PARTITION: "recreated",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "recreated",
    KafkaError.UNKNOWN_TOPIC_ID: "recreated",
    KafkaError.INCONSISTENT_TOPIC_ID: "recreated",
}


class Listener(Protocol):
    """What a rebalance tells; called within :meth:`KafkaSource.poll`, on its thread."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> None: ...

    def revoked(self, partitions: Sequence[TopicPartition]) -> None: ...

    def lost(self, partitions: Sequence[TopicPartition]) -> None: ...


@dataclass(slots=True)
class _Reading:
    """A started partition. ``position``: the next offset to give out; ``unconfirmed``: nothing was given out yet."""

    start: Start
    position: int
    leader_epoch: int
    paused: bool = False
    unconfirmed: bool = True
    first_seen: int = -1
    reads: int = 0


class KafkaSource:
    """Implements ``receiver.source.Source``. For the polling thread only, but for watermarks and topic_ids."""

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        group: str,
        topics: Sequence[str] = (),
        headers: bool = False,
        memory_bytes: int = 64_000_000,
        client_id: str = "forebay-receiver",
        metadata_refresh_seconds: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``options`` are the pass-through keys of ``[kafka]``; ``topics`` the names to subscribe to, until :meth:`follow`
        names others; ``memory_bytes`` bounds librdkafka's prefetch queue.

        Raises SettingsError if an option that Forebay needs is set otherwise. No I/O before :meth:`subscribe`.
        """
        self._given_options = dict(options)
        self._options = consumer_options(
            options, group=group, memory_bytes=memory_bytes, client_id=client_id,
            metadata_refresh_seconds=metadata_refresh_seconds,
        )  # fmt: skip
        self._cooperative = is_cooperative(self._options)
        self._topics = list(topics)
        self._headers = headers
        self._client_id = client_id
        self._consumer: Consumer | None = None
        self._admin: KafkaAdmin | None = None
        self._listener: Listener | None = None
        self._owned: set[TopicPartition] = set()
        self._reading: dict[TopicPartition, _Reading] = {}
        self._stopped_in_poll: set[TopicPartition] = set()
        self._unbelieved: set[TopicPartition] = set()
        self._starts_in_poll: list[Start] = []
        self._polling = False
        self._closing = False
        self._callback_error: BaseException | None = None
        self._commit_errors: dict[TopicPartition, str] = {}
        self._commits_waiting = 0
        self._awaited: _Awaited | None = None
        self._kept: list[Message] = []
        self._clock: Clock = clock or SystemClock()
        self._fatal: KafkaError | None = None
        self._client_errors = ClientErrors(_log)

    @classmethod
    def of(cls, settings: Settings, client_id: str) -> KafkaSource:
        """The source of one receiver of ``settings``. What ``kafka.pattern`` matches is for the driver to say."""
        return cls(
            settings.kafka.options, group=settings.group, topics=settings.kafka.topics,
            headers=settings.kafka.headers, memory_bytes=settings.receiver.memory, client_id=client_id,
            metadata_refresh_seconds=settings.kafka.discovery_interval,
        )  # fmt: skip

    # ---- the group --------------------------------------------------------------------------------------------------

    def subscribe(self, listener: Listener) -> None:
        """Joins the group; partitions come by ``listener`` within later polls. Raises SettingsError for refused options."""
        self._listener = listener
        # questions go by a client of their own: the consumer's calls wait for one another, a long poll included
        self._admin = KafkaAdmin(self._given_options, client_id=f"{self._client_id}-admin")
        callbacks = {"error_cb": self._on_error, "on_commit": self._on_commit}
        try:
            self._consumer = Consumer({**self._options, **callbacks}, logger=self._client_errors)
        except KafkaException as error:
            raise SettingsError(f"kafka: {error.args[0].str()}") from None
        if self._topics:
            self._join(self._consumer)

    def follow(self, topics: Sequence[str]) -> None:
        """Subscribes to exactly ``topics`` from now on; without any it leaves the group. Before :meth:`subscribe`: from
        then on. Raises ForebayError as librdkafka says."""
        self._topics = list(topics)
        if self._consumer is None:
            return
        self._client_errors.forget()  # of a topic that is not wanted any more, perhaps
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
        """The partitions that the group has given to this member."""
        return frozenset(self._owned)

    def _on_assign(self, consumer: Consumer, wire: list[WirePartition]) -> None:
        partitions = _ours(wire)
        self._client_errors.forget()  # the group's coordinator has answered
        # nothing is read before start(): the assignment proper stays as it is, or empty (see the module's docstring)
        try:
            if self._cooperative:
                consumer.incremental_assign([])
            else:
                self._forget(list(self._reading))
                consumer.assign([])
        except KafkaException as error:
            self._callback_error = self._callback_error or _raisable(error)
        self._owned.update(partitions)
        self._stopped_in_poll.update(partitions)
        self._tell("assigned", partitions)

    def _on_revoke(self, consumer: Consumer, wire: list[WirePartition]) -> None:
        self._withdraw(consumer, _ours(wire), "revoked")

    def _on_lost(self, consumer: Consumer, wire: list[WirePartition]) -> None:
        self._withdraw(consumer, _ours(wire), "lost")

    def _withdraw(self, consumer: Consumer, wire: list[TopicPartition], word: str) -> None:
        """The partitions leave, after the listener has sealed, stored and reported what it holds of them (rule 6)."""
        # the list may name partitions that were never assigned (confluent-kafka-python#1551)
        partitions = [tp for tp in wire if tp in self._owned]
        self._stopped_in_poll.update(partitions)
        try:
            self._tell(word, partitions)
        finally:
            self._owned.difference_update(partitions)
            try:
                gone = self._forget(partitions)
                if self._cooperative:
                    consumer.incremental_unassign([_wire(tp) for tp in gone])
                else:
                    consumer.unassign()
            except KafkaException as error:
                self._callback_error = self._callback_error or _raisable(error)

    def _tell(self, word: str, partitions: list[TopicPartition]) -> None:
        """Calls the listener; what it raises is kept and raised by poll, since librdkafka's frames lie between."""
        if self._closing or self._listener is None or not partitions:
            return
        try:
            getattr(self._listener, word)(partitions)
        except BaseException as error:  # raised again by poll
            self._callback_error = self._callback_error or error

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = error
        else:
            self._client_errors(error)

    @property
    def last_error(self) -> str:
        """Why brokers can't be reached, "" after something was read again; for status, never raised."""
        return self._client_errors.words()

    # ---- reading ----------------------------------------------------------------------------------------------------

    def start(self, starts: Sequence[Start]) -> None:
        """Unassigns, then assigns exactly these partitions at their offset and leader epoch, resumed.

        What is polled of them from now on carries the new generation. Other partitions are undisturbed: they go on at their
        positions, and stay paused if they were. A partition that the group has taken away meanwhile is left out.
        Called from within a callback it takes effect when the poll returns.
        """
        if self._polling:
            self._starts_in_poll.extend(starts)
            return
        starts = [start for start in starts if start.tp in self._owned]
        self._assign(starts)

    def _assign(self, starts: Sequence[Start]) -> None:
        # librdkafka may carry the pause over a quick unassign and assign: taken off while the old reading still stands
        self.resume([start.tp for start in starts])
        again = [_wire(start.tp) for start in starts if start.tp in self._reading]
        for start in starts:
            self._reading[start.tp] = _Reading(start, start.offset, start.leader_epoch)
        self._put([start.tp for start in starts], again)

    def _put(self, partitions: Sequence[TopicPartition], again: list[WirePartition]) -> None:
        if not partitions:
            return
        # what is kept of a partition that is read again would come twice
        self._kept = [message for message in self._kept if self._cooperative and _tp(message) not in partitions]
        if self._cooperative:
            if again:
                self._kafka.incremental_unassign(again)
            self._kafka.incremental_assign([self._wire_at(tp) for tp in partitions])
        else:
            self._kafka.assign([self._wire_at(tp) for tp in self._reading])
            paused = [_wire(tp) for tp, reading in self._reading.items() if reading.paused]
            if paused:
                self._kafka.pause(paused)

    def _wire_at(self, tp: TopicPartition) -> WirePartition:
        reading = self._reading[tp]
        if reading.leader_epoch >= 0:
            return WirePartition(tp.topic, tp.partition, reading.position, leader_epoch=reading.leader_epoch)
        return WirePartition(tp.topic, tp.partition, reading.position)

    def _stop(self, tp: TopicPartition) -> None:
        """Takes ``tp`` out of reading until the next start; the group still counts it as ours."""
        self._forget([tp])
        if self._cooperative:
            self._kafka.incremental_unassign([_wire(tp)])
        else:
            self._put(list(self._reading), [])
            if not self._reading:
                self._kafka.assign([])

    def _forget(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Takes those that are read out of reading and returns them. Pauses come off while they can: librdkafka keeps one
        over to the partition's next assignment, however much later, and would then never fetch."""
        gone = [tp for tp in partitions if tp in self._reading]
        self.resume(gone)
        for tp in gone:
            del self._reading[tp]
        return gone

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """No more records of these until resumed; membership is kept by polling on. Not started ones are ignored."""
        self._set_paused(partitions, True)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: Sequence[TopicPartition], paused: bool) -> None:
        changed = [tp for tp in partitions if tp in self._reading and self._reading[tp].paused != paused]
        for tp in changed:
            self._reading[tp].paused = paused
        if changed:
            wire = [_wire(tp) for tp in changed]
            (self._kafka.pause if paused else self._kafka.resume)(wire)

    def poll(self, max_records: int, timeout_seconds: float) -> list[Polled]:
        """What arrived: returns soon after the first record or event, else after ``timeout_seconds``.

        At most one Columns per partition, followed by its EndOfPartition or PartitionFault. After a PartitionFault
        nothing comes of that partition until it is started again. Raises ForebayError for a fatal error of librdkafka, and
        whatever the listener raised.
        """
        collecting = gc.isenabled()
        # thousands of messages would be walked by every collection, and none of them can be part of a cycle
        gc.disable()
        try:
            self._polling = True
            try:
                messages = self._consume(max_records, timeout_seconds)
            finally:
                self._polling = False
            polled = self._take(messages) if messages else []
            del messages
        finally:
            if collecting:
                gc.enable()
        self._after_callbacks()
        return polled

    def _after_callbacks(self) -> None:
        """What callbacks asked for or raised within a call of librdkafka, done now that the call has returned."""
        starts, self._starts_in_poll = self._starts_in_poll, []
        self._stopped_in_poll.clear()
        if self._callback_error is not None:
            error, self._callback_error = self._callback_error, None
            raise error
        if self._fatal is not None:
            raise ForebayError(f"Kafka client: fatal error: {self._fatal.str()}")
        if starts:
            self.start(starts)

    def _consume(self, max_records: int, timeout_seconds: float) -> list[Message]:
        if self._kept:
            messages, self._kept = self._kept, []
            return messages + self._kafka.consume(max_records, 0)
        messages = self._kafka.consume(max_records, min(GATHER_SECONDS, timeout_seconds))
        if not messages and timeout_seconds > GATHER_SECONDS:
            messages = self._kafka.consume(1, timeout_seconds - GATHER_SECONDS)
            if messages and max_records > 1:
                messages += self._kafka.consume(max_records - 1, GATHER_SECONDS)
        return messages

    def _take(self, messages: list[Message]) -> list[Polled]:
        ends: dict[TopicPartition, int] = {}
        faults: dict[TopicPartition, tuple[str, str]] = {}
        if any(map(Message.error, messages)):
            messages = self._take_events(messages, ends, faults)
        polled: list[Polled] = list(self._columns(messages)) if messages else []
        # an event's partition may have been stopped by a rebalance later in the same poll, or by a lower leader epoch just now
        stopped = {item.tp for item in polled if isinstance(item, PartitionFault)}
        stopped |= self._stopped_in_poll
        for tp, end in ends.items():
            reading = self._reading.get(tp)
            if reading is None or tp in stopped or tp in faults or tp in self._unbelieved or end < reading.position:
                continue  # also: records were given that lie beyond this end
            if self._confirms(reading, end):
                reading.position = end
                self._client_errors.forget()
                polled.append(EndOfPartition(tp, reading.start.generation, end))
        for tp, (kind, detail) in faults.items():
            if tp in self._reading and tp not in stopped:
                told = _END_TOLD.search(detail) if kind == "truncated" else None
                end = int(told[1]) if told is not None else -1
                polled.append(PartitionFault(tp, self._reading[tp].start.generation, kind, detail, end))
        for tp in self._unbelieved:
            if self._reading[tp].reads > CONFIRMATIONS_MAX and tp not in faults:
                detail = f"reads from offset {self._reading[tp].start.offset} begin at a different record each time"
                polled.append(PartitionFault(tp, self._reading[tp].start.generation, "out-of-range", detail))
        for item in polled:
            if isinstance(item, PartitionFault):
                self._stop(item.tp)
        self._read_again()
        return polled

    def _read_again(self) -> None:
        """Reads a second time where a start began with a hole: it could also be records of an older position."""
        again = [tp for tp in self._unbelieved if tp in self._reading]
        self._unbelieved.clear()
        self._put(again, [_wire(tp) for tp in again])

    def _confirms(self, reading: _Reading, offset: int) -> bool:
        """Whether the first thing read after a start, at ``offset``, may be believed: no hole, or the same one twice."""
        if not reading.unconfirmed:
            return True
        if offset in (reading.start.offset, reading.first_seen):
            reading.unconfirmed = False
            return True
        reading.first_seen = offset
        reading.reads += 1
        self._unbelieved.add(reading.start.tp)
        return False

    def _take_events(
        self, messages: list[Message], ends: dict[TopicPartition, int], faults: dict[TopicPartition, tuple[str, str]]
    ) -> list[Message]:
        """Sorts events out of ``messages``; returns the records, without those that follow a trouble of their partition."""
        records: list[Message] = []
        for message in messages:
            error = message.error()
            if error is None:
                if not faults or _tp(message) not in faults:
                    records.append(message)
                continue
            code = error.code()
            tp = _tp(message)
            if error.fatal():
                self._fatal = error
            elif code == KafkaError._PARTITION_EOF:
                ends[tp] = message.offset() or 0
            elif code in FAULTS and tp in self._reading:
                text = error.str()
                kind = "truncated" if "truncat" in text.lower() else FAULTS[code]
                faults.setdefault(tp, (kind, text))
            else:
                self._on_error(error)
        return records

    def _columns(self, messages: list[Message]) -> Iterator[Columns | PartitionFault]:
        messages, bounds = _by_partition(messages)
        batch = record_batch(messages, self._headers)
        keys, values, offset_column, time_column = batch.columns[:4]
        offsets, times = _int64(offset_column), _int64(time_column)
        key_ends, value_ends = _ends(keys), _ends(values)
        for begin, end in bounds:
            last = messages[end - 1]
            tp = _tp(last)
            reading = self._reading.get(tp)
            if reading is None or tp in self._stopped_in_poll:
                continue  # of an assignment that is over
            if end - begin > 1 and not (np.diff(offsets[begin:end]) > 0).all():
                raise ForebayError(f"Kafka client: offsets of {tp} out of order after {reading.position}")
            begin += int(np.searchsorted(offsets[begin:end], reading.position))
            if begin == end or not self._confirms(reading, int(offsets[begin])):
                continue
            leader_epoch = last.leader_epoch()
            leader_epoch = -1 if leader_epoch is None else leader_epoch
            if 0 <= leader_epoch < reading.leader_epoch:
                detail = f"leader epoch {leader_epoch} at offset {offsets[end - 1]} after {reading.leader_epoch}"
                yield PartitionFault(tp, reading.start.generation, "truncated", detail)
                continue
            reading.position = int(offsets[end - 1]) + 1
            reading.leader_epoch = max(leader_epoch, reading.leader_epoch)
            self._client_errors.forget()
            yield Columns(
                tp=tp, generation=reading.start.generation, first_offset=int(offsets[begin]), last_offset=int(offsets[end - 1]),
                rows=end - begin, bytes=int(key_ends[end] - key_ends[begin] + value_ends[end] - value_ends[begin]),
                max_timestamp_ms=int(times[begin:end].max()), leader_epoch=leader_epoch,
                batch=batch.slice(begin, end - begin),
            )  # fmt: skip

    # ---- commits ----------------------------------------------------------------------------------------------------

    def commit(self, positions: Mapping[TopicPartition, Point]) -> None:
        """Commits without waiting; what fails is told by :meth:`poll_commit_errors` after a later poll.

        librdkafka tells the error of one partition for every partition of the commit.
        """
        if not positions:
            return
        try:
            self._kafka.commit(offsets=commit_list(positions), asynchronous=True)
            self._commits_waiting += 1
        except KafkaException as error:
            self._answer_commit({tp: point.offset for tp, point in positions.items()}, error.args[0], {})

    def _on_commit(self, error: KafkaError | None, wire: list[WirePartition]) -> None:
        self._commits_waiting -= 1
        own = {_ours([partition])[0]: partition.error.str() for partition in wire if partition.error is not None}
        # the error of the whole repeats that of one partition, if any has one of its own
        offsets = {_ours([partition])[0]: partition.offset for partition in wire}
        self._answer_commit(offsets, None if own else error, own)

    def _answer_commit(
        self, offsets: dict[TopicPartition, int], error: KafkaError | None, own: dict[TopicPartition, str]
    ) -> None:
        errors = own if error is None else dict.fromkeys(offsets, error.str())
        if self._awaited is not None and self._awaited.offsets == offsets:
            self._awaited.errors = errors
            return
        for tp in offsets:
            self._commit_errors.pop(tp, None)
        self._commit_errors.update(errors)

    def poll_commit_errors(self) -> dict[TopicPartition, str]:
        """Errors of asynchronous commits since the last call, per partition; each is told once."""
        errors, self._commit_errors = self._commit_errors, {}
        return errors

    def commit_sync(
        self, positions: Mapping[TopicPartition, Point], timeout_seconds: float
    ) -> dict[TopicPartition, str]:
        """Commits and waits: partition → error, {} if all succeeded. After the time-out the outcome is unknown.

        Only a member of the group's current generation can: who is no member (or does not own a partition) is refused
        here, since a broker takes a commit without a member for an empty group. The listener may be called meanwhile, as
        within poll; within a callback this raises ForebayError.
        """
        if self._polling:
            raise ForebayError("a synchronous commit within a rebalance callback would wait for itself")
        if not positions:
            return {}
        # librdkafka's own synchronous commit has no time-out and keeps every other call waiting, so an asynchronous one is
        # awaited; earlier ones are awaited first, since an answer that was given long ago proves nothing about now
        deadline = self._clock.monotonic() + timeout_seconds
        if not self._serve(lambda: self._commits_waiting == 0, deadline):
            return dict.fromkeys(positions, "an earlier commit has not been answered yet")
        member = self._kafka.memberid()
        refused = {
            tp: "not assigned to this member" if member else "not a member of the group"
            for tp in positions
            if tp not in self._owned or not member
        }
        asked = {tp: point for tp, point in positions.items() if tp not in refused}
        if not asked:
            return refused
        errors = self._commit_awaited(asked, deadline)
        if errors and len(asked) > 1:
            # librdkafka gives one partition's error to all of a commit: each by itself tells which it was
            errors = {}
            for tp, point in asked.items():
                errors.update(self._commit_awaited({tp: point}, deadline))
        return {**refused, **errors}

    def _commit_awaited(self, points: Mapping[TopicPartition, Point], deadline: float) -> dict[TopicPartition, str]:
        self._awaited = awaited = _Awaited({tp: point.offset for tp, point in points.items()})
        self.commit(points)
        self._serve(lambda: awaited.errors is not None, deadline)
        self._awaited = None
        return dict.fromkeys(points, "no answer in time") if awaited.errors is None else awaited.errors

    def _serve(self, done: Callable[[], bool], deadline: float) -> bool:
        """Serves callbacks until ``done`` or the deadline; records that come are kept for the next poll."""
        while not done():
            left = deadline - self._clock.monotonic()
            if left <= 0 or len(self._kept) >= KEPT_MAX:
                return False
            self._polling = True
            try:
                self._kept += self._kafka.consume(1, min(left, 0.1))
            finally:
                self._polling = False
            self._kept = [message for message in self._kept if _tp(message) not in self._stopped_in_poll]
            self._after_callbacks()
        return True

    # ---- looking ----------------------------------------------------------------------------------------------------

    def watermarks(self, tp: TopicPartition, timeout_seconds: float) -> tuple[int, int]:
        """(first offset held, next offset to be written), asked from the broker. May be called from any thread.

        Raises UnreachableError, UsageError.
        """
        return self._questions.watermarks([tp], timeout_seconds)[tp]

    def high_watermark(self, tp: TopicPartition) -> int:
        """The next offset to be written, as the last fetch told it; -1 if unknown. Never waits."""
        answer = self._kafka.get_watermark_offsets(_wire(tp), cached=True)
        return answer[1] if answer is not None and answer[1] >= 0 else -1

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """topic → id; "" where the broker can't tell (or the topic is not there). May be called from any thread.

        Raises UnreachableError.
        """
        return self._questions.topic_ids(topics)

    def close(self) -> None:
        """Leaves the group. The listener is not called: drain first."""
        self._closing = True
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    @property
    def _questions(self) -> KafkaAdmin:
        if self._admin is None:
            raise ForebayError("the Kafka source is not subscribed, or closed")
        return self._admin

    @property
    def _kafka(self) -> Consumer:
        if self._consumer is None:
            raise ForebayError("the Kafka source is not subscribed, or closed")
        return self._consumer


@dataclass(slots=True)
class _Awaited:
    """A commit that is waited for, by its offsets; ``errors`` when it is answered."""

    offsets: dict[TopicPartition, int]
    errors: dict[TopicPartition, str] | None = None


def record_batch(messages: Sequence[Message], headers: bool) -> pa.RecordBatch:
    """The records of one or more partitions as columns of ``SOURCE_SCHEMA``, in the order given. No event may be among them."""
    count = len(messages)
    offsets: _Numbers = np.fromiter(map(Message.offset, messages), np.int64, count)
    stamps = np.fromiter(chain.from_iterable(map(Message.timestamp, messages)), np.int64, 2 * count).reshape(count, 2)
    kinds = _TIMESTAMP_TYPES[stamps[:, 0]]
    times = np.where(kinds < 0, -1, stamps[:, 1])
    keys = bytes_column(cast("list[bytes | None]", list(map(Message.key, messages))))
    values = bytes_column(cast("list[bytes | None]", list(map(Message.value, messages))))
    numbers = [(offsets, pa.int64()), (times, pa.int64()), (kinds, pa.int32())]
    arrays: list[Any] = [keys, values, *(numbers_column(column, type_) for column, type_ in numbers)]
    if headers:
        arrays.append(_headers([message.headers() for message in messages]))
    return pa.RecordBatch.from_arrays(arrays, schema=SOURCE_SCHEMA(headers))


def _by_partition(messages: list[Message]) -> tuple[list[Message], list[tuple[int, int]]]:
    """The messages grouped by topic-partition, order kept within each, and the bounds of the groups."""
    count = len(messages)
    numbers = np.fromiter(map(Message.partition, messages), np.int64, count)
    topics = cast("list[str]", list(map(Message.topic, messages)))
    names = set(topics)
    if len(names) > 1:
        index = {name: place << 32 for place, name in enumerate(sorted(names))}
        numbers += np.fromiter(map(index.__getitem__, topics), np.int64, count)
    cuts = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
    runs = sorted(zip([0, *cuts], [*cuts, count], numbers[[0, *cuts]].tolist(), strict=True), key=itemgetter(2))
    if len(runs) == 1:
        return messages, [(0, count)]
    grouped: list[Message] = []
    bounds: list[tuple[int, int]] = []
    previous = None
    for begin, end, number in runs:
        place = len(grouped)
        grouped += messages[begin:end]
        if number == previous:
            bounds[-1] = (bounds[-1][0], len(grouped))
        else:
            bounds.append((place, len(grouped)))
        previous = number
    return grouped, bounds


def _ends(array: Any) -> npt.NDArray[np.int32]:
    """The offsets buffer of a binary array that is no slice: n + 1 numbers."""
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1)


def _int64(array: Any) -> _Numbers:
    return np.frombuffer(array.buffers()[1], np.int64, len(array))


def _headers(headers: Sequence[object]) -> Any:
    return pa.array(headers, SOURCE_SCHEMA(True).field("headers").type)


def _raisable(error: KafkaException) -> ForebayError:
    return ForebayError(f"Kafka client: {error.args[0].str()}")


def _ours(wire: Sequence[WirePartition]) -> list[TopicPartition]:
    return [TopicPartition(partition.topic, partition.partition) for partition in wire]


def _tp(message: Message) -> TopicPartition:
    """Of a record or event; an event of the whole client has partition -1."""
    partition = message.partition()
    return TopicPartition(message.topic() or "", -1 if partition is None else partition)


def _wire(tp: TopicPartition) -> WirePartition:
    return WirePartition(tp.topic, tp.partition)
