"""Requests to Kafka without membership of a consumer group: topics, offsets, groups' commits, and changes for tools and tests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from numbers import Integral
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeAlias

from confluent_kafka import (
    OFFSET_INVALID,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
)
from confluent_kafka import TopicPartition as WirePartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from forebay.kafka.client.denials import next_step
from forebay.kafka.client.group_offsets import Point
from forebay.kafka.client.log_cuts import LogPoint, find_cuts
from forebay.kafka.client.requests import UNKNOWN_TOPIC, AdminRequests, may_pass
from forebay.kafka.options.librdkafka import client_options
from forebay.kafka.options.rights import Right
from forebay.model.errors import UnreachableError, UsageError
from forebay.model.topic_pattern import matches
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock, SystemClock

# untyped in confluent-kafka
_EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]

#: maximum wait of one poll for the first records of partitions
_POLL_SECONDS = 0.1

#: the latest time that Kafka's requests can name
_TIME_MAX = 2**63 - 1

#: a place in a partition: an end of it, or the first record at or after a time in milliseconds since 1970
Place: TypeAlias = Literal["earliest", "latest"] | int


class Committed(NamedTuple):
    """The commit of a group for a partition. ``leader_epoch`` is -1, and ``metadata`` "", if the commit has none."""

    offset: int
    leader_epoch: int
    metadata: str


class KafkaAdmin:
    """Requests by one admin client at a time. Thread-safe. One class, because all requests share this client and its timeout.

    Each method waits at most ``timeout_seconds``, also while Kafka elects a leader, coordinator or controller, and raises:

    - UnreachableError: no broker answered in time. The message names the address, and the partitions without a leader.
    - MissingRightError: Kafka's authorizer denies the request.
    - UsageError: there is no such topic or partition.
    - ForebayError: the broker refused the request.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        timeout_seconds: float = 10.0,
        client_id: str = "forebay-admin",
        clock: Clock | None = None,
    ) -> None:
        """``options``: the pass-through keys of ``[kafka]``. Raises SettingsError for an option that librdkafka refuses."""
        self._address = options.get("bootstrap.servers", "")
        self._timeout = timeout_seconds
        self._isolation = (
            IsolationLevel.READ_UNCOMMITTED
            if options.get("isolation.level", "read_committed") == "read_uncommitted"
            else IsolationLevel.READ_COMMITTED
        )
        self._has_topic_ids: bool | None = None
        self._options = client_options(options, client_id)
        self._clock: Clock = clock or SystemClock()
        self._requests = AdminRequests(
            self._options, address=self._address, timeout_seconds=timeout_seconds, clock=self._clock
        )

    def close(self) -> None:
        self._requests.close()

    def __enter__(self) -> KafkaAdmin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- reading ----------------------------------------------------------------------------------------------------

    def check(self, timeout_seconds: float) -> None:
        """Return when a broker has answered. Raises UnreachableError if none does within ``timeout_seconds``."""
        self._metadata(timeout_seconds)

    def addresses(self) -> str:
        """Return the addresses that the brokers advertise, as ``host:port,host:port``."""
        return ",".join(f"{broker.host}:{broker.port}" for broker in self._metadata().brokers.values())

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Return the advertised host of each partition's leader. Partitions without a leader are omitted."""
        metadata = self._metadata()
        found: dict[TopicPartition, str] = {}
        for tp in partitions:
            shown = metadata.topics.get(tp.topic)
            partition = shown.partitions.get(tp.partition) if shown is not None else None
            if partition is not None and partition.leader in metadata.brokers:
                found[tp] = metadata.brokers[partition.leader].host
        return found

    def topics(self, *, internal: bool = False) -> dict[str, int]:
        """Return topic → number of partitions. ``internal``: include topics whose names begin with ``__``."""
        return {
            name: len(topic.partitions)
            for name, topic in self._metadata().topics.items()
            if topic.error is None and (internal or not name.startswith("__"))
        }

    def partitions(self, topics: Iterable[str] = (), pattern: str | None = None) -> set[TopicPartition]:
        """Return the partitions of ``topics`` and of the topics that ``pattern`` matches (:mod:`forebay.model.topic_pattern`).

        A topic that does not exist has none. A topic that the authorizer hides raises MissingRightError if ``topics`` names it;
        it matches no pattern.
        """
        wanted = set(topics)
        shown = self.topics(internal=True)
        self.check_visible(wanted - shown.keys())
        return {
            TopicPartition(name, number)
            for name, count in shown.items()
            if name in wanted or (pattern is not None and matches(pattern, name))
            for number in range(count)
        }

    def check_visible(self, topics: Collection[str]) -> None:
        """Raise MissingRightError if the authorizer hides one of ``topics``, which :meth:`topics` does not have then."""
        if topics and self._answers_topic_ids():
            self._requests.check_visible(topics, "reading the cluster's topics")

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return topic → id; "" if the brokers do not return topic ids, or the topic does not exist."""
        names = list(topics)
        if not names or not self._answers_topic_ids():
            return dict.fromkeys(names, "")

        def request(client: AdminClient, seconds: float) -> dict[str, str]:
            ids: dict[str, str] = {}
            for name, future in client.describe_topics(TopicCollection(names), request_timeout=seconds).items():
                try:
                    ids[name] = str(future.result().topic_id)
                except KafkaException as error:
                    if error.args[0].code() not in UNKNOWN_TOPIC:
                        raise
                    ids[name] = ""
            return ids

        return self._requests.send(request, f"topic ids of {', '.join(names)}", needs=_on_topics(names, "Describe"))

    def listed_topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return topic → id of topics that a broker has just listed; "" if the brokers have no topic ids.

        Raises UnreachableError if a broker does not know one of them, yet or any more: without its id, a stream would not notice
        that it is created again.
        """
        ids = self.topic_ids(topics)
        unknown = sorted(topic for topic, own in ids.items() if not own)
        if unknown and self._answers_topic_ids():
            raise UnreachableError(
                f"brokers do not agree about topics {', '.join(unknown)} yet; they may be new, or about to be deleted"
            )
        return ids

    def _answers_topic_ids(self) -> bool:
        """Return whether the cluster has a controller; librdkafka's mock has none, and never answers this request."""
        if not self._has_topic_ids:  # a broker of any cluster may know no controller for a while
            metadata = self._metadata()
            self._has_topic_ids = metadata.controller_id in metadata.brokers
        return self._has_topic_ids

    def watermarks(
        self, partitions: Iterable[TopicPartition], timeout_seconds: float | None = None
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return (first offset held, next offset to be written) of each partition. Records of open transactions count."""
        wanted = list(partitions)
        low = self._offsets(dict.fromkeys(wanted, _EARLIEST), IsolationLevel.READ_UNCOMMITTED, timeout_seconds)
        high = self._offsets(dict.fromkeys(wanted, _LATEST), IsolationLevel.READ_UNCOMMITTED, timeout_seconds)
        return {tp: (low[tp], high[tp]) for tp in wanted}

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end that a consumer with these options reads to: for ``read_committed``, the last stable offset."""
        return {tp: point.offset for tp, point in self.log_ends(partitions).items()}

    def log_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogPoint]:
        """Return the ends as :meth:`ends`, with the epochs of the leaders that answered; -1 if they do not report it."""
        return self._points(dict.fromkeys(partitions, _LATEST), self._isolation)

    def cuts(self, points: Mapping[TopicPartition, LogPoint]) -> dict[TopicPartition, int]:
        """Return the partitions whose logs were cut back below their points, with the first offset that has another record now.

        A point before the log's first offset is not a cut. A leader that does not know a point's epoch counts as unreachable:
        it may not know yet that another one was elected.
        """
        if not points:
            return {}
        return self._requests.send(
            lambda _, seconds: find_cuts(self._options, points, seconds, self._clock),
            f"leader epochs of {_first_names(points)}",
            None,
            points.keys(),
            _on_topics({tp.topic for tp in points}, "Read"),
        )

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """Return the commits of ``group``. Partitions without a commit are omitted."""
        wanted = [WirePartition(tp.topic, tp.partition) for tp in partitions]
        if not wanted:
            return {}

        found: dict[TopicPartition, Committed] = {}
        for partition in self._requests.send(
            lambda _, seconds: self._requests.group(group).committed(wanted, seconds),
            f"offsets of group {group}",
            needs=[Right("group", group, ("Describe",)), *_on_topics({one.topic for one in wanted}, "Describe")],
        ):
            if partition.offset >= 0:
                epoch = partition.leader_epoch
                tp = TopicPartition(partition.topic, partition.partition)
                found[tp] = Committed(partition.offset, -1 if epoch is None else epoch, partition.metadata or "")
        return found

    def starting_offsets(
        self, policy: str | Mapping[str, int], partitions: Iterable[TopicPartition], group: str
    ) -> dict[TopicPartition, int]:
        """Return the offset at which each partition begins according to ``policy``, a value of ``kafka.starting_offsets``:

        - ``"earliest"``, ``"latest"``.
        - ``"committed"``: the commit of ``group``; the beginning if the group has none.
        - ``{"timestamp": ms}``: the first record at or after the time; the end if there is none.
        - ``{"topic/partition": offset}``: this offset; the beginning for a partition that is not named.

        Raises UsageError for an explicit offset that Kafka does not hold, and for a time that :func:`check_time` refuses.
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
            at = self._offsets(dict.fromkeys(wanted, _at_time(policy["timestamp"])), self._isolation)
            none = [tp for tp, offset in at.items() if offset < 0]
            return {**at, **self._offsets(dict.fromkeys(none, _LATEST), self._isolation)}
        held = self.watermarks(wanted)
        for tp, (low, high) in held.items():
            if not low <= policy.get(str(tp), low) <= high:
                raise UsageError(
                    f"starting offset {policy[str(tp)]} of {tp}: Kafka holds offsets {low} to {high}; choose one of these"
                )
        return {tp: policy.get(str(tp), held[tp][0]) for tp in wanted}

    def places(self, asked: Mapping[TopicPartition, Place]) -> dict[TopicPartition, int]:
        """Return the offset of each place, by one request for each leader; -1 for a time after the last record.

        The end is that of a consumer with these options, as in :meth:`ends`. Raises UsageError for a time that
        :func:`check_time` refuses.
        """
        specs = {
            tp: _EARLIEST if place == "earliest" else _LATEST if place == "latest" else _at_time(place)
            for tp, place in asked.items()
        }
        return self._offsets(specs, self._isolation)

    def why_silent(self) -> str:
        """Return why brokers can't be reached since they last answered, as librdkafka reported it; "" if it reported nothing.

        May be called while a request waits for its answer.
        """
        return self._requests.why_silent()

    def _offsets(
        self, asked: Mapping[TopicPartition, Any], isolation: IsolationLevel, timeout_seconds: float | None = None
    ) -> dict[TopicPartition, int]:
        return {tp: point.offset for tp, point in self._points(asked, isolation, timeout_seconds).items()}

    def _points(
        self, asked: Mapping[TopicPartition, Any], isolation: IsolationLevel, timeout_seconds: float | None = None
    ) -> dict[TopicPartition, LogPoint]:
        if not asked:
            return {}
        specs = {WirePartition(tp.topic, tp.partition): spec for tp, spec in asked.items()}

        def request(client: AdminClient, seconds: float) -> dict[TopicPartition, LogPoint]:
            futures = client.list_offsets(specs, isolation_level=isolation, request_timeout=seconds)
            found = {TopicPartition(wire.topic, wire.partition): future.result() for wire, future in futures.items()}
            for tp, answer in found.items():
                if answer.offset == OFFSET_INVALID:  # the client's answer if the leader that it knows does not answer
                    raise KafkaException(
                        KafkaError(KafkaError.LEADER_NOT_AVAILABLE, f"no broker returned the offset of {tp}")
                    )
            return {
                tp: LogPoint(answer.offset, -1 if answer.leader_epoch is None else answer.leader_epoch)
                for tp, answer in found.items()
            }

        return self._requests.send(
            request,
            f"offsets of {_first_names(asked)}",
            timeout_seconds,
            asked.keys(),
            _on_topics({tp.topic for tp in asked}, "Describe"),
        )

    def first_timestamps(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the timestamp of the first record at or after each position, in milliseconds.

        Partitions for which Kafka returns no timestamp before the timeout are omitted.
        """
        found: dict[TopicPartition, int] = {}
        for tp, message in self._first_messages(positions, "reading timestamps").items():
            kind, milliseconds = message.timestamp()
            if message.error() is None and kind != TIMESTAMP_NOT_AVAILABLE:
                found[tp] = milliseconds
        return found

    def next_records(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offset of the first record at or after each position; if there is none, the log's end.

        Records of open transactions and behind them are not looked at if these options read only committed ones. Partitions for
        which Kafka returns neither before the timeout are omitted.
        """
        found: dict[TopicPartition, int] = {}
        for tp, message in self._first_messages(positions, "reading records").items():
            error, offset = message.error(), message.offset()
            if offset is not None and (error is None or error.code() == KafkaError._PARTITION_EOF):
                found[tp] = offset
        return found

    def _first_messages(self, positions: Mapping[TopicPartition, int], what: str) -> dict[TopicPartition, Message]:
        """Return the first record, end or error at each position, as far as they arrive before the timeout.

        A consumer that joins no group makes one small fetch for each partition. ``what``: the request, for errors.
        """
        found: dict[TopicPartition, Message] = {}
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
            for _ in range(max(1, round(self._timeout / _POLL_SECONDS))):
                if not waiting:
                    break
                for message in consumer.consume(1_000, _POLL_SECONDS):
                    topic, partition = message.topic(), message.partition()
                    if topic is None or partition is None:
                        continue  # an error of the whole client
                    tp = TopicPartition(topic, partition)
                    if tp not in waiting:
                        continue
                    waiting.discard(tp)
                    consumer.pause([WirePartition(topic, partition)])
                    found[tp] = message
        except KafkaException as error:
            raise self._requests.explained(error, what) from None
        finally:
            consumer.close()
        return found

    # ---- writing ---------------------------------------------------------------------------------------------------

    def publish(self, group: str, positions: Mapping[TopicPartition, Point]) -> dict[TopicPartition, str]:
        """Commit ``positions`` for a group without members, where lag tools see them. Return partition → error; {} on success.

        A group with members refuses all positions.
        """
        if not positions:
            return {}
        needs = [Right("group", group, ("Read",)), *_on_topics({tp.topic for tp in positions}, "Read")]

        def publish(_: AdminClient, seconds: float) -> dict[TopicPartition, str]:
            errors = self._requests.group(group).commit(positions, seconds)
            for error in errors.values():
                if may_pass(error):
                    raise KafkaException(error)
            steps = {tp: next_step(error, needs) for tp, error in errors.items()}
            return {tp: "; ".join(filter(None, (error.str(), steps[tp]))) for tp, error in errors.items()}

        return self._requests.send(publish, f"publishing offsets of group {group}", needs=needs)

    def create_topic(
        self, topic: str, partitions: int, config: Mapping[str, str] | None = None, replication: int = 1
    ) -> None:
        """Create ``topic``, and return when each partition has a leader. Raises UsageError if the topic exists."""
        new = NewTopic(topic, partitions, replication, config=dict(config or {}))
        futures = self._requests.client.create_topics(
            [new], request_timeout=self._timeout, operation_timeout=self._timeout
        )
        try:
            futures[topic].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise UsageError(f"topic {topic} exists already") from None
            raise self._requests.explained(error, f"creating topic {topic}", _on_topics([topic], "Create")) from None
        # the controller answers when it has decided; the brokers learn of the topic a moment later
        if not self._requests.comes_true(lambda: self._is_led(topic, partitions)):
            raise UnreachableError(
                f"topic {topic} was created, but {self._address} does not show it with leaders after {self._timeout:g} s"
            )

    def _is_led(self, topic: str, partitions: int) -> bool:
        shown = self._metadata().topics.get(topic)
        if shown is None or shown.error is not None or len(shown.partitions) != partitions:
            return False
        return all(partition.leader >= 0 for partition in shown.partitions.values())

    def delete_topic(self, topic: str) -> None:
        """Delete ``topic``, and return when no broker shows it any more. Raises UsageError if there is no such topic."""
        futures = self._requests.client.delete_topics(
            [topic], request_timeout=self._timeout, operation_timeout=self._timeout
        )
        self._requests.result(futures[topic], f"deleting topic {topic}", _on_topics([topic], "Delete"))
        if not self._requests.comes_true(lambda: topic not in self._metadata().topics):
            raise UnreachableError(
                f"topic {topic} was deleted, but {self._address} still shows it after {self._timeout:g} s"
            )

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete all records below the given offsets. On return, the first offset held is the given one."""
        asked = [WirePartition(tp.topic, tp.partition, offset) for tp, offset in before.items()]
        futures = self._requests.client.delete_records(
            asked, request_timeout=self._timeout, operation_timeout=self._timeout
        )
        for wire, future in futures.items():
            needs = _on_topics([wire.topic], "Delete")
            self._requests.result(future, f"deleting records of {wire.topic}/{wire.partition}", needs)

    def leaderless(self, partitions: Iterable[TopicPartition]) -> str:
        """Describe those of ``partitions`` that have no leader now, for an error; "" if there are none, or no broker answers."""
        return self._requests.leaderless(partitions)

    def _metadata(self, timeout_seconds: float | None = None) -> Any:
        return self._requests.send(
            lambda client, seconds: client.list_topics(timeout=seconds), "reading the cluster's topics", timeout_seconds
        )


def check_time(time_ms: object) -> None:
    """Raise UsageError unless ``time_ms`` is a time for Kafka: a negative one would mean an end of the partition."""
    if not isinstance(time_ms, Integral) or not 0 <= int(time_ms) <= _TIME_MAX:
        raise UsageError(f"time {time_ms!r}: allowed are milliseconds since 1970 UTC, from 0")


def _at_time(time_ms: int) -> Any:
    check_time(time_ms)
    return OffsetSpec.for_timestamp(time_ms)


def _on_topics(topics: Iterable[str], operation: str) -> list[Right]:
    return [Right("topic", topic, (operation,)) for topic in sorted(topics)]


def _first_names(partitions: Iterable[TopicPartition]) -> str:
    """Return the first three names, and how many more there are."""
    names = sorted(map(str, partitions))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
