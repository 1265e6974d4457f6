"""Reads the offset ranges of a block from Kafka again, when no copy of the block is left.

Kafka must prove that it still holds the same records: the topic's id is that of the range's incarnation, and the number of
records and their digest are the journal's. Both differ if compaction or a deletion has removed records since. No group is
joined, and nothing is committed, listed or created.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.client.denials import denied_kind, missing_right
from forebay.kafka.client.idle_clients import IdleClients
from forebay.kafka.consume.fetching import opened
from forebay.kafka.consume.messages import FAULTS
from forebay.kafka.native.received import Event, Received
from forebay.kafka.options.access import KafkaAccess
from forebay.kafka.options.librdkafka import PREFETCH_SHARE, consumer_options
from forebay.kafka.options.rights import reader_rights
from forebay.model.arrow_columns import number_view, value_lengths
from forebay.model.digest import digest
from forebay.model.errors import RangeNotHeldError, UnknownTopicError
from forebay.model.records import RangeRows
from forebay.model.values import BlockRange, TopicPartition
from forebay.process.clock import Clock, SystemClock

_log = logging.getLogger("forebay.kafka")

#: maximum number of records of one poll
RECORDS_MAX = 10_000
#: maximum idle readers of a process, and how long each is kept; a reader has connections and threads
IDLE_READERS_MAX = 2
IDLE_READERS_SECONDS = 300.0
#: timeout of one poll, after which deadlines are checked
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Wanted:
    """A range, and the id of its topic in the range's incarnation ("" if the brokers had none)."""

    range: BlockRange
    topic_id: str


def read_ranges(access: KafkaAccess, wanted: Sequence[Wanted], headers: bool) -> list[RangeRows]:
    """Return the records of ranges of different partitions (as in one block), in the given order.

    ``headers``: whether the block has headers, which the digest includes. Thread-safe, also after a fork: each process has its
    own clients, and a client has one caller at a time. Raises RangeNotHeldError, which says for the first range that Kafka can't
    return what it holds instead; UnreachableError; SettingsError for options that this host can't use.
    """
    kept = kept_readers.take((access, headers))
    if kept is not None:
        try:
            rows = kept.read(wanted)
        except RangeNotHeldError:
            kept.close()  # the cause may be the used client, so a new one decides
        except BaseException:
            kept.close()
            raise
        else:
            kept_readers.keep((access, headers), kept)
            return rows
    reader = RangeReader(access, headers)
    try:
        rows = reader.read(wanted)
    except BaseException:
        reader.close()
        raise
    kept_readers.keep((access, headers), reader)
    return rows


# ---- what Kafka must prove: decisions without I/O, which the simulation runs too ---------------------------------------


def check_topics(held: Sequence[Wanted], ids: Mapping[str, str]) -> None:
    """Raise RangeNotHeldError unless each topic still has its id. ``ids``: topic → current id; "" for none."""
    for item in held:
        if not item.topic_id:
            raise RangeNotHeldError(
                f"{item.range.label}: the journal has no topic id, so nothing proves that Kafka holds the same records"
            )
    for item in held:
        now = ids[item.range.topic]
        if now != item.topic_id:
            found = f"now has the id {now}" if now else "now does not exist, or the brokers do not return topic ids"
            raise RangeNotHeldError(
                f"{item.range.label}: topic {item.range.topic} had the id {item.topic_id}, and {found}"
            )


@dataclass(slots=True)
class RangeProgress:
    """How far one range is read. ``position``: the next offset. ``low``: the first offset that Kafka held at the beginning."""

    range: BlockRange
    low: int
    position: int
    rows: int = 0
    bytes: int = 0
    batches: list[pa.RecordBatch] = field(default_factory=list)

    @classmethod
    def begin(cls, range_: BlockRange, low: int, high: int) -> RangeProgress:
        """Begin to read. ``low``, ``high``: Kafka's watermarks. Raises RangeNotHeldError."""
        if low >= range_.until_offset or high < range_.until_offset:
            raise RangeNotHeldError(f"{range_.label}: Kafka only holds offsets [{low}, {high})")
        return cls(range_, low, max(low, range_.from_offset))

    @property
    def done(self) -> bool:
        """Whether the range is read to its end."""
        return self.position >= self.range.until_offset

    def take(self, batch: pa.RecordBatch) -> bool:
        """Add those records of ``batch`` that are in the rest of the range. Return whether the position has moved."""
        offsets = number_view(batch.column("offset"), np.int64)
        begin, end = np.searchsorted(offsets, [self.position, self.range.until_offset]).tolist()
        if begin < end:
            self.append(batch.slice(begin, end - begin))
        if begin == len(offsets):
            return False
        self.position = int(offsets[-1]) + 1
        return True

    def append(self, batch: pa.RecordBatch) -> None:
        """Add a batch. Raises RangeNotHeldError as soon as there are more records or bytes than in the range (INV-6)."""
        self.batches.append(batch)
        self.rows += batch.num_rows
        self.bytes += sum(int(np.maximum(value_lengths(batch.column(name)), 0).sum()) for name in ("key", "value"))
        if self.bytes > self.range.bytes > 0:
            raise self._other(f"more than {self.range.bytes} bytes")
        if self.rows > self.range.records:
            raise self._other(f"more than {self.range.records} records")

    def check(self) -> None:
        """Raise RangeNotHeldError unless the records are those that were taken in."""
        if self.rows != self.range.records:
            raise self._other(f"{self.rows} records instead of {self.range.records}")
        found = digest(self.batches)
        if found != self.range.digest:
            raise self._other(f"other records (digest {found}, not {self.range.digest})")

    def _other(self, content: str) -> RangeNotHeldError:
        beginning = f"; the first offset that it holds is {self.low}" if self.low > self.range.from_offset else ""
        return RangeNotHeldError(f"{self.range.label}: Kafka holds {content}{beginning}")


# ---- one reader ------------------------------------------------------------------------------------------------------


class RangeReader:
    """A consumer without a group, and an admin client. Not thread-safe. After an error of :meth:`read` it can only be closed."""

    def __init__(self, access: KafkaAccess, headers: bool, clock: Clock | None = None) -> None:
        """``headers``: whether records have a column of headers. Raises SettingsError for options that librdkafka refuses. No I/O
        yet."""
        self._access = access
        self._clock = clock or SystemClock()
        self._client_errors = ClientErrors(_log, options=access.options)
        memory_bytes = int(access.prefetch_bytes / PREFETCH_SHARE)
        options = consumer_options(
            access.options, group=access.group, memory_bytes=memory_bytes, client_id="forebay-task"
        )
        options["fetch.wait.max.ms"] = "10"  # the end of a partition is an answer: no fetch waits there
        given = {**options, "error_cb": self._client_errors}
        self._consumer, self._fetcher = opened(given, self._client_errors, headers)
        self._admin = KafkaAdmin(access.options, timeout_seconds=access.timeout_seconds, client_id="forebay-task-admin")

    @property
    def _address(self) -> str:
        return self._access.options.get("bootstrap.servers", "")

    def close(self) -> None:
        self._fetcher.close()
        self._consumer.close()
        self._admin.close()

    def read(self, wanted: Sequence[Wanted]) -> list[RangeRows]:
        """As :func:`read_ranges`."""
        held = [item for item in wanted if item.range.records]  # a range without records needs no request
        readings: dict[TopicPartition, RangeProgress] = {}
        if held:
            check_topics(held, self._admin.topic_ids({item.range.topic for item in held}))
            watermarks = self._watermarks(held)
            readings = {item.range.tp: RangeProgress.begin(item.range, *watermarks[item.range.tp]) for item in held}
            try:
                self._fetch(readings)
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

    def _fetch(self, readings: Mapping[TopicPartition, RangeProgress]) -> None:
        """Read all ranges to their ends at the same time."""
        self._fetcher.assigning(readings, readings)
        self._consumer.assign([_wire(tp, reading.position) for tp, reading in readings.items()])
        paused: list[WirePartition] = []
        deadline = self._clock.monotonic() + self._access.timeout_seconds
        while waiting := {tp: reading for tp, reading in readings.items() if not reading.done}:
            received = self._fetcher.fetch(RECORDS_MAX, _POLL_SECONDS)
            if self._take(received, waiting):
                deadline = self._clock.monotonic() + self._access.timeout_seconds
                self._client_errors.forget()
            elif self._clock.monotonic() > deadline:
                ranges = ", ".join(reading.range.label for reading in waiting.values())
                raise self._client_errors.unreachable(
                    f"Kafka at {self._address} returned no data of {ranges} for {self._access.timeout_seconds:g} s"
                )
            over = [_wire(tp) for tp, reading in waiting.items() if reading.done]
            if over and len(over) < len(waiting):
                self._consumer.pause(over)
                paused += over
        if paused:
            self._consumer.resume(paused)  # librdkafka keeps a pause until the partition's next assignment
        self._fetcher.assigning([], [])
        self._consumer.unassign()

    def _take(self, received: Sequence[Received], waiting: Mapping[TopicPartition, RangeProgress]) -> bool:
        """Return whether the position of a range has moved."""
        progress = False
        for item in received:
            reading = waiting.get(item.tp)
            if isinstance(item, Event):
                progress = self._take_event(item, reading) or progress
            elif reading is not None and not reading.done:
                progress = reading.take(item.batch) or progress
        return progress

    def _take_event(self, event: Event, reading: RangeProgress | None) -> bool:
        code = event.error.code()
        kind = denied_kind(event.error)
        if kind == "topic":
            message = f"Kafka at {self._address}: reading {event.tp.topic} again: {event.error.str()}"
            raise missing_right(message, event.error, reader_rights([event.tp.topic]))
        if kind is not None:
            return False  # reading by offsets does not need the group, whatever rights it has
        if reading is None or reading.done:
            self._client_errors(event.error)
            return False
        if code == KafkaError._PARTITION_EOF:
            if event.offset < reading.range.until_offset:
                raise RangeNotHeldError(f"{reading.range.label}: Kafka's log ends at offset {event.offset}")
            reading.position = event.offset
            return True
        if code in FAULTS:
            raise RangeNotHeldError(f"{reading.range.label}: Kafka reports: {event.error.str()}")
        self._client_errors(event.error)
        return False


#: kept by access, and whether records have headers
kept_readers: IdleClients[RangeReader] = IdleClients(IDLE_READERS_MAX, IDLE_READERS_SECONDS)


def _wire(tp: TopicPartition, offset: int | None = None) -> WirePartition:
    return WirePartition(tp.topic, tp.partition) if offset is None else WirePartition(tp.topic, tp.partition, offset)
