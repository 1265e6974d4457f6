"""How much a receiver may take in by now: token buckets of records and bytes, for all and for each partition. Pure.

Each poll is counted as a whole. A bucket that is overdrawn is in debt and waits until that is paid back, so the average holds
whatever the size of a poll. Nothing is looked at where no limit is set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from forebay.messages import Rates
from forebay.model.values import TopicPartition
from forebay.settings.schema import ReceiverSettings

#: a bucket holds what comes in so many seconds, and begins full
BURST_SECONDS = 1.0
#: a partition that is over its rate stays paused until so many seconds' worth may be taken: each pause has the client throw
#: away what it fetched ahead
RESUME_SECONDS = 0.25
#: a poll waits until so many seconds' worth may be taken, so that polls stay few and large
GATHER_SECONDS = 0.05
#: a poll that has to wait for longer than this is made all the same, with every partition paused: the group wants polls
POLLS_APART_SECONDS = 0.5
#: a rate that the driver gives is never below this: 0 would mean that there is none
LEAST_RATE = 1.0
#: size of a record that none was seen of yet
USUAL_RECORD_BYTES = 1024.0


@dataclass(slots=True)
class Bucket:
    """``rate``: units per second that come in. ``level`` was right at ``at``; below 0 it is a debt."""

    rate: float
    level: float
    at: float

    @classmethod
    def full(cls, rate: float, now: float) -> Bucket:
        bucket = cls(rate, 0.0, now)
        bucket.level = bucket.burst
        return bucket

    @property
    def burst(self) -> float:
        return max(1.0, self.rate * BURST_SECONDS)

    def refill(self, now: float) -> float:
        """The level now."""
        self.level = min(self.burst, self.level + self.rate * (now - self.at))
        self.at = now
        return self.level

    def change(self, rate: float, now: float) -> None:
        """Another rate: what is there, or owed, is the same in seconds."""
        self.level = self.refill(now) * rate / self.rate
        self.rate = rate

    def seconds_until(self, worth_seconds: float) -> float:
        """From the last refill until so many seconds' worth (at least one unit) may be taken; 0 if they may."""
        wanted = min(self.burst, max(1.0, self.rate * worth_seconds))
        return max(0.0, (wanted - self.level) / self.rate)


@dataclass(slots=True)
class Limit:
    """Records and bytes of one partition, or of all; None where there is no limit."""

    records: Bucket | None = None
    bytes: Bucket | None = None
    over: bool = False  # paused, until there is room to resume

    def hold_to(self, records: float, size: float, now: float) -> None:
        """``records``, ``size``: rates, 0: none."""
        self.records = _held(self.records, records, now)
        self.bytes = _held(self.bytes, size, now)

    @property
    def buckets(self) -> list[Bucket]:
        return [bucket for bucket in (self.records, self.bytes) if bucket is not None]

    def take(self, records: int, size: int, now: float) -> None:
        for bucket, amount in ((self.records, records), (self.bytes, size)):
            if bucket is not None:
                bucket.level = bucket.refill(now) - amount

    def records_left(self, record_bytes: float, now: float) -> float:
        """By what a usual record weighs; infinite without a limit."""
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
        """Whether it waits: from when nothing is left until there is enough to go on with."""
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
    """``settings``: what a person set, which nobody can raise. What the driver learned comes by :meth:`learn`."""

    settings: ReceiverSettings
    learned: Rates | None = None
    _all: Limit = field(default_factory=Limit)
    _of: dict[TopicPartition, Limit] = field(default_factory=dict)
    _shares: Mapping[TopicPartition, float] = field(default_factory=dict)
    _record_bytes: float = 0.0
    limited: bool = False  # whether there is any limit at all

    def begin(self, now: float) -> None:
        """Sets the limits that hold until the driver says more."""
        self.learn(None, now)

    def learn(self, rates: Rates | None, now: float) -> None:
        """What the driver allows from now on; None: it has not learned anything."""
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
        """Records/s that the receiver is held to, 0: none."""
        learned = self.learned
        given = (
            max(learned.records_per_second, LEAST_RATE) if learned is not None else float(self.settings.initial_rate)
        )
        return _lower(given, self.settings.max_rate)

    def rate_of(self, tp: TopicPartition) -> float:
        """Records/s that the partition is held to, 0: none."""
        share = self._shares.get(tp)
        share = max(share, LEAST_RATE, self.settings.min_rate_per_partition) if share is not None else 0.0
        return _lower(share, self.settings.max_rate_per_partition)

    def forget(self, tp: TopicPartition) -> None:
        self._of.pop(tp, None)

    def took(self, tp: TopicPartition, records: int, size: int, now: float) -> None:
        """``records`` of ``size`` bytes came out of a poll."""
        if not self.limited or not records:
            return
        each = size / records
        self._record_bytes = each if not self._record_bytes else 0.9 * self._record_bytes + 0.1 * each
        self._all.take(records, size, now)
        self._limit(tp, now).take(records, size, now)

    def over(self, partitions: Iterable[TopicPartition], now: float) -> frozenset[TopicPartition]:
        """Those that are over their rate: to be paused, while others go on."""
        if not self.limited:
            return frozenset()
        return frozenset(tp for tp in partitions if self._limit(tp, now).is_over(now))

    def all_over(self, now: float) -> bool:
        """Whether every partition is to be paused, since the next poll has to wait for long."""
        if not self.limited:
            return False
        wait_seconds = self.seconds_until_poll(now)
        self._all.over = wait_seconds > (0.0 if self._all.over else POLLS_APART_SECONDS)
        return self._all.over

    def seconds_until_poll(self, now: float) -> float:
        """How long the next poll waits, 0: it may come."""
        return self._all.seconds_until(GATHER_SECONDS, now) if self.limited else 0.0

    def records_max(self, partitions: Iterable[TopicPartition], now: float) -> float:
        """What a poll of ``partitions``, those not paused, may return by now; at least 1, infinite without a limit."""
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
    """The lower of two rates, of which 0 is none."""
    return min(first, second) if first and second else float(first or second)
