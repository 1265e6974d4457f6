"""Questions to Kafka outside a consumer group's membership, and the few changes that tools and tests need."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import tenacity
from confluent_kafka import (
    OFFSET_INVALID,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as WirePartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.client.group_offsets import GroupOffsets
from forebay.kafka.client.leaders import WHY_SECONDS, shown_partitions, without_leader
from forebay.kafka.client.options import client_options
from forebay.kafka.client.positions import Point
from forebay.model.errors import ForebayError, SettingsError, UnknownTopicError, UnreachableError, UsageError
from forebay.model.topic_pattern import matches
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock, SystemClock

_Answer = TypeVar("_Answer")

# untyped in confluent-kafka
_EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]

_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._RESOLVE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError._WAIT_COORD,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.NOT_CONTROLLER,
    KafkaError._NOENT,  # a partition without a leader, or a topic that a new client has not heard of
}
#: between two looks whether a new topic has reached the brokers, and at first between two tries of one question
_SETTLE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 1.0
#: so long the first try of a question may take, and each later one twice as long: a client may wait for a broker that is gone
_TRY_SECONDS = 2.0
#: one wait for the first records of partitions
_LOOK_SECONDS = 0.1
_UNKNOWN_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}


#: where something begins or ends: milliseconds since 1970 mean the first record at or after
Place: TypeAlias = Literal["earliest", "latest"] | int


class Committed(NamedTuple):
    """What a group committed for a partition. ``leader_epoch`` -1 and ``metadata`` "" where it did not say."""

    offset: int
    leader_epoch: int
    metadata: str


class KafkaAdmin:
    """Questions by one admin client at a time. Every method may be called from any thread, waits at most ``timeout_seconds``
    (also for a new leader, coordinator or controller), and raises

    UnreachableError (no broker answered in time; names the address, and partitions that nobody leads), UsageError (no such topic
    or partition), or ForebayError (the broker answered no).
    """

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        timeout_seconds: float = 10.0,
        client_id: str = "forebay-admin",
        clock: Clock | None = None,
    ) -> None:
        """``options`` are the pass-through keys of ``[kafka]``. Raises SettingsError for one that librdkafka refuses."""
        self._address = options.get("bootstrap.servers", "")
        self._timeout = timeout_seconds
        self._isolation = (
            IsolationLevel.READ_UNCOMMITTED
            if options.get("isolation.level", "read_committed") == "read_uncommitted"
            else IsolationLevel.READ_COMMITTED
        )
        self._tells_topic_ids: bool | None = None
        self._options = client_options(options, client_id)
        self._client_errors = ClientErrors()
        self._groups: dict[str, GroupOffsets] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._clock = clock or SystemClock()
        try:
            self._client: AdminClient | None = self._new_client()
        except KafkaException as error:
            raise SettingsError(f"kafka: {error.args[0].str()}") from None

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._client = None
            groups, self._groups = list(self._groups.values()), {}
        for group in groups:
            group.close()

    def __enter__(self) -> KafkaAdmin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- looking ----------------------------------------------------------------------------------------------------

    def check(self, timeout_seconds: float) -> None:
        """Returns if a broker answers within the time; raises UnreachableError otherwise."""
        self._metadata(timeout_seconds)

    def addresses(self) -> str:
        """The brokers' own addresses, as ``host:port,host:port``."""
        return ",".join(f"{broker.host}:{broker.port}" for broker in self._metadata().brokers.values())

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """The hosts of the partitions' leaders, as brokers name themselves; without those that have none now."""
        metadata = self._metadata()
        found: dict[TopicPartition, str] = {}
        for tp in partitions:
            shown = metadata.topics.get(tp.topic)
            partition = shown.partitions.get(tp.partition) if shown is not None else None
            if partition is not None and partition.leader in metadata.brokers:
                found[tp] = metadata.brokers[partition.leader].host
        return found

    def topics(self, *, internal: bool = False) -> dict[str, int]:
        """Every topic → number of partitions; ``internal``: also those whose names begin as those of Kafka's own."""
        return {
            name: len(topic.partitions)
            for name, topic in self._metadata().topics.items()
            if topic.error is None and (internal or not name.startswith("__"))
        }

    def partitions(self, topics: Iterable[str] = (), pattern: str | None = None) -> set[TopicPartition]:
        """The partitions of ``topics``, or of the topics that ``pattern`` matches (:mod:`forebay.model.topic_pattern`); a
        missing topic has none."""
        wanted = set(topics)
        return {
            TopicPartition(name, number)
            for name, count in self.topics(internal=True).items()
            if name in wanted or (pattern is not None and matches(pattern, name))
            for number in range(count)
        }

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """topic → id; "" where the broker can't tell, or the topic is not there."""
        names = list(topics)
        if not names or not self._can_tell_topic_ids():
            return dict.fromkeys(names, "")

        def ask(client: AdminClient, seconds: float) -> dict[str, str]:
            ids: dict[str, str] = {}
            for name, future in client.describe_topics(TopicCollection(names), request_timeout=seconds).items():
                try:
                    ids[name] = str(future.result().topic_id)
                except KafkaException as error:
                    if error.args[0].code() not in _UNKNOWN_TOPIC:
                        raise
                    ids[name] = ""
            return ids

        return self._asked(ask, f"topic ids of {', '.join(names)}")

    def _can_tell_topic_ids(self) -> bool:
        """A cluster without a controller (librdkafka's mock) never answers, so it is not asked."""
        if not self._tells_topic_ids:  # a broker of any cluster may know of no controller for a while
            metadata = self._metadata()
            self._tells_topic_ids = metadata.controller_id in metadata.brokers
        return self._tells_topic_ids

    def watermarks(
        self, partitions: Iterable[TopicPartition], timeout_seconds: float | None = None
    ) -> dict[TopicPartition, tuple[int, int]]:
        """(first offset held, next offset to be written) of each partition; an open transaction's records count."""
        wanted = list(partitions)
        low = self._offsets(dict.fromkeys(wanted, _EARLIEST), IsolationLevel.READ_UNCOMMITTED, timeout_seconds)
        high = self._offsets(dict.fromkeys(wanted, _LATEST), IsolationLevel.READ_UNCOMMITTED, timeout_seconds)
        return {tp: (low[tp], high[tp]) for tp in wanted}

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where a consumer with these options would end now: the last stable offset for ``read_committed``."""
        return self._offsets(dict.fromkeys(partitions, _LATEST), self._isolation)

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """What ``group`` committed, for those of ``partitions`` that it committed anything for."""
        wanted = [WirePartition(tp.topic, tp.partition) for tp in partitions]
        if not wanted:
            return {}

        found: dict[TopicPartition, Committed] = {}
        for partition in self._asked(
            lambda _, seconds: self._group(group).committed(wanted, seconds), f"offsets of group {group}"
        ):
            if partition.offset >= 0:
                epoch = partition.leader_epoch
                tp = TopicPartition(partition.topic, partition.partition)
                found[tp] = Committed(partition.offset, -1 if epoch is None else epoch, partition.metadata or "")
        return found

    def starting_offsets(
        self, policy: str | Mapping[str, int], partitions: Iterable[TopicPartition], group: str
    ) -> dict[TopicPartition, int]:
        """Where each partition begins by ``kafka.starting_offsets``.

        ``"earliest"``, ``"latest"``; ``"committed"`` by ``group``, at the beginning where it committed nothing;
        ``{"timestamp": ms}``: the first record at or after, at the end where there is none; ``{"topic/partition": offset}``:
        as given, at the beginning where none is. Raises UsageError for an explicit offset that Kafka does not hold.
        """
        wanted = list(partitions)
        earliest = dict.fromkeys(wanted, _EARLIEST)
        if policy == "latest":
            return self.ends(wanted)
        if policy == "committed":
            committed = self.committed(group, wanted)
            beginnings = self._offsets(
                {tp: spec for tp, spec in earliest.items() if tp not in committed}, self._isolation
            )
            return {tp: committed[tp].offset if tp in committed else beginnings[tp] for tp in wanted}
        if policy == "earliest":
            return self._offsets(earliest, self._isolation)
        if isinstance(policy, str):
            raise UsageError(f'starting offsets {policy!r}: allowed are "earliest", "latest", "committed" or a table')
        if "timestamp" in policy:
            at = self._offsets(dict.fromkeys(wanted, OffsetSpec.for_timestamp(policy["timestamp"])), self._isolation)
            none = [tp for tp, offset in at.items() if offset < 0]
            return {**at, **self._offsets(dict.fromkeys(none, _LATEST), self._isolation)}
        held = self.watermarks(wanted)
        for tp, (low, high) in held.items():
            if not low <= policy.get(str(tp), low) <= high:
                raise UsageError(f"starting offset {policy[str(tp)]} of {tp}: Kafka holds {low} to {high}")
        return {tp: policy.get(str(tp), held[tp][0]) for tp in wanted}

    def places(self, asked: Mapping[TopicPartition, Place]) -> dict[TopicPartition, int]:
        """The offset of each place; -1 where no record is as young as the time asked for. All in one round of questions.

        The end is that of a consumer with these options, as in :meth:`ends`.
        """
        specs = {
            tp: _EARLIEST if place == "earliest" else _LATEST if place == "latest" else OffsetSpec.for_timestamp(place)
            for tp, place in asked.items()
        }
        return self._offsets(specs, self._isolation)

    def why_silent(self) -> str:
        """Return why brokers can't be reached since they last answered, as librdkafka reported it; "" if it reported nothing.

        May be called while a question waits for its answer.
        """
        self._poll()
        return self._client_errors.words()

    def _poll(self) -> None:
        """Serves ``error_cb`` and ``logger``."""
        if (client := self._client) is not None:
            client.poll(0)

    def _offsets(
        self, asked: Mapping[TopicPartition, Any], isolation: IsolationLevel, timeout_seconds: float | None = None
    ) -> dict[TopicPartition, int]:
        if not asked:
            return {}
        specs = {WirePartition(tp.topic, tp.partition): spec for tp, spec in asked.items()}

        def ask(client: AdminClient, seconds: float) -> dict[TopicPartition, int]:
            futures = client.list_offsets(specs, isolation_level=isolation, request_timeout=seconds)
            found = {TopicPartition(wire.topic, wire.partition): future.result() for wire, future in futures.items()}
            for tp, answer in found.items():
                if answer.offset == OFFSET_INVALID:  # as a client says who knows a leader that does not answer
                    raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, f"nobody gave the offset of {tp}"))
            return {tp: answer.offset for tp, answer in found.items()}

        return self._asked(ask, f"offsets of {_in_words(asked)}", timeout_seconds, asked.keys())

    def first_timestamps(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Milliseconds of the first record at or after each position; without those of which Kafka has or tells none in time.

        One small fetch for each partition, by a consumer that joins no group.
        """
        found: dict[TopicPartition, int] = {}
        if not positions:
            return found
        own = {
            "group.id": "forebay-looks", "enable.auto.commit": "false", "auto.offset.reset": "error", "log_level": "0",
            "enable.partition.eof": "true", "fetch.message.max.bytes": "65536", "queued.max.messages.kbytes": "4096",
        }  # fmt: skip
        consumer = Consumer({**self._options, **own})
        try:
            waiting = set(positions)
            consumer.assign([WirePartition(tp.topic, tp.partition, offset) for tp, offset in positions.items()])
            for _ in range(max(1, round(self._timeout / _LOOK_SECONDS))):
                if not waiting:
                    break
                for message in consumer.consume(1_000, _LOOK_SECONDS):
                    topic, partition = message.topic(), message.partition()
                    if topic is None or partition is None:
                        continue  # of the client itself: what does not come in time is not told
                    tp = TopicPartition(topic, partition)
                    if tp not in waiting:
                        continue
                    waiting.discard(tp)
                    consumer.pause([WirePartition(topic, partition)])
                    kind, milliseconds = message.timestamp()
                    if message.error() is None and kind != TIMESTAMP_NOT_AVAILABLE:
                        found[tp] = milliseconds
        except KafkaException as error:
            raise self._explained(error, "reading timestamps") from None
        finally:
            consumer.close()
        return found

    # ---- changing ---------------------------------------------------------------------------------------------------

    def publish(self, group: str, positions: Mapping[TopicPartition, Point]) -> dict[TopicPartition, str]:
        """Commits ``positions`` for a group without members, as lag tools see it; returns partition → error, {} if all went.

        One that has members refuses all.
        """
        if not positions:
            return {}

        def publish(_: AdminClient, seconds: float) -> dict[TopicPartition, str]:
            errors = self._group(group).commit(positions, seconds)
            for error in errors.values():
                if _is_moving(error):
                    raise KafkaException(error)
            return {tp: error.str() for tp, error in errors.items()}

        return self._asked(publish, f"publishing offsets of group {group}")

    def create_topic(
        self, topic: str, partitions: int, config: Mapping[str, str] | None = None, replication: int = 1
    ) -> None:
        """Returns when every partition has a leader. Raises UsageError if the topic exists."""
        new = NewTopic(topic, partitions, replication, config=dict(config or {}))
        futures = self._admin.create_topics([new], request_timeout=self._timeout, operation_timeout=self._timeout)
        try:
            futures[topic].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise UsageError(f"topic {topic} exists already") from None
            raise self._explained(error, f"creating topic {topic}") from None
        # the controller answers when it has decided; brokers learn of the topic a moment later
        if not self._comes_true(lambda: self._is_led(topic, partitions)):
            raise UnreachableError(
                f"topic {topic} was created, and {self._address} does not show it with leaders after {self._timeout:g} s"
            )

    def _comes_true(self, condition: Callable[[], bool]) -> bool:
        """Within the time-out."""
        again = tenacity.Retrying(
            stop=tenacity.stop_after_delay(self._timeout),
            wait=tenacity.wait_fixed(_SETTLE_SECONDS),
            retry=tenacity.retry_if_result(lambda true: not true),
            retry_error_callback=lambda _: False,
        )
        return again(condition)

    def _is_led(self, topic: str, partitions: int) -> bool:
        shown = self._metadata().topics.get(topic)
        if shown is None or shown.error is not None or len(shown.partitions) != partitions:
            return False
        return all(partition.leader >= 0 for partition in shown.partitions.values())

    def delete_topic(self, topic: str) -> None:
        """Returns when the brokers know it no more. Raises UsageError if there is no such topic."""
        futures = self._admin.delete_topics([topic], request_timeout=self._timeout, operation_timeout=self._timeout)
        self._result(futures[topic], f"deleting topic {topic}")
        if not self._comes_true(lambda: topic not in self._metadata().topics):
            raise UnreachableError(
                f"topic {topic} was deleted, and {self._address} still shows it after {self._timeout:g} s"
            )

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Drops every record below the offset given; the first offset held moves there at once."""
        asked = [WirePartition(tp.topic, tp.partition, offset) for tp, offset in before.items()]
        futures = self._admin.delete_records(asked, request_timeout=self._timeout, operation_timeout=self._timeout)
        for wire, future in futures.items():
            self._result(future, f"deleting records of {wire.topic}/{wire.partition}")

    # ---- asking -----------------------------------------------------------------------------------------------------

    def leaderless(self, partitions: Iterable[TopicPartition]) -> str:
        """Which of ``partitions`` nobody leads now, and who could, as words for an error; "" for none, or if no broker tells."""
        shown = shown_partitions(self._admin, partitions) or {}
        return "; ".join(filter(None, (without_leader(tp, one) for tp, one in sorted(shown.items()))))

    def _new_client(self) -> AdminClient:
        options: dict[str, Any] = {**self._options, "error_cb": self._client_errors}
        return AdminClient(options, logger=self._client_errors)

    def _group(self, group: str) -> GroupOffsets:
        with self._lock:
            if self._client is None:
                raise ForebayError("this Kafka admin client is closed")
            if group not in self._groups:
                self._groups[group] = GroupOffsets(self._options, group, self._clock, self._client_errors)
            return self._groups[group]

    @property
    def _admin(self) -> AdminClient:
        if self._client is None:
            raise ForebayError("this Kafka admin client is closed")
        return self._client

    def _metadata(self, timeout_seconds: float | None = None) -> Any:
        return self._asked(
            lambda client, seconds: client.list_topics(timeout=seconds), "reading the cluster's topics", timeout_seconds
        )

    def _asked(
        self,
        ask: Callable[[AdminClient, float], _Answer],
        what: str,
        timeout_seconds: float | None = None,
        partitions: Collection[TopicPartition] = (),
    ) -> _Answer:
        """What ``ask`` answers, given a client and how many seconds it may take. Within the time-out it is asked again where the
        answer may be another one in a moment, and by a new client: one that knows a leader or controller of before may ask that
        one on and on."""
        timeout = self._timeout if timeout_seconds is None else timeout_seconds
        ends = self._clock.monotonic() + timeout - (min(WHY_SECONDS, timeout / 2) if partitions else 0)
        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: self._may_change(error, partitions)),
            wait=tenacity.wait_exponential(multiplier=_SETTLE_SECONDS, max=_PAUSE_SECONDS_MAX),
            stop=lambda state: self._clock.monotonic() + state.upcoming_sleep >= ends,
            sleep=tenacity.sleep_using_event(self._closed),
            reraise=True,
        )
        client: AdminClient | None = None
        try:
            for attempt in tries:
                with attempt:
                    # held: one that is collected while its futures run answers _DESTROY
                    client = self._admin if client is None else self._other_than(client)
                    seconds = _TRY_SECONDS * 2 ** (attempt.retry_state.attempt_number - 1)
                    answer = ask(client, max(_SETTLE_SECONDS, min(seconds, ends - self._clock.monotonic())))
                    client.poll(0)
                    self._client_errors.forget()  # not before: a client reports a reason that stays only now and then
                    return answer
        except KafkaException as error:
            why = self.leaderless(partitions) if partitions and _is_moving(error.args[0]) else ""
            raise self._explained(error, f"{what}: {why}" if why else what) from None
        raise AssertionError("tenacity ends by an answer or an error")

    def _other_than(self, client: AdminClient) -> AdminClient:
        client.poll(0)
        with self._lock:
            if self._client is client:  # nobody was quicker, and this is not closed
                self._client = self._new_client()
        return self._admin

    def _may_change(self, error: BaseException, partitions: Collection[TopicPartition]) -> bool:
        """Whether the same question may have another answer in a moment."""
        return (
            isinstance(error, KafkaException)
            and _is_moving(error.args[0])
            and not self._is_unknown(error.args[0], partitions)
        )

    def _result(self, future: Any, what: str) -> Any:
        try:
            return future.result()  # bounded by the request's own time-out
        except KafkaException as error:
            raise self._explained(error, what) from None

    def _is_unknown(self, error: KafkaError, partitions: Iterable[TopicPartition]) -> bool:
        """A client says the same of a partition that nobody leads, and of one that is not there."""
        if error.code() != KafkaError._NOENT:
            return False
        shown = shown_partitions(self._admin, partitions)
        return shown is not None and None in shown.values()

    def _explained(self, error: KafkaException, what: str) -> ForebayError:
        cause: KafkaError = error.args[0]
        if cause.code() in _UNREACHABLE:
            self._poll()
            return self._client_errors.unreachable(f"Kafka at {self._address} did not answer: {what}: {cause.str()}")
        if cause.code() in _UNKNOWN_TOPIC:
            return UnknownTopicError(f"{what}: {cause.str()}")
        return ForebayError(f"Kafka at {self._address}: {what}: {cause.str()}")


def _is_moving(error: KafkaError | None) -> bool:
    """Whether the same question may be answered in a moment: by a new leader, coordinator or controller, or at all."""
    return error is not None and error.code() in _UNREACHABLE


def _in_words(partitions: Iterable[TopicPartition]) -> str:
    """A few by name."""
    names = sorted(map(str, partitions))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
