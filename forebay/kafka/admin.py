"""Questions to Kafka outside a consumer group's membership, and the few changes that tools and tests need."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeAlias

import tenacity
from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as WirePartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from forebay.errors import ForebayError, SettingsError, UnknownTopicError, UnreachableError, UsageError
from forebay.kafka.options import client_options
from forebay.kafka.positions import Point, commit_list
from forebay.values import TopicPartition

_log = logging.getLogger("forebay.kafka")

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
    KafkaError._NOENT,  # a partition without a leader, or a topic that a new client has not heard of
}
#: a group's coordinator is made, moves or loads: it says so a moment later
_COORDINATOR = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
}
#: between two looks whether a new topic has reached the brokers
_SETTLE_SECONDS = 0.05
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
    """One admin client. Every method may be called from any thread, waits at most ``timeout_seconds``, and raises

    UnreachableError (no broker answered in time; names the address), UsageError (no such topic or partition), or
    ForebayError (the broker answered no).
    """

    def __init__(
        self, options: Mapping[str, str], *, timeout_seconds: float = 10.0, client_id: str = "forebay-admin"
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
        self._lookers: dict[str, Consumer] = {}
        self._lock = threading.Lock()
        try:
            # kept for the life of this object: a client that is collected while its futures run answers _DESTROY
            self._client: AdminClient | None = AdminClient({**self._options}, logger=_log)
        except KafkaException as error:
            raise SettingsError(f"kafka: {error.args[0].str()}") from None

    def close(self) -> None:
        self._client = None
        with self._lock:
            lookers, self._lookers = list(self._lookers.values()), {}
        for looker in lookers:
            looker.close()

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
        """The partitions of ``topics``, or of the topics whose whole name matches ``pattern``; a missing topic has none."""
        wanted = set(topics)
        expression = re.compile(pattern) if pattern is not None else None
        return {
            TopicPartition(name, number)
            for name, count in self.topics().items()
            if name in wanted or (expression is not None and expression.fullmatch(name))
            for number in range(count)
        }

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """topic → id; "" where the broker can't tell, or the topic is not there."""
        names = list(topics)
        if not names or not self._can_tell_topic_ids():
            return dict.fromkeys(names, "")
        futures = self._admin.describe_topics(TopicCollection(names), request_timeout=self._timeout)
        ids: dict[str, str] = {}
        for name, future in futures.items():
            try:
                ids[name] = str(future.result().topic_id)
            except KafkaException as error:
                if error.args[0].code() not in _UNKNOWN_TOPIC:
                    raise self._explained(error, f"topic id of {name}") from None
                ids[name] = ""
        return ids

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
        """What ``group`` committed, for those of ``partitions`` that it committed anything for.

        Asked by a consumer that never joins: the admin client's request for the same takes the whole process down while
        the group's coordinator loads or moves (librdkafka#5040).
        """
        wanted = [WirePartition(tp.topic, tp.partition) for tp in partitions]
        if not wanted:
            return {}
        what = f"offsets of group {group}"
        answer = self._of_coordinator(lambda: self._looker(group).committed(wanted, timeout=self._timeout), what)
        found: dict[TopicPartition, Committed] = {}
        for partition in answer:
            if partition.error is not None:
                raise self._explained(KafkaException(partition.error), what)
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

    def _offsets(
        self, asked: Mapping[TopicPartition, Any], isolation: IsolationLevel, timeout_seconds: float | None = None
    ) -> dict[TopicPartition, int]:
        if not asked:
            return {}
        futures = self._admin.list_offsets(
            {WirePartition(tp.topic, tp.partition): spec for tp, spec in asked.items()},
            isolation_level=isolation,
            request_timeout=timeout_seconds or self._timeout,
        )
        return {
            TopicPartition(wire.topic, wire.partition): self._result(
                future, f"offsets of {wire.topic}/{wire.partition}"
            ).offset
            for wire, future in futures.items()
        }

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

        Raises ForebayError if the group has members.
        """
        if not positions:
            return {}
        request = [ConsumerGroupTopicPartitions(group, commit_list(positions))]

        def publish() -> list[Any]:
            futures = self._admin.alter_consumer_group_offsets(request, request_timeout=self._timeout)
            answered: list[Any] = futures[group].result().topic_partitions
            return answered

        return {
            TopicPartition(partition.topic, partition.partition): partition.error.str()
            for partition in self._of_coordinator(publish, f"publishing offsets of group {group}")
            if partition.error is not None
        }

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

    def _looker(self, group: str) -> Consumer:
        if self._client is None:
            raise ForebayError("this Kafka admin client is closed")
        with self._lock:
            looker = self._lookers.get(group)
            if looker is None:
                own = {"group.id": group, "enable.auto.commit": "false", "log_level": "0"}
                looker = self._lookers[group] = Consumer({**self._options, **own})
            return looker

    @property
    def _admin(self) -> AdminClient:
        if self._client is None:
            raise ForebayError("this Kafka admin client is closed")
        return self._client

    def _metadata(self, timeout_seconds: float | None = None) -> Any:
        timeout = self._timeout if timeout_seconds is None else timeout_seconds
        try:
            return self._admin.list_topics(timeout=timeout)
        except KafkaException as error:
            raise self._explained(error, "reading the cluster's topics") from None

    def _result(self, future: Any, what: str) -> Any:
        try:
            return future.result()  # bounded by the request's own time-out
        except KafkaException as error:
            raise self._explained(error, what) from None

    def _of_coordinator(self, ask: Callable[[], list[Any]], what: str) -> list[Any]:
        """What ``ask`` answers, asked again within the time-out while the group's coordinator is not there yet."""

        def asked() -> list[Any] | KafkaException:
            try:
                return ask()
            except KafkaException as error:
                return error

        def is_moving(answer: list[Any] | KafkaException) -> bool:
            if isinstance(answer, KafkaException):
                return answer.args[0].code() in _COORDINATOR
            return any(partition.error is not None and partition.error.code() in _COORDINATOR for partition in answer)

        again = tenacity.Retrying(
            stop=tenacity.stop_after_delay(self._timeout),
            wait=tenacity.wait_fixed(_SETTLE_SECONDS),
            retry=tenacity.retry_if_result(is_moving),
            retry_error_callback=lambda state: state.outcome.result() if state.outcome is not None else [],
        )
        answer: list[Any] | KafkaException = again(asked)
        if isinstance(answer, KafkaException):
            raise self._explained(answer, what) from None
        return answer

    def _explained(self, error: KafkaException, what: str) -> ForebayError:
        cause: KafkaError = error.args[0]
        if cause.code() in _UNREACHABLE:
            return UnreachableError(f"Kafka at {self._address} did not answer: {what}: {cause.str()}")
        if cause.code() in _UNKNOWN_TOPIC:
            return UnknownTopicError(f"{what}: {cause.str()}")
        return ForebayError(f"Kafka at {self._address}: {what}: {cause.str()}")
