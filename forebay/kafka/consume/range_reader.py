"""Reads offsets ``[from, until)`` of one partition exactly, for callers without a journal to compare with.

Consumers join no group and commit nothing. A consumer is kept for the next range that begins at its position, so that records
fetched beyond a range serve the next one. It never seeks: records of a later offset that it has already fetched would look like
a gap. After an error it is closed, and the records that it had fetched are dropped. The admin client for topic ids is kept
separately, since a range that begins elsewhere can use it too, and a new client is slow to answer.
"""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.client.denials import denied_kind, missing_right
from forebay.kafka.client.idle_clients import IdleClients
from forebay.kafka.client.log_cuts import LogPoint
from forebay.kafka.consume.fetching import opened
from forebay.kafka.consume.messages import FAULTS
from forebay.kafka.consume.spans import OffsetRange
from forebay.kafka.native.received import Event, Received, Records
from forebay.kafka.options.access import KafkaAccess
from forebay.kafka.options.librdkafka import PREFETCH_SHARE, consumer_options
from forebay.kafka.options.rights import reader_rights
from forebay.model.arrow_columns import number_view, one_batch
from forebay.model.errors import (
    MissingRightError,
    OffsetGapError,
    OutOfRangeError,
    OvershotError,
    RangeNotHeldError,
    ShortReadError,
    UnknownTopicError,
    UnreachableError,
)
from forebay.model.payload import block_rows
from forebay.model.records import RangeRows, to_dataframe
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock, SystemClock

_log = logging.getLogger("forebay.kafka")

#: maximum messages of one poll, and so of one record batch
MESSAGES_MAX = 20_000
#: timeout of one poll, after which limits are checked
_POLL_SECONDS = 0.02
#: how often the client reports how far it has fetched, unless the options set it
_STATISTICS_MS = 1_000


class Reading(msgspec.Struct, frozen=True):
    """How ranges are read. Can be pickled.

    ``headers``: whether rows have a column of headers.
    ``allow_offset_gaps``: whether offsets may have no record, as in compacted and transactional topics; if not, that is an error.
    ``range_seconds_max``: maximum time to read a range (None: no limit; ``KafkaAccess.timeout_seconds`` limits the time without
    data in any case).
    ``keep``: whether consumers are kept for the next range: at most ``kept_max`` in a process, each with up to
    ``KafkaAccess.prefetch_bytes``, for ``idle_seconds_max``. The same bounds hold for admin clients.
    """

    headers: bool = False
    allow_offset_gaps: bool = False
    range_seconds_max: float | None = None
    keep: bool = True
    kept_max: int = 4
    idle_seconds_max: float = 300.0


def read_range(
    access: KafkaAccess, range_: OffsetRange, reading: Reading, *, fresh: bool = False, clock: Clock | None = None
) -> Iterator[pa.RecordBatch]:
    """Return the records of ``range_`` in offset order, as ``DATAFRAME_SCHEMA(reading.headers)``; none for an empty range.

    ``isolation.level`` of ``access.options`` decides which records count. ``fresh``: read with a new consumer, as a retried task
    should. Thread-safe, also after a fork. Broken connections and changes of leaders are tolerated for
    ``access.timeout_seconds``.

    Raises OutOfRangeError, ShortReadError, OffsetGapError, OvershotError, or RangeNotHeldError for a topic that was deleted or
    has another id, and for a log that was cut back since the range was chosen (``range_.leader_epoch``), each with both ends of
    the range; UnreachableError; SettingsError. Rows that were returned before an error are correct.
    """
    if not range_.size:
        return
    # what a consumer fetched before another leader was elected may not be in the new leader's log
    key = (access, range_.tp, range_.topic_id, range_.leader_epoch, reading.headers)
    pools = _pools_of(reading)
    reader = None
    if not fresh and reading.keep:
        reader = pools.readers.take(key, lambda kept: kept.position == range_.from_offset)
    if reader is None:
        reader = PartitionReader(
            access, range_.tp, position=range_.from_offset, headers=reading.headers, clock=clock or SystemClock()
        )
    if reading.keep:
        reader.admin = pools.admins.take(access)
    try:
        yield from reader.read(range_, reading)
    except BaseException:  # also if the caller stops reading early
        reader.close()
        raise
    if not reading.keep:
        reader.close()
        return
    if reader.admin is not None:
        pools.admins.keep(access, reader.admin)
        reader.admin = None
    pools.readers.keep(key, reader)


def forget_consumers() -> None:
    """Close all kept clients of this process."""
    for pools in _pools.values():
        pools.readers.clear()
        pools.admins.clear()


class PartitionReader:
    """A consumer at ``position`` of one partition. Not thread-safe. After an error of :meth:`read` it can only be closed.

    ``admin``: its admin client, created when needed, and closed with the reader.
    """

    def __init__(self, access: KafkaAccess, tp: TopicPartition, *, position: int, headers: bool, clock: Clock) -> None:
        """Raises SettingsError for options that librdkafka refuses. Does not wait for a broker."""
        self.position = position
        self._access = access
        self._tp = tp
        self._clock = clock
        self._client_errors = ClientErrors(_log, options=access.options)
        self._ended = False  # the client reached an end before the range's
        self._end_reported = -1  # the last end that it reached: it reports each end once, to any range
        self._ahead: list[Received] = []  # polled, and beyond the range
        self.admin: KafkaAdmin | None = None
        self._fetched = position  # the client has fetched up to here, possibly without a record
        self._fetched_at = clock.monotonic()
        options = consumer_options(
            access.options,
            group=access.group,
            memory_bytes=int(access.prefetch_bytes / PREFETCH_SHARE),
            client_id="forebay-task",
        )
        options["fetch.wait.max.ms"] = "10"  # the end of a partition is an answer here: nothing is waited for
        options.setdefault("statistics.interval.ms", str(_STATISTICS_MS))
        callbacks = {"error_cb": self._client_errors, "stats_cb": self._on_statistics}
        self._consumer, self._fetcher = opened({**options, **callbacks}, self._client_errors, headers)
        try:
            self._fetcher.assigning([tp], [tp])
            self._consumer.assign([WirePartition(tp.topic, tp.partition, position)])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._fetcher.close()
        self._consumer.close()
        if self.admin is not None:
            self.admin.close()

    def read(self, range_: OffsetRange, reading: Reading) -> Iterator[pa.RecordBatch]:
        """As :func:`read_range`; ``range_`` begins at ``position``."""
        assert range_.from_offset == self.position
        began = self._clock.monotonic()
        if range_.topic_id:
            self._check_topic(range_)
        moved, rows = began, 0
        if self._end_reported >= self.position:
            self._end(self._end_reported, range_, reading)
        while self.position < range_.until_offset:
            before = self.position
            batch = self._batch(range_, reading)
            now = self._clock.monotonic()
            if batch is not None:
                rows += batch.num_rows
                yield batch
            if self.position > before:
                moved = self._clock.monotonic()  # without the time that the caller took for the rows
                self._client_errors.forget()
            # offsets without records, aborted or compacted, are fetched without a message, and count as progress
            silent_seconds = now - max(moved, self._fetched_at)
            if silent_seconds > self._access.timeout_seconds:
                self._check_there(range_)
                message = f"returned no data of {range_} from {before} on for {silent_seconds:.1f} s"
                raise self._unreachable(f"{message}: {why}" if (why := self._ask().leaderless([self._tp])) else message)
            if reading.range_seconds_max is not None and now - began > reading.range_seconds_max:
                raise self._unreachable(f"returned {range_} only up to {self.position} within {now - began:.1f} s")
        if range_.topic_id:
            self._check_topic(range_)  # proves that the records are of this topic
        if range_.records is not None and rows != range_.records:
            raise RangeNotHeldError(f"{range_}: Kafka holds {rows} records instead of {range_.records}")

    def _batch(self, range_: OffsetRange, reading: Reading) -> pa.RecordBatch | None:
        """Return the records of one poll; None if there are none."""
        collecting = gc.isenabled()
        # without native code, each collection would traverse thousands of messages, and no message can be part of a cycle
        gc.disable()
        try:
            records = self._records(self._poll(range_.until_offset - self.position), range_, reading)
            if not records:
                if self._ended:
                    self._check_end(range_)
                return None
            rows = RangeRows(self._tp, [one_batch(records)])
            (batch,) = block_rows(rows, reading.headers)
            return to_dataframe(batch, self._tp.topic, reading.headers)
        finally:
            if collecting:
                gc.enable()

    def _poll(self, wanted: int) -> list[Received]:
        if self._ahead:
            received, self._ahead = self._ahead, []
            return received
        try:
            # at most the range's offsets: records beyond it stay in the client's queue, whose memory is bounded
            return self._fetcher.fetch(min(wanted, MESSAGES_MAX), _POLL_SECONDS)
        except KafkaException as error:
            raise self._unreachable(error.args[0].str()) from None

    def _records(self, received: list[Received], range_: OffsetRange, reading: Reading) -> list[pa.RecordBatch]:
        """Return the records of the range in order. ``position`` moves after the last one, or to the end of the range."""
        records: list[pa.RecordBatch] = []
        for place, item in enumerate(received):
            if isinstance(item, Event):
                self._take_event(item, range_, reading)
                continue
            if (inside := self._inside(item, range_, reading)).num_rows:
                records.append(inside)
            if self._ahead:
                self._ahead += received[place + 1 :]
                break
        return records

    def _inside(self, found: Records, range_: OffsetRange, reading: Reading) -> pa.RecordBatch:
        """Return those of the records that are in the range; keep the others."""
        batch: pa.RecordBatch = found.batch
        offsets = number_view(batch.column(2), np.int64)
        inside = int(np.searchsorted(offsets, range_.until_offset))
        if 0 <= range_.leader_epoch < found.leader_epoch:
            self._check_cut(found, len(offsets) == inside, range_)
        if not reading.allow_offset_gaps:
            before = np.concatenate(([self.position - 1], offsets[: inside - 1])) if inside else offsets[:0]
            gaps = np.flatnonzero(offsets[:inside] != before + 1)
            if len(gaps):
                self.position = int(before[gaps[0]]) + 1
                self._skip_to(int(offsets[gaps[0]]), int(offsets[gaps[0]]), range_, reading)
        if inside:
            self.position = int(offsets[inside - 1]) + 1
        if inside < len(offsets):
            self._skip_to(range_.until_offset, int(offsets[inside]), range_, reading)
            self._ahead = [replace(found, batch=batch.slice(inside))]
        return batch.slice(0, inside)

    def _skip_to(self, position: int, found: int, range_: OffsetRange, reading: Reading) -> None:
        """Move ``position`` over offsets without a record. ``found``: the next offset that Kafka returned."""
        if position > self.position and not reading.allow_offset_gaps:
            message = f"{range_}: from offset {self.position} on the next record is {found}"
            if found >= range_.until_offset:
                raise OvershotError(
                    f"{message}, not inside the range: the offsets between were compacted or are of a transaction; set "
                    "allow_offset_gaps, or end the range just after a record"
                )
            raise OffsetGapError(
                f"{message}: the offsets between were compacted or are of a transaction; set allow_offset_gaps to skip them"
            )
        self.position = position

    def _take_event(self, event: Event, range_: OffsetRange, reading: Reading) -> None:
        error = event.error
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self._end_reported = event.offset
            self._end(self._end_reported, range_, reading)
        elif code in FAULTS and event.tp == self._tp:
            raise self._fault(FAULTS[code], error, range_)
        elif (kind := denied_kind(error)) == "topic":
            message = f"Kafka at {self._address}: reading {range_}: {error.str()}"
            raise missing_right(message, error, reader_rights([self._tp.topic]))
        elif kind is None:  # reading by offsets does not need the group, whatever rights it has
            self._client_errors(error)

    def _end(self, end: int, range_: OffsetRange, reading: Reading) -> None:
        """The client reached the log's end, and has returned all records below it. The end may be outdated: only the leader
        knows the current one."""
        if end < range_.until_offset:
            self._ended = True
        else:
            self._skip_to(range_.until_offset, end, range_, reading)

    def _check_end(self, range_: OffsetRange) -> None:
        """Raise ShortReadError if the leader confirms the end. Without a leader, reading continues up to its limits."""
        try:
            held = self._ask().ends([self._tp])[self._tp]
        except UnknownTopicError as unknown:
            raise RangeNotHeldError(f"{range_}: {unknown}") from None
        except MissingRightError:
            raise
        except UnreachableError as error:
            self._client_errors.add(str(error))
            return
        if held < range_.until_offset:
            raise ShortReadError(f"{range_}: Kafka's log ends at offset {held}{self._of_transactions()}")
        self._ended = False

    def _of_transactions(self) -> str:
        committed = self._access.options.get("isolation.level", "read_committed") == "read_committed"
        return " (records of open transactions are not counted)" if committed else ""

    def _fault(self, kind: str, error: KafkaError, range_: OffsetRange) -> RangeNotHeldError:
        try:
            low, high = self._ask().watermarks([self._tp])[self._tp]
        except UnknownTopicError as unknown:
            return RangeNotHeldError(f"{range_}: {unknown}")
        message = f"{range_}: at offset {self.position} Kafka reports: {error.str()}; it holds offsets {low} to {high}"
        return OutOfRangeError(message) if kind == "out-of-range" else RangeNotHeldError(message)

    def _check_topic(self, range_: OffsetRange) -> None:
        found = self._ask().topic_ids([range_.topic])[range_.topic]
        if found != range_.topic_id:
            there = found or self._tp in self._ask().partitions([range_.topic])
            now = f"now has the id {found}" if found else "no broker returns it now" if there else "was deleted"
            raise RangeNotHeldError(f"{range_}: topic {range_.topic} had the id {range_.topic_id}, and {now}")

    def _check_cut(self, found: Records, ends_inside: bool, range_: OffsetRange) -> None:
        """Raise RangeNotHeldError if the range has records of a newer leader than the one when it was chosen.

        ``ends_inside``: whether the last of the records, whose leader is newer, is in the range.
        """
        point = LogPoint(range_.until_offset, range_.leader_epoch)
        cut = self._ask().cuts({self._tp: point}).get(self._tp)
        if cut is not None or ends_inside:
            where = f" to offset {cut}" if cut is not None else ""
            raise RangeNotHeldError(
                f"{range_}: Kafka's log was cut back{where} after the range was chosen under leader epoch "
                f"{range_.leader_epoch}, and has records of leader epoch {found.leader_epoch} there now"
            )

    def _check_there(self, range_: OffsetRange) -> None:
        """Raise RangeNotHeldError if the partition does not exist, MissingRightError if the authorizer hides it.

        The client reports that only after half a minute.
        """
        try:
            if self._tp not in self._ask().partitions([range_.topic]):
                raise RangeNotHeldError(f"{range_}: Kafka has no partition {self._tp}")
        except MissingRightError:
            raise
        except UnreachableError as error:
            self._client_errors.add(str(error))

    def _ask(self) -> KafkaAdmin:
        if self.admin is None:
            self.admin = KafkaAdmin(
                self._access.options, timeout_seconds=self._access.timeout_seconds, client_id="forebay-task-admin"
            )
        return self.admin

    @property
    def _address(self) -> str:
        return self._access.options.get("bootstrap.servers", "")

    def _unreachable(self, message: str) -> UnreachableError:
        return self._client_errors.unreachable(f"Kafka at {self._address}: {message}")

    def _on_statistics(self, text: str) -> None:
        """Called within a poll."""
        topics = json.loads(text)["topics"]
        place = topics.get(self._tp.topic, {}).get("partitions", {}).get(str(self._tp.partition), {})
        if place.get("next_offset", -1) > self._fetched:
            self._fetched, self._fetched_at = place["next_offset"], self._clock.monotonic()


class _Pools(NamedTuple):
    readers: IdleClients[PartitionReader]
    admins: IdleClients[KafkaAdmin]


#: (kept_max, idle_seconds_max) → the clients kept with these bounds
_pools: dict[tuple[int, float], _Pools] = {}


def _pools_of(reading: Reading) -> _Pools:
    bounds = (reading.kept_max, reading.idle_seconds_max)
    return _pools.setdefault(bounds, _Pools(IdleClients(*bounds), IdleClients(*bounds)))
