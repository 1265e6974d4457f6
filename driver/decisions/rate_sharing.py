"""Distribution of the stream's rate to receivers and their partitions, by lag. Decision logic, without I/O.

:func:`share` divides a rate. :class:`RateSharing` applies it twice, to the receivers and to the partitions of each, and decides
which receivers get a new rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from driver.decisions.rate import is_significant
from forebay.messages import PartitionRate, Rates
from forebay.model.values import TopicPartition

#: fraction of a rate that is distributed evenly, regardless of lag, so that a partition without lag gets a share too
EVEN_PART = 0.1
#: minimum time between two reads of the lags
SHARING_SECONDS = 1.0

#: receiver → partition that it takes in → its lag in records; None: unknown yet
Lags = Mapping[str, Mapping[TopicPartition, int | None]]


@dataclass(frozen=True, slots=True)
class Sharer:
    """A receiver or partition that gets a share. ``size``: its weight in the even part. Its share is at least ``least`` and at
    most ``most``; if ``least`` is higher, ``most`` applies."""

    lag: float
    size: int
    least: float
    most: float


def share(rate: float, sharers: Sequence[Sharer]) -> list[float]:
    """Return the share of each of ``sharers``, in order: proportional to lag, except ``EVEN_PART``. If a share would exceed
    ``most``, the excess goes to the others.

    The shares add up to ``rate``; to the sum of all ``least`` if that is more, or to the sum of all ``most`` if that is less.
    """
    if not sharers:
        return []
    sizes, lags = sum(s.size for s in sharers), sum(s.lag for s in sharers)
    even = EVEN_PART if lags else 1.0
    weights = [even * s.size / sizes + ((1.0 - even) * s.lag / lags if lags else 0.0) for s in sharers]
    bounds = [(min(s.least, s.most), s.most) for s in sharers]
    # each gets level × weight, within its bounds: the sum grows with the level; its slope changes where a share leaves a bound
    turns = [(low / w, w) for (low, _), w in zip(bounds, weights, strict=True)]
    turns += [(high / w, -w) for (_, high), w in zip(bounds, weights, strict=True) if math.isfinite(high)]
    given, slope, level = sum(low for low, _ in bounds), 0.0, 0.0
    for turn, change in sorted(turns):
        if given + slope * (turn - level) >= rate:
            break
        given += slope * (turn - level)
        level, slope = turn, slope + change
    # at the last turn the slope is 0 except for rounding, unless a sharer has no upper bound
    if given < rate and slope > 1e-9:
        level += (rate - given) / slope
    return [min(max(level * w, low), high) for w, (low, high) in zip(weights, bounds, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """Limits of each receiver and partition, in records/s; 0: none."""

    max_rate: float = 0.0
    max_rate_per_partition: float = 0.0
    min_rate_per_partition: float = 1.0


def share_out(rate: float, lags: Lags, limits: RateLimits) -> dict[str, Rates]:
    """Return what each receiver may take in, in total and of each partition. A receiver without partitions gets an equal
    share until it has some, because it may soon get many."""
    most_each = limits.max_rate or math.inf
    most = limits.max_rate_per_partition or math.inf
    least = limits.min_rate_per_partition
    rates_by_receiver = {
        receiver: Rates(records_per_second=min(most_each, max(least, rate / len(lags))))
        for receiver, own in lags.items()
        if not own
    }
    known = [lag for own in lags.values() for lag in own.values() if lag is not None]
    usual = sum(known) / len(known) if known else 0.0
    receivers = {
        receiver: [Sharer(usual if lag is None else lag, 1, least, most) for lag in own.values()]
        for receiver, own in lags.items()
        if own
    }
    shares = share(
        rate,
        [
            Sharer(sum(s.lag for s in own), len(own), least * len(own), min(most * len(own), most_each))
            for own in receivers.values()
        ],
    )
    for (receiver, own), given in zip(receivers.items(), shares, strict=True):
        rates_by_receiver[receiver] = Rates(
            records_per_second=given,
            partitions=tuple(
                PartitionRate(topic=tp.topic, partition=tp.partition, records_per_second=part)
                for tp, part in zip(lags[receiver], share(given, own), strict=True)
            ),
        )
    return rates_by_receiver


class RateSharing:
    """Decides which receivers get a new rate.

    ``sent``: the rates that each receiver got last. ``rate``: the stream's rate; 0 means that none is learned yet, and receivers
    get none.
    """

    def __init__(self, limits: RateLimits, rate: float = 0.0) -> None:
        self.rate = rate
        self.sent: dict[str, Rates] = {}
        self._limits = limits
        self._shares: dict[str, Rates] = {}
        self._due = -math.inf  # monotonic seconds

    def change(self, rate: float) -> None:
        """Set the stream's rate. Each receiver gets its new rates with its next heartbeat, if they differ significantly."""
        self.rate = rate
        self._due = -math.inf

    def changed_rates(self, receiver_id: str, lags: Callable[[], Lags], now: float) -> Rates | None:
        """Return the rates to send to ``receiver_id`` now; None if they have not changed. ``lags`` reads every partition, so
        it is called at most once per ``SHARING_SECONDS``."""
        if not self.rate:
            return None
        if now >= self._due or receiver_id not in self._shares:
            self._shares = share_out(self.rate, lags(), self._limits)
            self._due = now + SHARING_SECONDS
        rates = self._shares.get(receiver_id)
        if rates is None or not differ(self.sent.get(receiver_id), rates):
            return None
        self.sent[receiver_id] = rates
        return rates

    def forget(self, receiver_id: str) -> None:
        """Forget the rates that were sent to the receiver: its new process has none yet."""
        self.sent.pop(receiver_id, None)


def differ(old: Rates | None, new: Rates) -> bool:
    """Whether ``new`` differs significantly from ``old``, the rates that a receiver got last."""
    if old is None or is_significant(old.records_per_second, new.records_per_second):
        return True
    before = {(p.topic, p.partition): p.records_per_second for p in old.partitions}
    after = {(p.topic, p.partition): p.records_per_second for p in new.partitions}
    return before.keys() != after.keys() or any(is_significant(before[tp], after[tp]) for tp in after)
