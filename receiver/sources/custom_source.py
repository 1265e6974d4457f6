"""A custom source: a user's class behind the protocol ``receiver.sources.source.Source``, for the polling thread.

There is no consumer group. The receiver's id determines its partitions. The registration of that id replaces the proof that a
synchronous commit gives with Kafka ("A source of the user's own" in docs/architecture/ownership.md).
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa

from forebay.model.columns import Columns, EndOfPartition, PartitionFault, RebalanceListener, Start
from forebay.model.errors import SourceError, UnreachableError
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock
from forebay.settings.schema import Settings
from forebay.sources.custom import (
    UNREPORTED_END,
    CustomSource,
    called,
    dealt,
    end_offset,
    first_offset,
    identity,
    make,
    ordinal_of,
    partitions_of,
)
from forebay.sources.receiving import UNKNOWN_END, OffsetGone, ReliableSource, RetryLater, UnreliableSource
from receiver.sources.custom_records import columns_of, refuse_order, rows_of, source_batch
from receiver.sources.source import CommitPoint

_log = logging.getLogger("forebay.receiver")

#: delay before the next call of a source that raised RetryLater: doubled each time, from the first value to the last
RETRY_SECONDS_FIRST, RETRY_SECONDS_LAST = 0.1, 5.0

Polled = Columns | EndOfPartition | PartitionFault
P = ParamSpec("P")
R = TypeVar("R")


def custom_source_of(settings: Settings, receiver_id: str, clock: Clock) -> ReliableAdapter | UnreliableAdapter:
    """Return the custom source of receiver ``receiver_id``.

    Raises SettingsError if the class cannot be loaded, UsageError for an id without an ordinal.
    """
    ordinal = ordinal_of(settings, receiver_id)
    own = make(settings)
    own.ordinal = ordinal
    if isinstance(own, ReliableSource):
        return ReliableAdapter(settings, own, clock)
    return UnreliableAdapter(settings, own, clock)


class _Delay:
    """When the next call may be made after RetryLater."""

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


class _CustomSource(ABC):
    """The base of both kinds: which partitions are this receiver's, pauses, delays after RetryLater."""

    def __init__(self, settings: Settings, own: CustomSource, clock: Clock) -> None:
        self._settings = settings
        self._own = own
        self._clock = clock
        self._listener: RebalanceListener | None = None
        self._owned: frozenset[TopicPartition] = frozenset()
        self._paused: set[TopicPartition] = set()
        self._to_forget: set[TopicPartition] = (
            set()
        )  # the user's class has not forgotten them yet: it raised RetryLater
        self._deal_at = 0.0
        self._delay = _Delay(clock)
        self._commit_errors: dict[TopicPartition, str] = {}
        self._idle = threading.Event()  # never set: a wait on it ends by its timeout
        #: why the user's class raised RetryLater, "" if it does not wait
        self.last_error = ""

    # ---- the protocol ------------------------------------------------------------------------------------------------

    def subscribe(self, listener: RebalanceListener) -> None:
        self._listener = listener

    def follow(self, topics: Sequence[str]) -> None:
        raise AssertionError("a custom source has no topics to follow")

    def poll(self, max_records: int, timeout_seconds: float) -> list[Polled]:
        """As the protocol says. Raises SourceError if the user's class raises, or returns what it must not."""
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
        """Refuse partitions that another receiver has by now, as Kafka refuses a former member of the group."""
        own = {tp: point for tp, point in positions.items() if tp in self._owned}
        return {
            **dict.fromkeys(positions.keys() - own.keys(), "another receiver has it by now"),
            **self._accepted(own),
        }

    def close(self) -> None:
        try:
            self._end()
        except Exception as error:  # the process ends anyway, for another reason
            _log.warning(
                "%s: closing the source failed: %s: %s", self._settings.receiver.source, type(error).__name__, error
            )

    # ---- of each kind ------------------------------------------------------------------------------------------------

    @abstractmethod
    def _ours(self) -> list[TopicPartition]:
        """Return the current partitions of this receiver."""

    @abstractmethod
    def _poll(self, max_records: int, timeout_seconds: float) -> list[Polled] | None:
        """Return the polled records. None: the user's class was not called, so the call took no time."""

    @abstractmethod
    def _accepted(self, positions: Mapping[TopicPartition, CommitPoint]) -> dict[TopicPartition, str]:
        """Acknowledge that all below these positions is durable and in the journal. Return an error for each that failed."""

    @abstractmethod
    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        """Drop the state of partitions that another receiver has by now."""

    @abstractmethod
    def _end(self) -> None: ...

    def _still_waits(self) -> str:
        return ""

    # ---- shared ------------------------------------------------------------------------------------------------------

    def _wait_for(self, error: Exception) -> None:
        self._delay.grow()
        self.last_error = str(error)

    def _call(self, name: str, method: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Call ``method`` of the user's class, which errors call ``name``. Raises RetryLater as it is, OffsetGone of ``open`` and
        ``poll`` as it is, else SourceError."""
        try:
            return method(*arguments, **named)
        except RetryLater:
            raise
        except Exception as error:
            if isinstance(error, OffsetGone) and name in ("open", "poll"):
                raise
            raise called(self._settings, name, error) from error

    def _refused(self, error: ValueError) -> SourceError:
        return SourceError(f"{self._settings.receiver.source}: poll(): {error}")

    def _deal(self) -> None:
        now = self._clock.monotonic()
        self._forget_all()
        if now < self._deal_at:
            return
        self._deal_at = now + self._settings.kafka.discovery_interval
        try:
            found = frozenset(self._ours())
        except UnreachableError:
            if self._owned:
                return  # go on with the known partitions; the next round asks again
            self._deal_at = now
            raise
        assert self._listener is not None
        gone, come = sorted(self._owned - found), sorted(found - self._owned)
        if gone:
            self._listener.revoked(gone)  # they stay this receiver's until this returns (rule 6)
            self._owned = self._owned.difference(gone)
            self._paused.difference_update(gone)
            self._to_forget.update(gone)
        self._owned = found
        try:
            self._forget_all()
        except RetryLater:
            self._owned = found.difference(come)
            self._deal_at = now  # those that came are assigned when all is forgotten: one of them may be among these
            raise
        if come:
            self._listener.assigned(come)

    def _forget_all(self) -> None:
        """Have the user's class forget what this receiver gave away. Raises RetryLater: called again at each poll until then."""
        if self._to_forget:
            self._forget(sorted(self._to_forget))
            self._to_forget.clear()


@dataclass(slots=True)
class _StartedPartition:
    """A started partition. ``position``: the next offset that may come."""

    generation: int
    position: int
    delay: _Delay
    opened: bool = False
    waits_for: str = ""


class ReliableAdapter(_CustomSource):
    """Implements ``receiver.sources.source.Source`` over a ReliableSource, whose offsets are the offsets of the records."""

    def __init__(self, settings: Settings, own: ReliableSource, clock: Clock) -> None:
        super().__init__(settings, own, clock)
        self._own: ReliableSource = own
        self._started: dict[TopicPartition, _StartedPartition] = {}

    def start(self, starts: Sequence[Start]) -> None:
        """Note the positions. The next poll opens the partitions, since the user's class may raise RetryLater there."""
        for start in starts:
            self._paused.discard(start.tp)
            self._started[start.tp] = _StartedPartition(start.generation, start.offset, _Delay(self._clock))

    def _ours(self) -> list[TopicPartition]:
        names = [tp.topic for tp in partitions_of(self._settings, self._own)]
        mine = dealt(names, self._own.ordinal, self._settings.receiver.count)
        return [TopicPartition(name, 0) for name in mine]

    def _poll(self, max_records: int, timeout_seconds: float) -> list[Polled] | None:
        faults: list[Polled] = []
        for tp, started in list(self._started.items()):
            if not started.opened and tp not in self._paused and started.delay.over:
                faults += self._open(tp, started)
        names = [tp.topic for tp, started in self._started.items() if started.opened and tp not in self._paused]
        if faults or not names:
            return faults or None
        try:
            given = self._call("poll", self._own.poll, names, max_records, timeout_seconds)
        except OffsetGone as error:
            return [self._gone(error)]
        return self._taken(given, names, max_records)

    def _open(self, tp: TopicPartition, started: _StartedPartition) -> list[Polled]:
        try:
            self._call("open", self._own.open, tp.topic, started.position)
        except OffsetGone as error:
            return [self._gone(error)]
        except RetryLater as error:  # concerns this partition alone
            started.delay.grow()
            started.waits_for = f"{tp.topic}: {error}"
            return []
        started.opened, started.waits_for = True, ""
        return []

    def _still_waits(self) -> str:
        return next((started.waits_for for started in self._started.values() if started.waits_for), "")

    def _gone(self, error: OffsetGone) -> PartitionFault:
        tp = TopicPartition(error.partition, 0)
        started = self._started.pop(tp, None)
        if started is None:
            raise SourceError(
                f"{self._settings.receiver.source}: OffsetGone names partition {error.partition!r}, which is not open"
            )
        return PartitionFault(tp, started.generation, "out-of-range", str(error))

    def _taken(self, given: Any, names: Sequence[str], max_records: int) -> list[Polled]:
        try:
            if not isinstance(given, Mapping):
                raise ValueError(f"it returned a {type(given).__name__}, not a mapping from partition names to records")
            strange = [name for name in given if name not in names]
            if strange:
                raise ValueError(f"it returned records of {strange[0]!r}, which was not in the call")
            counts = {name: rows_of(records) for name, records in given.items()}
            if sum(counts.values()) > max_records:
                raise ValueError(f"it returned {sum(counts.values())} records; max_records was {max_records}")
            return [self._columns(name, given[name]) for name, count in counts.items() if count]
        except ValueError as error:
            raise self._refused(error) from None

    def _columns(self, name: str, records: Any) -> Columns:
        tp = TopicPartition(name, 0)
        started = self._started[tp]
        batch = source_batch(records, self._settings.kafka.headers)
        try:
            refuse_order(batch, started.position)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        columns = columns_of(tp, started.generation, batch)
        started.position = columns.last_offset + 1
        return columns

    def _accepted(self, positions: Mapping[TopicPartition, CommitPoint]) -> dict[TopicPartition, str]:
        if not positions:
            return {}
        try:
            self._call(
                "acknowledge", self._own.acknowledge, {tp.topic: point.offset for tp, point in positions.items()}
            )
        except RetryLater as error:
            return dict.fromkeys(positions, f"acknowledge(): {error}")
        return {}

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            self._started.pop(tp, None)
        self._call("forget", self._own.forget, [tp.topic for tp in partitions])

    def _end(self) -> None:
        self._own.close()

    def watermarks(self, tp: TopicPartition, timeout_seconds: float) -> tuple[int, int]:
        low = first_offset(self._settings, self._own, tp.topic)
        high = end_offset(self._settings, self._own, tp.topic)
        return max(0, low), UNREPORTED_END if high == UNKNOWN_END else high

    def high_watermark(self, tp: TopicPartition) -> int:
        try:
            return end_offset(self._settings, self._own, tp.topic)
        except UnreachableError:
            return UNKNOWN_END  # the status shows it as unknown; the next poll gives the reason

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        return {topic: identity(self._settings, self._own, topic) for topic in topics}


class UnreliableAdapter(_CustomSource):
    """Implements ``receiver.sources.source.Source`` over an UnreliableSource. It numbers the records from the claimed position.

    Polled records are kept until they are accepted. They are returned again when the partition is started anew: under another
    claim, or because the machine could not take in a poll. So no record is lost while the process lives, and no offset has two
    records. The machine holds the same batches, so keeping them takes no additional memory.
    """

    def __init__(self, settings: Settings, own: UnreliableSource, clock: Clock) -> None:
        super().__init__(settings, own, clock)
        self._own: UnreliableSource = own
        self._tp = TopicPartition(own.name or settings.stream, own.ordinal)
        self._generation = 0  # 0: not started
        self._next = 0
        self._kept: deque[Columns] = deque()  # polled and not accepted, in order of offset
        self._again: deque[Columns] = deque()  # of those, what is to be returned again
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
            self._call("start", self._own.start)
            self._begun = True
        given = self._call("poll", self._own.poll, max_records, timeout_seconds)
        try:
            count = rows_of(given)
            if count > max_records:
                raise ValueError(f"it returned {count} records; max_records was {max_records}")
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
        raise AssertionError("the partition of an unreliable source never moves to another receiver")

    def _end(self) -> None:
        self._own.stop()

    def watermarks(self, tp: TopicPartition, timeout_seconds: float) -> tuple[int, int]:
        return 0, UNREPORTED_END

    def high_watermark(self, tp: TopicPartition) -> int:
        return UNKNOWN_END

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "")
