"""Requests of an admin client: each is repeated within its timeout while Kafka elects a leader, coordinator or controller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

import tenacity
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.client.denials import is_denied, missing_right
from forebay.kafka.client.group_offsets import GroupOffsets
from forebay.kafka.client.leaders import WHY_SECONDS, shown_partitions, without_leader
from forebay.kafka.options.rights import Right
from forebay.model.errors import ForebayError, SettingsError, UnknownTopicError
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock

Answer = TypeVar("Answer")

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
    KafkaError._NOENT,  # a partition without a leader, or a topic that a new client does not know yet
}
UNKNOWN_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
#: pause before the second attempt; it doubles up to the maximum
_PAUSE_SECONDS_FIRST, _PAUSE_SECONDS_MAX = 0.05, 1.0
#: timeout of the first attempt, doubled for each later one: a client may wait for a broker that has stopped
_ATTEMPT_SECONDS = 2.0
_CLOSED = "this Kafka admin client is closed"


class AdminRequests:
    """The requests of one :class:`forebay.kafka.client.admin.KafkaAdmin`, by one admin client at a time. Thread-safe."""

    def __init__(self, options: Mapping[str, str], *, address: str, timeout_seconds: float, clock: Clock) -> None:
        """``options``: those of an admin client; ``address``: the brokers, for errors.

        Raises SettingsError for an option that librdkafka refuses.
        """
        self.errors = ClientErrors(clock=clock, options=options)
        self._options = options
        self._address = address
        self._timeout = timeout_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._groups: dict[str, GroupOffsets] = {}
        try:
            self._client: AdminClient | None = self._new_client()
        except KafkaException as error:
            raise SettingsError(
                f"cannot create a Kafka client: {error.args[0].str()}; correct the Kafka options"
            ) from None

    def close(self) -> None:
        """Close the clients. Later requests, and those that are being repeated, raise ForebayError."""
        self._closed.set()
        with self._lock:
            self._client = None
            groups, self._groups = list(self._groups.values()), {}
        for group in groups:
            group.close()

    @property
    def client(self) -> AdminClient:
        """The current client. Raises ForebayError after :meth:`close`."""
        if self._client is None:
            raise ForebayError(_CLOSED)
        return self._client

    def group(self, name: str) -> GroupOffsets:
        """Return the client for the committed offsets of a group. Raises ForebayError after :meth:`close`."""
        with self._lock:
            if self._client is None:
                raise ForebayError(_CLOSED)
            if name not in self._groups:
                self._groups[name] = GroupOffsets(self._options, group=name, clock=self._clock, errors=self.errors)
            return self._groups[name]

    def send(
        self,
        request: Callable[[AdminClient, float], Answer],
        what: str,
        timeout_seconds: float | None = None,
        partitions: Collection[TopicPartition] = (),
        needs: Iterable[Right] = (),
    ) -> Answer:
        """Return the answer of ``request``, which receives a client and its timeout in seconds.

        If the error may pass, the request is repeated within the timeout, each time by a new client: a client that knows a former
        leader or controller may ask that broker again and again. ``what``: the request, for errors. ``partitions``: those that
        it asks about; an error then names the ones without a leader. ``needs``: the rights that it needs; an error then names the
        one that is missing.
        """
        timeout = self._timeout if timeout_seconds is None else timeout_seconds
        ends = self._clock.monotonic() + timeout - (min(WHY_SECONDS, timeout / 2) if partitions else 0)
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: self._may_pass(error, partitions)),
            wait=tenacity.wait_exponential(multiplier=_PAUSE_SECONDS_FIRST, max=_PAUSE_SECONDS_MAX),
            stop=lambda state: self._clock.monotonic() + state.upcoming_sleep >= ends,
            sleep=tenacity.sleep_using_event(self._closed),
            reraise=True,
        )
        client: AdminClient | None = None
        try:
            for attempt in attempts:
                with attempt:
                    # referenced until the answer: futures of a collected client fail with _DESTROY
                    client = self.client if client is None else self._other_than(client)
                    seconds = _ATTEMPT_SECONDS * 2 ** (attempt.retry_state.attempt_number - 1)
                    try:
                        answer = request(
                            client, max(_PAUSE_SECONDS_FIRST, min(seconds, ends - self._clock.monotonic()))
                        )
                    except KafkaException as error:
                        raise error.with_traceback(None) from None  # its frames refer to the client
                    client.poll(0)
                    self.errors.forget()  # not before: a client repeats the report of a lasting reason only now and then
                    return answer
        except KafkaException as error:
            unknown = self._is_unknown(error.args[0], partitions, KafkaError._TIMED_OUT)
            if unknown or _shows_no_leader(error.args[0]):
                self.check_visible({tp.topic for tp in partitions}, what)
            if unknown:
                raise UnknownTopicError(f"{what}: Kafka has no such topic or partition") from None
            why = self.leaderless(partitions) if partitions and may_pass(error.args[0]) else ""
            raise self.explained(error, f"{what}: {why}" if why else what, needs) from None
        finally:
            # tenacity's state, the last error and this frame refer to each other until Python's next full collection;
            # a client that the frame refers to would keep its threads and connections
            client = None
        raise AssertionError("tenacity ends by an answer or an error")

    def comes_true(self, condition: Callable[[], bool]) -> bool:
        """Return whether ``condition`` becomes true within the timeout."""
        attempts = tenacity.Retrying(
            stop=tenacity.stop_after_delay(self._timeout),
            wait=tenacity.wait_fixed(_PAUSE_SECONDS_FIRST),
            retry=tenacity.retry_if_result(lambda true: not true),
            retry_error_callback=lambda _: False,
        )
        return attempts(condition)

    def result(self, future: Any, what: str, needs: Iterable[Right] = ()) -> Any:
        """Return the result of a client's ``future``; its own request's timeout limits the wait."""
        try:
            return future.result()
        except KafkaException as error:
            raise self.explained(error, what, needs) from None

    def check_visible(self, topics: Collection[str], what: str) -> None:
        """Raise MissingRightError if the authorizer hides one of ``topics``, which brokers show as one that does not exist."""
        if not topics:
            return
        futures = self.client.describe_topics(TopicCollection(sorted(topics)), request_timeout=WHY_SECONDS)
        for topic, future in futures.items():
            try:
                future.result()
            except KafkaException as error:
                if is_denied(error.args[0]):
                    raise self.explained(error, what, [Right("topic", topic, ("Describe",))]) from None

    def leaderless(self, partitions: Iterable[TopicPartition]) -> str:
        """Describe those of ``partitions`` that have no leader now, and which brokers could lead them; "" if there are none, or
        no broker answers."""
        shown = shown_partitions(self.client, partitions) or {}
        return "; ".join(filter(None, (without_leader(tp, one) for tp, one in sorted(shown.items()))))

    def why_silent(self) -> str:
        """As ``KafkaAdmin.why_silent``."""
        if (client := self._client) is not None:
            client.poll(0)  # calls error_cb and the logger
        return self.errors.text()

    def explained(self, error: KafkaException, what: str, needs: Iterable[Right] = ()) -> ForebayError:
        """Return the project's error for ``error`` of the request ``what``, which needs the rights ``needs``."""
        cause: KafkaError = error.args[0]
        if is_denied(cause):
            return missing_right(f"Kafka at {self._address}: {what}: {cause.str()}", cause, needs)
        if cause.code() in _UNREACHABLE:
            if (client := self._client) is not None:
                client.poll(0)
            return self.errors.unreachable(f"Kafka at {self._address} did not answer: {what}: {cause.str()}")
        if cause.code() in UNKNOWN_TOPIC:
            return UnknownTopicError(f"{what}: {cause.str()}")
        return ForebayError(f"Kafka at {self._address}: {what}: {cause.str()}")

    def _new_client(self) -> AdminClient:
        options: dict[str, Any] = {**self._options, "error_cb": self.errors}
        return AdminClient(options, logger=self.errors)

    def _other_than(self, client: AdminClient) -> AdminClient:
        client.poll(0)
        with self._lock:
            if self._client is client:  # no other thread was quicker, and this is not closed
                self._client = self._new_client()
        return self.client

    def _may_pass(self, error: BaseException, partitions: Collection[TopicPartition]) -> bool:
        return (
            isinstance(error, KafkaException)
            and may_pass(error.args[0])
            and not self._is_unknown(error.args[0], partitions)
        )

    def _is_unknown(self, error: KafkaError, partitions: Iterable[TopicPartition], *more_codes: int) -> bool:
        """Return whether a partition does not exist: a client reports the same error for one without a leader.

        ``more_codes``: further errors that may mean it. A client may ask for the leader of a deleted topic until its timeout.
        """
        if error.code() not in (KafkaError._NOENT, *more_codes):
            return False
        shown = shown_partitions(self.client, partitions)
        return shown is not None and None in shown.values()


def _shows_no_leader(error: KafkaError) -> bool:
    """Return whether the client knows no leader, as for a topic that does not exist or that the authorizer hides."""
    return error.code() == KafkaError._NOENT or error.code() in UNKNOWN_TOPIC


def may_pass(error: KafkaError | None) -> bool:
    """Return whether the same request may succeed in a moment: at a new leader, coordinator or controller, or at any broker."""
    return error is not None and error.code() in _UNREACHABLE
