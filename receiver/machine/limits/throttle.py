"""Rate limits: token buckets of records and bytes, for the receiver and for each partition. Pure.

A poll is counted as a whole, so it may overdraw a bucket. The bucket then waits until its level is positive again. So the
average rate holds for polls of any size. Without a limit no bucket exists.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from forebay.messages import Rates
from forebay.model.values import TopicPartition
from forebay.settings.schema import ReceiverSettings

#: capacity of a bucket in seconds of its rate; it starts full
BURST_SECONDS = 1.0
#: a partition over its rate stays paused until its bucket holds this many seconds of its rate. A pause makes the client drop
#: what it has fetched ahead, so pauses must be few.
RESUME_SECONDS = 0.25
#: a poll waits until the bucket holds this many seconds of its rate, so that polls are few and large
GATHER_SECONDS = 0.05
#: a poll that would have to wait longer than this is made with every partition paused, because the group requires polls
POLLS_APART_SECONDS = 0.5
#: minimum of a rate that the driver sets, in records/s: 0 would mean unlimited
LEAST_RATE = 1.0
#: assumed size of a record before the first poll
USUAL_RECORD_BYTES = 1024.0


@dataclass(slots=True)
class Bucket:
    """A token bucket. ``rate``: units per second that are added. ``level``: units at the time ``at``, below 0 if overdrawn."""

    rate: float
    level: float
    at: float

    @classmethod
    def full(cls, rate: float, now: float) -> Bucket:
        """Return a full bucket."""
        bucket = cls(rate, 0.0, now)
        bucket.level = bucket.burst
        return bucket

    @property
    def burst(self) -> float:
        """The capacity in units."""
        return max(1.0, self.rate * BURST_SECONDS)

    def refill(self, now: float) -> float:
        """Add the units of the time since the last call, and return the level."""
        self.level = min(self.burst, self.level + self.rate * (now - self.at))
        self.at = now
        return self.level

    def change(self, rate: float, now: float) -> None:
        """Change the rate, and scale the level by the same factor: a full bucket stays full."""
        self.level = self.refill(now) * rate / self.rate
        self.rate = rate

    def seconds_until(self, worth_seconds: float) -> float:
        """Return the time from the last refill until the level is ``worth_seconds`` of the rate, at least one unit."""
        wanted = min(self.burst, max(1.0, self.rate * worth_seconds))
        return max(0.0, (wanted - self.level) / self.rate)


@dataclass(slots=True)
class Limit:
    """Limits of records and bytes for one partition or for the receiver; None for no limit."""

    records: Bucket | None = None
    bytes: Bucket | None = None
    over: bool = False  # paused, until there is room to resume

    def hold_to(self, records: float, size: float, now: float) -> None:
        """Set the rates in records/s and bytes/s; 0 means unlimited."""
        self.records = _held(self.records, records, now)
        self.bytes = _held(self.bytes, size, now)

    @property
    def buckets(self) -> list[Bucket]:
        return [bucket for bucket in (self.records, self.bytes) if bucket is not None]

    def take(self, records: int, size: int, now: float) -> None:
        """Take ``records`` of ``size`` bytes out of the buckets."""
        for bucket, amount in ((self.records, records), (self.bytes, size)):
            if bucket is not None:
                bucket.level = bucket.refill(now) - amount

    def records_left(self, record_bytes: float, now: float) -> float:
        """Return how many records of ``record_bytes`` may be taken; infinite without a limit."""
        left = math.inf
        if self.records is not None:
            left = self.records.refill(now)
        if self.bytes is not None:
            left = min(left, self.bytes.refill(now) / record_bytes)
        return left

    def seconds_until(self, worth_seconds: float, now: float) -> float:
        longest = 0.0
        for bucket in self.buckets:
            bucket.refill(now)
            longest = max(longest, bucket.seconds_until(worth_seconds))
        return longest

    def is_over(self, now: float) -> bool:
        """Return whether the partition pauses: from an empty bucket until it holds ``RESUME_SECONDS`` of its rate."""
        if self.over:
            self.over = self.seconds_until(RESUME_SECONDS, now) > 0.0
        else:
            self.over = any(bucket.refill(now) <= 0.0 for bucket in self.buckets)
        return self.over


def _held(bucket: Bucket | None, rate: float, now: float) -> Bucket | None:
    if not rate:
        return None
    if bucket is None:
        return Bucket.full(rate, now)
    if bucket.rate != rate:
        bucket.change(rate, now)
    return bucket


@dataclass(slots=True)
class Throttle:
    """The limits of one receiver. ``settings``: upper bounds, which the rates that the driver sets cannot raise."""

    settings: ReceiverSettings
    learned: Rates | None = None
    _all: Limit = field(default_factory=Limit)
    _of: dict[TopicPartition, Limit] = field(default_factory=dict)
    _shares: Mapping[TopicPartition, float] = field(default_factory=dict)
    _record_bytes: float = 0.0
    limited: bool = False  # whether there is any limit at all

    def begin(self, now: float) -> None:
        """Set the limits that hold until the driver sets rates."""
        self.learn(None, now)

    def learn(self, rates: Rates | None, now: float) -> None:
        """Set the rates that the driver learned; None if it sends none."""
        self.learned = rates
        self._shares = (
            {TopicPartition(p.topic, p.partition): p.records_per_second for p in rates.partitions} if rates else {}
        )
        self._all.hold_to(self.rate, self.settings.max_rate_bytes, now)
        for tp, limit in self._of.items():
            limit.hold_to(self.rate_of(tp), self.settings.max_rate_per_partition_bytes, now)
        settings = self.settings
        self.limited = bool(
            self._all.buckets
            or self._shares
            or settings.max_rate_per_partition
            or settings.max_rate_per_partition_bytes
        )

    @property
    def rate(self) -> float:
        """The receiver's limit in records/s; 0 means unlimited."""
        learned = self.learned
        given = (
            max(learned.records_per_second, LEAST_RATE) if learned is not None else float(self.settings.initial_rate)
        )
        return _lower(given, self.settings.max_rate)

    def rate_of(self, tp: TopicPartition) -> float:
        """Return the partition's limit in records/s; 0 means unlimited."""
        share = self._shares.get(tp)
        share = max(share, LEAST_RATE, self.settings.min_rate_per_partition) if share is not None else 0.0
        return _lower(share, self.settings.max_rate_per_partition)

    def forget(self, tp: TopicPartition) -> None:
        self._of.pop(tp, None)

    def took(self, tp: TopicPartition, records: int, size: int, now: float) -> None:
        """Count ``records`` of ``size`` bytes that a poll returned."""
        if not self.limited or not records:
            return
        each = size / records
        self._record_bytes = each if not self._record_bytes else 0.9 * self._record_bytes + 0.1 * each
        self._all.take(records, size, now)
        self._limit(tp, now).take(records, size, now)

    def over(self, partitions: Iterable[TopicPartition], now: float) -> frozenset[TopicPartition]:
        """Return the partitions to pause because they are over their rate."""
        if not self.limited:
            return frozenset()
        return frozenset(tp for tp in partitions if self._limit(tp, now).is_over(now))

    def all_over(self, now: float) -> bool:
        """Return whether all partitions must pause, because the next poll has to wait longer than ``POLLS_APART_SECONDS``."""
        if not self.limited:
            return False
        wait_seconds = self.seconds_until_poll(now)
        self._all.over = wait_seconds > (0.0 if self._all.over else POLLS_APART_SECONDS)
        return self._all.over

    def seconds_until_poll(self, now: float) -> float:
        """Return how long the next poll has to wait; 0 for not at all."""
        return self._all.seconds_until(GATHER_SECONDS, now) if self.limited else 0.0

    def records_max(self, partitions: Iterable[TopicPartition], now: float) -> float:
        """Return how many records a poll may return; at least 1, infinite without a limit. ``partitions``: those not paused."""
        if not self.limited:
            return math.inf
        record_bytes = self._record_bytes or USUAL_RECORD_BYTES
        of_each = [self._limit(tp, now).records_left(record_bytes, now) for tp in partitions]
        left = self._all.records_left(record_bytes, now)
        return max(1.0, min(left, sum(of_each)) if of_each else left)

    def _limit(self, tp: TopicPartition, now: float) -> Limit:
        limit = self._of.get(tp)
        if limit is None:
            limit = self._of[tp] = Limit()
            limit.hold_to(self.rate_of(tp), self.settings.max_rate_per_partition_bytes, now)
        return limit


def _lower(first: float, second: float) -> float:
    """Return the lower of two rates; 0 means unlimited."""
    return min(first, second) if first and second else float(first or second)
