"""How a consumer's records are fetched: as columns, or as one Python object per record where the native library can't be used."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaException, Message

from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.consume.messages import partition_of, received
from forebay.kafka.native.library import Library, library
from forebay.kafka.native.received import Received
from forebay.kafka.native.record_queue import RecordQueue
from forebay.model.errors import SettingsError
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock

#: how long a fetch at most gathers more records after the first: bounds its latency and, times the network's rate, its memory
GATHER_SECONDS = 0.01
_CLOCK = SystemClock()


class Fetcher(Protocol):
    """The records and events of a consumer. For the polling thread. The consumer's callbacks run within its methods."""

    @property
    def kept(self) -> int:
        """The number of records that :meth:`serve` has kept for the next fetch."""

    def fetch(self, max_records: int, timeout_seconds: float) -> list[Received]:
        """Return what arrived, soon after the first record or event, and after ``timeout_seconds`` at the latest."""

    def serve(self, seconds: float) -> None:
        """Serve callbacks for ``seconds`` at most, and keep records that arrive."""

    def assigning(self, assigned: Collection[TopicPartition], anew: Collection[TopicPartition]) -> None:
        """Prepare a change of the assignment.

        ``assigned``: all partitions that are read from now on. ``anew``: those that librdkafka assigns now. Their kept records
        are dropped, since they are read again.
        """

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the kept records of ``partitions``."""

    def close(self) -> None:
        """Release what librdkafka holds, before the consumer is closed."""


class MessageFetcher:
    """Fetches each record as an object of confluent-kafka."""

    def __init__(self, consumer: Consumer, headers: bool) -> None:
        self._consumer = consumer
        self._headers = headers
        self._kept: list[Message] = []

    @property
    def kept(self) -> int:
        return len(self._kept)

    def fetch(self, max_records: int, timeout_seconds: float) -> list[Received]:
        return received(self._consume(max_records, timeout_seconds), self._headers)

    def _consume(self, max_records: int, timeout_seconds: float) -> list[Message]:
        if self._kept:
            messages, self._kept = self._kept, []
            return messages + self._consumer.consume(max_records, 0)
        messages = self._consumer.consume(max_records, min(GATHER_SECONDS, timeout_seconds))
        if not messages and timeout_seconds > GATHER_SECONDS:
            messages = self._consumer.consume(1, timeout_seconds - GATHER_SECONDS)
            if messages and max_records > 1:
                messages += self._consumer.consume(max_records - 1, GATHER_SECONDS)
        return messages

    def serve(self, seconds: float) -> None:
        self._kept += self._consumer.consume(1, seconds)

    def assigning(self, assigned: Collection[TopicPartition], anew: Collection[TopicPartition]) -> None:
        self.drop(anew)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        self._kept = [message for message in self._kept if partition_of(message) not in partitions]

    def close(self) -> None:
        self._kept.clear()


class ColumnFetcher:
    """Fetches records as columns. Events of the group and the client come through the consumer's queue, as messages.

    When librdkafka stops a partition, it ends the redirection of its records, in a thread of its own, some time after the call.
    So partitions are redirected again before each fetch until the first item of their new assignment arrives, which proves that
    the stop is past. Records that arrived before a redirection are then moved too, in order.
    """

    def __init__(self, messages: MessageFetcher, queue: RecordQueue) -> None:
        self._queue = queue  # first: librdkafka ends it before the consumer, also if this object is just dropped
        self._messages = messages
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._unproven: set[TopicPartition] = set()

    @property
    def kept(self) -> int:
        return self._messages.kept

    def fetch(self, max_records: int, timeout_seconds: float) -> list[Received]:
        ends = _CLOCK.monotonic() + timeout_seconds
        while True:
            left = max(ends - _CLOCK.monotonic(), 0)
            # records among them are older than those in the other queue
            found = self._messages.fetch(max_records, 0 if self._assigned else left)
            if found or not self._assigned:
                return found
            redirecting = bool(self._unproven)
            self._queue.redirect(self._unproven)
            wait = min(left, GATHER_SECONDS) if redirecting else left
            found = self._queue.receive(max_records, wait, GATHER_SECONDS)
            self._unproven.difference_update(item.tp for item in found)
            if found or not redirecting or _CLOCK.monotonic() >= ends:
                return found

    def serve(self, seconds: float) -> None:
        self._messages.serve(seconds)

    def assigning(self, assigned: Collection[TopicPartition], anew: Collection[TopicPartition]) -> None:
        self._messages.assigning(assigned, anew)
        self._assigned = frozenset(assigned)
        self._unproven = {tp for tp in (*self._unproven, *anew) if tp in self._assigned}
        self._queue.redirect(anew)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        self._messages.drop(partitions)

    def close(self) -> None:
        self._messages.close()
        self._queue.close()


def opened(options: Mapping[str, Any], errors: ClientErrors, headers: bool) -> tuple[Consumer, Fetcher]:
    """Return a new consumer and the way to fetch from it. ``options``: with the callbacks. ``errors``: gets the client's log.

    Raises SettingsError for options that librdkafka refuses.
    """
    native = library()
    try:
        consumer = Consumer(dict(options) if native is None else native.options(options), logger=errors)
    except KafkaException as error:
        raise SettingsError(f"cannot create a Kafka client: {error.args[0].str()}; correct the Kafka options") from None
    return consumer, fetcher(consumer, native, headers)


def fetcher(consumer: Consumer, native: Library | None, headers: bool) -> Fetcher:
    """Return the way to fetch from ``consumer``, which this thread has just created.

    ``native``: the library with whose plug-in the consumer was created; None: it is not used.
    """
    messages = MessageFetcher(consumer, headers)
    client = native.take_client() if native is not None else None
    if native is None or client is None:
        return messages
    return ColumnFetcher(messages, RecordQueue(native, client, headers))
