"""A source of the user's own behind the seam ``receiver.source.Source``. For the polling thread, as the seam says.

There is no consumer group. Which partitions are ours follows from the receiver's id, and what replaces the proof of a
synchronous commit is that id's registration ("A source of the user's own" in docs/ARCHITECTURE.md).
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from forebay.model.columns import Columns, EndOfPartition, PartitionFault, RebalanceListener, Start
from forebay.model.errors import SourceError, UnreachableError
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock
from forebay.settings.schema import Settings
from forebay.sources.custom import END_UNTOLD, CustomSource, ask, called, dealt, make, ordinal_of, partitions_of
from forebay.sources.receiving import UNKNOWN_END, OffsetGone, ReliableSource, RetryLater, UnreliableSource
from receiver.own_records import columns_of, refuse_order, rows_of, source_batch
from receiver.source import CommitPoint

_log = logging.getLogger("forebay.receiver")

#: between two calls of a source that says RetryLater: doubled from the first to the last
RETRY_SECONDS_FIRST, RETRY_SECONDS_LAST = 0.1, 5.0

Polled = Columns | EndOfPartition | PartitionFault


def custom_source_of(settings: Settings, receiver_id: str, clock: Clock) -> ReliableAdapter | UnreliableAdapter:
    """The source of receiver ``receiver_id``. Raises SettingsError for a class that can't be had, UsageError for an id that
    says no ordinal."""
    ordinal = ordinal_of(settings, receiver_id)
    own = make(settings)
    own.ordinal = ordinal
    if isinstance(own, ReliableSource):
        return ReliableAdapter(settings, own, clock)
    return UnreliableAdapter(settings, own, clock)


class _Delay:
    """After RetryLater: when the next call may be made."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at = 0.0
        self._failures = 0

    @property
    def over(self) -> bool:
        return self._clock.monotonic() >= self._at

    def grow(self) -> None:
        delay = min(RETRY_SECONDS_LAST, RETRY_SECONDS_FIRST * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._at = self._clock.monotonic() + delay

    def end(self) -> None:
        self._at, self._failures = 0.0, 0


class _Adapter(ABC):
    """What both kinds share: whose partitions are whose, pauses, waiting for a source that says RetryLater."""

    def __init__(self, settings: Settings, own: CustomSource, clock: Clock) -> None:
        self._settings = settings
        self._own = own
        self._clock = clock
        self._listener: RebalanceListener | None = None
        self._owned: frozenset[TopicPartition] = frozenset()
        self._paused: set[TopicPartition] = set()
        self._deal_at = 0.0
        self._delay = _Delay(clock)
        self._commit_errors: dict[TopicPartition, str] = {}
        self._idle = threading.Event()  # never set: waiting that ends by its time alone
        #: what the user's class waits for, in its words; "" if nothing
        self.last_error = ""

    # ---- the seam ----------------------------------------------------------------------------------------------------

    def subscribe(self, listener: RebalanceListener) -> None:
        self._listener = listener

    def follow(self, topics: Sequence[str]) -> None:
        raise AssertionError("a source of the user's own has no topics to follow")

    def poll(self, max_records: int, timeout_seconds: float) -> list[Polled]:
        """As the seam says. Raises SourceError for what the user's class raises or gives wrong."""
        asked: list[Polled] | None = None
        if self._delay.over:
            try:
                self._deal()
                asked = self._poll(max_records, timeout_seconds)
                self._delay.end()
                self.last_error = self._still_waits()
            except (RetryLater, UnreachableError) as error:
                self._wait_for(error)
        if asked is None:
            self._idle.wait(timeout_seconds)
        return asked or []

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.update(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.difference_update(partitions)

    def commit(self, positions: Mapping[TopicPartition, CommitPoint]) -> None:
        self._commit_errors.update(self._accepted(positions))

    def poll_commit_errors(self) -> dict[TopicPartition, str]:
        errors, self._commit_errors = self._commit_errors, {}
        return errors

    def commit_sync(
        self, positions: Mapping[TopicPartition, CommitPoint], timeout_seconds: float
    ) -> dict[TopicPartition, str]:
        """Refused for what was dealt to another receiver meanwhile, as a member would be that the group has thrown out."""
        own = {tp: point for tp, point in positions.items() if tp in self._owned}
        return {
            **dict.fromkeys(positions.keys() - own.keys(), "it is another receiver's by now"),
            **self._accepted(own),
        }

    def close(self) -> None:
        try:
            self._end()
        except Exception as error:  # the process ends, for a reason of its own
            _log.warning("%s: the end: %s: %s", self._settings.receiver.source, type(error).__name__, error)

    # ---- of each kind ------------------------------------------------------------------------------------------------

    @abstractmethod
    def _ours(self) -> list[TopicPartition]:
        """The partitions of this receiver as of now."""

    @abstractmethod
    def _poll(self, max_records: int, timeout_seconds: float) -> list[Polled] | None:
        """What came; None if the user's class was not asked, so that nothing has waited."""

    @abstractmethod
    def _accepted(self, positions: Mapping[TopicPartition, CommitPoint]) -> dict[TopicPartition, str]:
        """All below is durable, and the journal's. Partition → why the source could not be told."""

    @abstractmethod
    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        """These are another receiver's."""

    @abstractmethod
    def _end(self) -> None: ...

    def _still_waits(self) -> str:
        return ""

    # ---- shared ------------------------------------------------------------------------------------------------------

    def _wait_for(self, error: Exception) -> None:
        self._delay.grow()
        self.last_error = str(error)

    def _call(self, method: str, *arguments: Any) -> Any:
        """Raises RetryLater and, of ``open`` and ``poll``, OffsetGone as they are, SourceError for all else."""
        try:
            return getattr(self._own, method)(*arguments)
        except RetryLater:
            raise
        except Exception as error:
            if isinstance(error, OffsetGone) and method in ("open", "poll"):
                raise
            raise called(self._settings, method, error) from error

    def _refused(self, error: ValueError) -> SourceError:
        return SourceError(f"{self._settings.receiver.source}: poll(): {error}")

    def _deal(self) -> None:
        now = self._clock.monotonic()
        if now < self._deal_at:
            return
        self._deal_at = now + self._settings.kafka.discovery_interval
        try:
            found = frozenset(self._ours())
        except UnreachableError:
            if self._owned:
                return  # what is known goes on; it is asked again
            self._deal_at = now
            raise
        assert self._listener is not None
        gone, come = sorted(self._owned - found), sorted(found - self._owned)
        if gone:
            self._listener.revoked(gone)  # they are ours until this returns (rule 6)
            self._forget(gone)
            self._paused.difference_update(gone)
        self._owned = found
        if come:
            self._listener.assigned(come)


@dataclass(slots=True)
class _Reading:
    """A started partition. ``position``: the next offset that may come."""

    generation: int
    position: int
    delay: _Delay
    opened: bool = False
    waits_for: str = ""


class ReliableAdapter(_Adapter):
    """Implements ``receiver.source.Source`` over a ReliableSource: its offsets are the offsets."""

    def __init__(self, settings: Settings, own: ReliableSource, clock: Clock) -> None:
        super().__init__(settings, own, clock)
        self._own: ReliableSource = own
        self._reading: dict[TopicPartition, _Reading] = {}

    def start(self, starts: Sequence[Start]) -> None:
        """Opened within the next poll, where a source may say RetryLater."""
        for start in starts:
            self._paused.discard(start.tp)
            self._reading[start.tp] = _Reading(start.generation, start.offset, _Delay(self._clock))

    def _ours(self) -> list[TopicPartition]:
        names = [tp.topic for tp in partitions_of(self._settings, self._own)]
        mine = dealt(names, self._own.ordinal, self._settings.receiver.count)
        return [TopicPartition(name, 0) for name in mine]

    def _poll(self, max_records: int, timeout_seconds: float) -> list[Polled] | None:
        faults: list[Polled] = []
        for tp, reading in list(self._reading.items()):
            if not reading.opened and tp not in self._paused and reading.delay.over:
                faults += self._open(tp, reading)
        names = [tp.topic for tp, reading in self._reading.items() if reading.opened and tp not in self._paused]
        if faults or not names:
            return faults or None
        try:
            given = self._call("poll", names, max_records, timeout_seconds)
        except OffsetGone as error:
            return [self._gone(error)]
        return self._taken(given, names, max_records)

    def _open(self, tp: TopicPartition, reading: _Reading) -> list[Polled]:
        try:
            self._call("open", tp.topic, reading.position)
        except OffsetGone as error:
            return [self._gone(error)]
        except RetryLater as error:  # of this partition alone: the others go on
            reading.delay.grow()
            reading.waits_for = f"{tp.topic}: {error}"
            return []
        reading.opened, reading.waits_for = True, ""
        return []

    def _still_waits(self) -> str:
        return next((reading.waits_for for reading in self._reading.values() if reading.waits_for), "")

    def _gone(self, error: OffsetGone) -> PartitionFault:
        tp = TopicPartition(error.partition, 0)
        reading = self._reading.pop(tp, None)
        if reading is None:
            raise SourceError(f"{self._settings.receiver.source}: OffsetGone names {error.partition!r}: it is not open")
        return PartitionFault(tp, reading.generation, "out-of-range", str(error))

    def _taken(self, given: Any, names: Sequence[str], max_records: int) -> list[Polled]:
        try:
            if not isinstance(given, Mapping):
                raise ValueError(f"it gave a {type(given).__name__}, no mapping of a partition's name to its records")
            strange = [name for name in given if name not in names]
            if strange:
                raise ValueError(f"it gave records of {strange[0]!r}, which it was not asked for")
            counts = {name: rows_of(records) for name, records in given.items()}
            if sum(counts.values()) > max_records:
                raise ValueError(f"it gave {sum(counts.values())} records where at most {max_records} were asked for")
            return [self._columns(name, given[name]) for name, count in counts.items() if count]
        except ValueError as error:
            raise self._refused(error) from None

    def _columns(self, name: str, records: Any) -> Columns:
        tp = TopicPartition(name, 0)
        reading = self._reading[tp]
        batch = source_batch(records, self._settings.kafka.headers)
        try:
            refuse_order(batch, reading.position)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        columns = columns_of(tp, reading.generation, batch)
        reading.position = columns.last_offset + 1
        return columns

    def _accepted(self, positions: Mapping[TopicPartition, CommitPoint]) -> dict[TopicPartition, str]:
        if not positions:
            return {}
        try:
            self._call("acknowledge", {tp.topic: point.offset for tp, point in positions.items()})
        except RetryLater as error:
            return dict.fromkeys(positions, f"acknowledge(): {error}")
        return {}

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            self._reading.pop(tp, None)
        self._call("forget", [tp.topic for tp in partitions])

    def _end(self) -> None:
        self._own.close()

    def watermarks(self, tp: TopicPartition, timeout_seconds: float) -> tuple[int, int]:
        low = ask(self._settings, self._own, "first_offset", tp.topic)
        high = ask(self._settings, self._own, "end_offset", tp.topic)
        return max(0, low), END_UNTOLD if high == UNKNOWN_END else high

    def high_watermark(self, tp: TopicPartition) -> int:
        try:
            high: int = ask(self._settings, self._own, "end_offset", tp.topic)
        except UnreachableError:
            return UNKNOWN_END  # shown as unknown; the next poll says what is waited for
        return high

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        return {topic: ask(self._settings, self._own, "identity", topic) for topic in topics}


class UnreliableAdapter(_Adapter):
    """Implements ``receiver.source.Source`` over an UnreliableSource: numbers its records from the claimed position on.

    What was polled is kept until it is accepted, and given out again when the partition is started anew: under another
    claim, or because a poll came while the machine could not take it. So nothing is lost while the process lives, and no
    offset has two records. The batches are the machine's own, so keeping them costs no memory.
    """

    def __init__(self, settings: Settings, own: UnreliableSource, clock: Clock) -> None:
        super().__init__(settings, own, clock)
        self._own: UnreliableSource = own
        self._tp = TopicPartition(own.name or settings.stream, own.ordinal)
        self._generation = 0  # 0: not started
        self._next = 0
        self._kept: deque[Columns] = deque()  # polled and not accepted, in order of offset
        self._again: deque[Columns] = deque()  # of those, what is to be given out again
        self._begun = False

    def start(self, starts: Sequence[Start]) -> None:
        for start in starts:
            self._paused.discard(start.tp)
            self._generation = start.generation
            self._again = deque(columns for columns in self._kept if columns.last_offset >= start.offset)
            self._next = max(start.offset, self._kept[-1].last_offset + 1 if self._kept else 0)

    def _ours(self) -> list[TopicPartition]:
        return [self._tp]

    def _poll(self, max_records: int, timeout_seconds: float) -> list[Polled] | None:
        if not self._generation or self._tp in self._paused:
            return None
        if self._again:
            return [self._tagged(self._again.popleft())]
        if not self._begun:
            self._call("start")
            self._begun = True
        given = self._call("poll", max_records, timeout_seconds)
        try:
            count = rows_of(given)
            if count > max_records:
                raise ValueError(f"it gave {count} records where at most {max_records} were asked for")
            if not count:
                return []
            batch: pa.RecordBatch = source_batch(given, self._settings.kafka.headers, self._next)
        except ValueError as error:
            raise self._refused(error) from None
        columns = columns_of(self._tp, self._generation, batch)
        self._next = columns.last_offset + 1
        self._kept.append(columns)
        return [columns]

    def _tagged(self, columns: Columns) -> Columns:
        return Columns(
            columns.tp, self._generation, columns.first_offset, columns.last_offset, columns.rows, columns.bytes,
            columns.max_timestamp_ms, columns.leader_epoch, columns.batch,
        )  # fmt: skip

    def _accepted(self, positions: Mapping[TopicPartition, CommitPoint]) -> dict[TopicPartition, str]:
        for point in positions.values():
            while self._kept and self._kept[0].last_offset < point.offset:
                self._kept.popleft()
        return {}

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        raise AssertionError("an unreliable source's partition is its receiver's, always")

    def _end(self) -> None:
        self._own.stop()

    def watermarks(self, tp: TopicPartition, timeout_seconds: float) -> tuple[int, int]:
        return 0, END_UNTOLD

    def high_watermark(self, tp: TopicPartition) -> int:
        return UNKNOWN_END

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "")
