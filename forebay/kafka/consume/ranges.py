"""Reading exact offset ranges from Kafka again: what a task does when no copy of their block is left.

Kafka is believed only if it proves that it still holds the very records: the topic's id is the one that the range's life
began with, and the number of records and their digest are the journal's. What compaction or a deletion has taken away since
shows in both. No group is joined, nothing is committed, listed or created.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.client.access import KafkaAccess
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.client.kept import Kept
from forebay.kafka.client.options import PREFETCH_SHARE, consumer_options
from forebay.kafka.consume.consumer import FAULTS, record_batch
from forebay.model.errors import RangeNotHeldError, SettingsError, UnknownTopicError
from forebay.model.records import RangeRows, digest, value_lengths
from forebay.model.values import OffsetRange, TopicPartition
from forebay.process.clock import Clock, SystemClock

_log = logging.getLogger("forebay.kafka")

#: messages of one poll
MESSAGES_MAX = 1_000
#: idle readers that a process keeps; each holds connections and threads
IDLE_READERS_MAX = 2
IDLE_READERS_SECONDS = 300.0
#: a poll returns at the latest after this, so that a deadline is noticed
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Wanted:
    """A range, and the id that its topic had in the range's life ("" where no broker could tell)."""

    range: OffsetRange
    topic_id: str


def read_ranges(access: KafkaAccess, wanted: Sequence[Wanted], headers: bool) -> list[RangeRows]:
    """The records of ranges of different partitions (as those of one block are), in the order given.

    ``headers``: as the block was taken in; the digest is over them too. May be called from any thread and after a fork: clients
    are made per process and used by one caller at a time. Raises RangeNotHeldError, which says of the first range that Kafka
    can't give what it holds instead; UnreachableError; SettingsError for options that this host can't use.
    """
    kept = kept_readers.take(access)
    if kept is not None:
        try:
            rows = kept.read(wanted, headers)
        except RangeNotHeldError:
            kept.close()  # a client with a past may be what is wrong, so a new one has the last word
        except BaseException:
            kept.close()
            raise
        else:
            kept_readers.keep(access, kept)
            return rows
    reader = RangeReader(access)
    try:
        rows = reader.read(wanted, headers)
    except BaseException:
        reader.close()
        raise
    kept_readers.keep(access, reader)
    return rows


# ---- what Kafka must prove: decisions on values alone, which the simulation runs too -----------------------------------


def check_topics(held: Sequence[Wanted], ids: Mapping[str, str]) -> None:
    """``ids``: topic → its id now, "" if it is not there or the broker can't tell. Raises RangeNotHeldError."""
    for item in held:
        if not item.topic_id:
            raise RangeNotHeldError(
                f"{item.range.label}: the journal knows no topic id, so nothing proves that Kafka holds the same records"
            )
    for item in held:
        now = ids[item.range.topic]
        if now != item.topic_id:
            found = f"now has the id {now}" if now else "is not there, or the broker tells no topic ids"
            raise RangeNotHeldError(
                f"{item.range.label}: topic {item.range.topic} had the id {item.topic_id}, and {found}"
            )


@dataclass(slots=True)
class RangeReading:
    """How far one range is read: ``position`` is the next offset. ``low``: the first one that Kafka held when the reading
    began."""

    range: OffsetRange
    low: int
    position: int
    rows: int = 0
    bytes: int = 0
    batches: list[pa.RecordBatch] = field(default_factory=list)

    @classmethod
    def begin(cls, range_: OffsetRange, low: int, high: int) -> RangeReading:
        """``low``, ``high``: Kafka's watermarks. Raises RangeNotHeldError."""
        if low >= range_.until_offset or high < range_.until_offset:
            raise RangeNotHeldError(f"{range_.label}: Kafka holds offsets {low} to {high} alone")
        return cls(range_, low, max(low, range_.from_offset))

    @property
    def done(self) -> bool:
        return self.position >= self.range.until_offset

    def append(self, batch: pa.RecordBatch) -> None:
        """Raises RangeNotHeldError as soon as there is more than the range has (INV-6)."""
        self.batches.append(batch)
        self.rows += batch.num_rows
        self.bytes += sum(int(np.maximum(value_lengths(batch.column(name)), 0).sum()) for name in ("key", "value"))
        if self.bytes > self.range.bytes > 0:
            raise self._other(f"more than {self.range.bytes} bytes")
        if self.rows > self.range.records:
            raise self._other(f"more than {self.range.records} records")

    def check(self) -> None:
        """Raises RangeNotHeldError unless what was read is what was taken in."""
        if self.rows != self.range.records:
            raise self._other(f"{self.rows} records of {self.range.records}")
        found = digest(self.batches)
        if found != self.range.digest:
            raise self._other(f"other records (digest {found}, not {self.range.digest})")

    def _other(self, words: str) -> RangeNotHeldError:
        beginning = f"; the first offset that it holds is {self.low}" if self.low > self.range.from_offset else ""
        return RangeNotHeldError(f"{self.range.label}: Kafka holds {words}{beginning}")


# ---- one reader ------------------------------------------------------------------------------------------------------


class RangeReader:
    """A consumer outside every group, and a client for questions. Not for two threads at once; after an error of
    :meth:`read` it may only be closed."""

    def __init__(self, access: KafkaAccess, clock: Clock | None = None) -> None:
        """Raises SettingsError for options that librdkafka refuses. No I/O yet."""
        self._access = access
        self._clock = clock or SystemClock()
        self._client_errors = ClientErrors(_log)
        memory_bytes = int(access.prefetch_bytes / PREFETCH_SHARE)
        options = consumer_options(
            access.options, group=access.group, memory_bytes=memory_bytes, client_id="forebay-task"
        )
        options["fetch.wait.max.ms"] = "10"  # the end of a partition is an answer here: nothing is waited for
        try:
            self._consumer = Consumer({**options, "error_cb": self._client_errors}, logger=self._client_errors)
        except KafkaException as error:
            raise SettingsError(f"kafka: {error.args[0].str()}") from None
        self._admin = KafkaAdmin(access.options, timeout_seconds=access.timeout_seconds, client_id="forebay-task-admin")

    @property
    def _address(self) -> str:
        return self._access.options.get("bootstrap.servers", "")

    def close(self) -> None:
        self._consumer.close()
        self._admin.close()

    def read(self, wanted: Sequence[Wanted], headers: bool) -> list[RangeRows]:
        """As :func:`read_ranges`."""
        held = [item for item in wanted if item.range.records]  # without records there is nothing to ask for
        readings: dict[TopicPartition, RangeReading] = {}
        if held:
            check_topics(held, self._admin.topic_ids({item.range.topic for item in held}))
            watermarks = self._watermarks(held)
            readings = {item.range.tp: RangeReading.begin(item.range, *watermarks[item.range.tp]) for item in held}
            try:
                self._fetch(readings, headers)
            except KafkaException as error:
                raise self._client_errors.unreachable(f"Kafka at {self._address}: {error.args[0].str()}") from None
        for reading in readings.values():
            reading.check()
        return [
            RangeRows(item.range.tp, readings[item.range.tp].batches if item.range.tp in readings else [])
            for item in wanted
        ]

    def _watermarks(self, held: Sequence[Wanted]) -> dict[TopicPartition, tuple[int, int]]:
        try:
            return self._admin.watermarks([item.range.tp for item in held])
        except UnknownTopicError as error:
            raise RangeNotHeldError(str(error)) from None

    def _fetch(self, readings: Mapping[TopicPartition, RangeReading], headers: bool) -> None:
        """Reads each range to its end; all partitions at once."""
        self._consumer.assign([_wire(tp, reading.position) for tp, reading in readings.items()])
        paused: list[WirePartition] = []
        deadline = self._clock.monotonic() + self._access.timeout_seconds
        while waiting := {tp: reading for tp, reading in readings.items() if not reading.done}:
            messages = self._consumer.consume(MESSAGES_MAX, _POLL_SECONDS)
            if self._take(messages, waiting, headers):
                deadline = self._clock.monotonic() + self._access.timeout_seconds
                self._client_errors.forget()
            elif self._clock.monotonic() > deadline:
                ranges = ", ".join(reading.range.label for reading in waiting.values())
                raise self._client_errors.unreachable(
                    f"Kafka at {self._address} gave nothing of {ranges} for {self._access.timeout_seconds:g} s"
                )
            over = [_wire(tp) for tp, reading in waiting.items() if reading.done]
            if over and len(over) < len(waiting):
                self._consumer.pause(over)
                paused += over
        if paused:
            self._consumer.resume(paused)  # librdkafka would keep the pause over to the partition's next assignment
        self._consumer.unassign()

    def _take(self, messages: Sequence[Message], waiting: Mapping[TopicPartition, RangeReading], headers: bool) -> bool:
        """Whether any range came further."""
        records: dict[TopicPartition, list[Message]] = {}
        progress = False
        for message in messages:
            reading = waiting.get(TopicPartition(message.topic() or "", message.partition() or 0))
            error = message.error()
            if error is not None:
                progress = self._take_event(error, message, reading) or progress
            elif reading is not None and not reading.done:
                offset = message.offset() or 0
                if offset < reading.position:
                    continue
                if offset < reading.range.until_offset:
                    records.setdefault(reading.range.tp, []).append(message)
                reading.position = offset + 1
                progress = True
        for tp, own in records.items():
            waiting[tp].append(record_batch(own, headers))
        return progress

    def _take_event(self, error: KafkaError, message: Message, reading: RangeReading | None) -> bool:
        code = error.code()
        if reading is None or reading.done:
            self._client_errors(error)
            return False
        if code == KafkaError._PARTITION_EOF:
            end = message.offset() or 0
            if end < reading.range.until_offset:
                raise RangeNotHeldError(f"{reading.range.label}: Kafka's log ends at offset {end}")
            reading.position = end
            return True
        if code in FAULTS:
            raise RangeNotHeldError(f"{reading.range.label}: Kafka says: {error.str()}")
        self._client_errors(error)
        return False


kept_readers: Kept[RangeReader] = Kept(IDLE_READERS_MAX, IDLE_READERS_SECONDS)


def _wire(tp: TopicPartition, offset: int | None = None) -> WirePartition:
    return WirePartition(tp.topic, tp.partition) if offset is None else WirePartition(tp.topic, tp.partition, offset)
