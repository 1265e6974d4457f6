"""Sends records in transactions, each with a marker that is committed together with them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import tenacity
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.client.denials import denial_in, is_denied, missing_right
from forebay.kafka.client.group_offsets import GroupOffsets
from forebay.kafka.client.leaders import why_not_accepted
from forebay.kafka.options.librdkafka import client_options
from forebay.kafka.options.rights import ANY_NAME, transaction_rights
from forebay.kafka.produce.rows import Record
from forebay.model.errors import ForebayError, SettingsError, StoreError, UsageError
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock

_log = logging.getLogger("forebay.kafka")
_ROWS_PER_POLL = 1_000
#: a record's timeout is the transaction's, divided by this: a client waits the whole time for a broker whose host does not
#: answer, although another broker may lead by then, which a new transaction would find
_TRIES = 2
#: number of requests within the timeout: a silent coordinator is replaced while the transaction can still be aborted
_REQUESTS, _REQUEST_MS_MIN = 6, 1_000
#: time after the timeout for the client to report failed records
_REPORTS_SECONDS = 5.0
#: maximum size of the producer's queue
_QUEUE_KIB = 65_536
_COMMITS_MAX = 5
#: pause before a request is repeated
_PAUSE_SECONDS = 0.1
_UNREACHABLE = {
    KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE, KafkaError._RESOLVE, KafkaError.REQUEST_TIMED_OUT, KafkaError.NETWORK_EXCEPTION,
    KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR,
}  # fmt: skip
_FENCED = {
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    90,
}  # 90: PRODUCER_FENCED, for which confluent-kafka has no name

_Answer = TypeVar("_Answer")


class Marker(NamedTuple):
    """The record that a transaction leaves of itself. ``number`` grows from one transaction to the next."""

    number: int
    text: str


class TransactionalSender:
    """A producer with ``transactional_id``. Each of its transactions commits an output marker. Not thread-safe.

    The marker is a committed offset with metadata: of ``group``, which has no members, for partition 0 of the topic. It is part
    of the transaction, is read by one request, and needs no topic of its own. The broker deletes it
    ``offsets.retention.minutes`` (by default 7 days) after the last transaction, or when the topic is deleted.

    ``topic``: the topic of all records, which must exist. If it is None, each record names its topic. The marker is then
    committed for the first topic, by name, that the transaction wrote to, and :meth:`open` searches all topics for it.

    Each call waits at most ``timeout_seconds`` for a broker, and half of it for one record. It raises UnreachableError if no
    broker answered, UsageError if the topic does not exist, StoreError if the transaction can't continue, for example because
    another sender has taken over the id. After an error, call :meth:`close` and :meth:`open`, whose marker shows what was
    committed. Or call :meth:`abort`, and :meth:`begin` if it returned True.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        topic: str | None,
        *,
        transactional_id: str,
        group: str,
        timeout_seconds: float = 60.0,
    ) -> None:
        self._options = options
        self._topic = topic
        self._where = f"transactional id {transactional_id}" if topic is None else f"topic {topic}"
        self._written: set[str] = set()
        self._id = transactional_id
        self._group = group
        self._timeout = timeout_seconds
        self._producer: Producer | None = None
        self._reader: GroupOffsets | None = None
        self._failures: list[tuple[KafkaError, TopicPartition]] = []  # of this transaction: the first
        self._client_errors = ClientErrors(_log, options=options)
        self._clock = SystemClock()

    def open(self) -> Marker | None:
        """Take over the id, and return the marker of the last transaction; None if there is none.

        The broker aborts what an earlier sender has not committed, and that sender can't commit any more.
        """
        milliseconds = round(self._timeout * 1000)
        own = {
            "transactional.id": self._id, "transaction.timeout.ms": str(milliseconds),
            "message.timeout.ms": str(max(1, milliseconds // _TRIES)),
            "queue.buffering.max.kbytes": str(_QUEUE_KIB), "queue.buffering.max.messages": "1000000",
        }  # fmt: skip
        request = str(min(milliseconds, max(_REQUEST_MS_MIN, milliseconds // _REQUESTS)))
        made = {
            "linger.ms": "20", "compression.type": "zstd", "partitioner": "murmur2_random", "socket.timeout.ms": request
        }  # fmt: skip
        made.update(client_options(self._options, "forebay-output"))
        try:
            self._producer = Producer({**made, **own, "error_cb": self._client_errors}, logger=self._client_errors)
            self._reader = self._new_reader()
        except KafkaException as error:
            self.close()
            raise SettingsError(f"{self._where}: {error.args[0].str()}") from None
        what = "cannot open it for transactions"
        try:
            self._again(self._producer.init_transactions, _is_retriable)
            topics = self._topics(self._producer)  # afterwards: until then an earlier sender may create a topic
            what = "cannot read its marker"
            marked = self._again(partial(self._committed, topics), _is_unreachable) if topics else []
        except KafkaException as error:
            self.close()
            raise self._explained(error, what) from None
        except UsageError:
            self.close()
            raise
        return max((Marker(place.offset, place.metadata or "") for place in marked if place.offset >= 0), default=None)

    def _new_reader(self) -> GroupOffsets:
        return GroupOffsets(
            client_options(self._options, "forebay-output"),
            group=self._group,
            clock=self._clock,
            errors=self._client_errors,
        )

    def _committed(self, topics: list[str], seconds: float) -> list[WirePartition]:
        """Return the group's commits for partition 0 of each topic.

        While the broker ends an older transaction, it makes the client repeat the request. After an error the next call uses a
        new consumer, because one that knows a former coordinator may never ask another broker.
        """
        if self._reader is None:
            self._reader = self._new_reader()
        try:
            return self._reader.committed([WirePartition(topic, 0) for topic in topics], seconds)
        except KafkaException:
            reader, self._reader = self._reader, None
            reader.close()
            raise

    def _again(self, ask: Callable[[float], _Answer], passes: Callable[[KafkaError], bool]) -> _Answer:
        """Return the answer of ``ask``, which receives its timeout in seconds. Repeat it within the timeout if ``passes`` accepts
        its error. Raises KafkaException."""
        ends = self._clock.monotonic() + self._timeout
        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_passes(passes)),
            wait=tenacity.wait_fixed(_PAUSE_SECONDS),
            stop=tenacity.stop_before_delay(self._timeout),
            reraise=True,
        )
        return tries(lambda: ask(max(_PAUSE_SECONDS, ends - self._clock.monotonic())))

    def _topics(self, producer: Producer) -> list[str]:
        """Return the topics for which the last transaction may have committed its marker. Raises UsageError, KafkaException."""
        if self._topic is None:
            return sorted(producer.list_topics(timeout=self._timeout).topics)
        found = producer.list_topics(self._topic, timeout=self._timeout).topics[self._topic]
        if is_denied(found.error):
            raise KafkaException(found.error)
        if found.error is not None:
            raise UsageError(f"topic {self._topic} does not exist ({found.error.str()}): create it first")
        return [self._topic]

    def begin(self) -> None:
        """Begin a transaction."""
        self._failures = []
        self._client_errors.ended = ""
        self._written.clear()
        try:
            self._opened.begin_transaction()
        except KafkaException as error:
            raise self._explained(error, "cannot begin a transaction") from None

    def put(self, records: Iterable[Record]) -> None:
        """Queue records; wait while the queue is full."""
        producer = self._opened
        # results of an aborted transaction's records may arrive during the next transaction
        delivered = partial(_delivered, self._failures)
        for number, (topic, key, value, partition, headers) in enumerate(records):
            self._written.add(topic)
            record: dict[str, Any] = {"key": key, "value": value, "on_delivery": delivered}
            if partition is not None:
                record["partition"] = partition
            if headers:
                record["headers"] = headers
            while True:
                try:
                    producer.produce(topic, **record)
                    break
                except BufferError:  # wait until brokers accept some records, each within its timeout
                    self._serve(0.1)
                except KafkaException as error:
                    raise self._explained(error, "the client refused a record") from None
            if number % _ROWS_PER_POLL == 0:
                self._serve(0)
        self._serve(0)

    def commit(self, marker: str, number: int) -> None:
        """Commit the records since :meth:`begin` and the marker, both or neither. ``number``: the offset that lag tools show for
        the group. Without ``topic``, a transaction without records leaves no marker."""
        assert self._reader is not None
        producer = self._opened
        try:
            with self._client_errors.fatal():
                left = producer.flush(self._timeout + _REPORTS_SECONDS)
            self._check()
            if left:
                raise self._client_errors.unreachable(
                    f"Kafka at {self._options.get('bootstrap.servers', '')}: {self._where}: {left} records were not accepted"
                )
            topic = self._topic or min(self._written, default=None)
            if topic is not None:
                marked = WirePartition(topic, 0, number, metadata=marker)
                group = self._reader.metadata()
                self._again(partial(producer.send_offsets_to_transaction, [marked], group), _is_retriable)
            attempts = tenacity.Retrying(
                retry=tenacity.retry_if_exception(_passes(_is_retriable)),
                stop=tenacity.stop_after_attempt(_COMMITS_MAX),
                reraise=True,
            )
            attempts(producer.commit_transaction, self._timeout)
            self._client_errors.forget()
        except KafkaException as error:
            raise self._explained(error, "the transaction was not committed") from None

    def abort(self) -> bool:
        """Drop the records since :meth:`begin`, so that readers need not wait for the transaction's timeout.

        Return whether that is certain and this sender still owns the id: then another transaction may begin. Never raises.
        """
        if self._producer is not None:
            with suppress(KafkaException):
                self._producer.purge()
                self._producer.abort_transaction(self._timeout)
                return True
        return False

    def close(self) -> None:
        """Close the clients. An open transaction ends at its timeout, or when another sender takes over the id."""
        producer, self._producer = self._producer, None
        reader, self._reader = self._reader, None
        if producer is not None:
            with suppress(KafkaException):  # a client that has ended raises at each call
                producer.purge()
                producer.poll(0)
        if reader is not None:
            reader.close()

    @property
    def _opened(self) -> Producer:
        if self._producer is None:
            raise StoreError(f"{self._where}: the sender is not open")
        return self._producer

    def _serve(self, seconds: float) -> None:
        """Process acknowledgements for at most ``seconds``. Raises the error of a refused record."""
        try:
            with self._client_errors.fatal():
                self._opened.poll(seconds)
        except KafkaException as error:
            raise self._explained(error, "the transaction can't continue") from None
        self._check()

    def _check(self) -> None:
        if not self._failures:
            return
        error, tp = self._failures[0]
        error = denial_in(self._client_errors.ended) or error  # its records are only reported as purged
        what = "a record was not accepted" if tp.partition < 0 else f"a record of {tp} was not accepted"
        if error.code() == KafkaError._MSG_TIMED_OUT and (why := why_not_accepted(self._opened, tp)):
            what += f": {why}"
        raise self._explained(KafkaException(error), what)

    def _explained(self, error: KafkaException, what: str) -> ForebayError:
        cause = error.args[0]
        message = f"{self._where}: {what}: {cause.str()}"
        if is_denied(cause):
            topic = self._topic or min(self._written, default=ANY_NAME)
            needs = transaction_rights(topic, self._id)
            return missing_right(f"Kafka at {self._options.get('bootstrap.servers', '')}: {message}", cause, needs)
        if cause.code() in _FENCED:
            return StoreError(
                f"{message}; another sender has taken over the id, or the transaction took longer than {self._timeout:g} s"
            )
        if _is_unreachable(cause):
            if self._producer is not None:
                with suppress(KafkaException):
                    self._producer.poll(0)
            return self._client_errors.unreachable(f"Kafka at {self._options.get('bootstrap.servers', '')}: {message}")
        return StoreError(message)


def _is_unreachable(error: KafkaError) -> bool:
    return error.code() in _UNREACHABLE


def _passes(passes: Callable[[KafkaError], bool]) -> Callable[[BaseException], bool]:
    return lambda error: isinstance(error, KafkaException) and passes(error.args[0])


def _is_retriable(error: KafkaError) -> bool:
    """Return whether the client may repeat a request of a transaction after this error."""
    return bool(error.retriable())


def transactional_group(transactional_id: str) -> str:
    """Return the group whose committed offset is the marker."""
    return f"{transactional_id}/marker"


def _delivered(failures: list[tuple[KafkaError, TopicPartition]], error: KafkaError | None, message: Message) -> None:
    if error is not None and not failures:
        partition = message.partition()
        failures.append((error, TopicPartition(message.topic() or "", -1 if partition is None else partition)))
