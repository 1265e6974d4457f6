"""The stream's rate, shared out to receivers and their partitions by lag: what each may take in. Pure.

:func:`share` divides a number; :class:`RateSharing` applies it twice, over receivers and over the partitions of each, and
says who is to be told anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from driver.decisions.rate import is_significant
from forebay.messages import PartitionRate, Rates
from forebay.model.values import TopicPartition

#: this part of a rate is shared out evenly, whatever the lags: a partition that is read to its end gets on too
EVEN_PART = 0.1
#: between two looks at the lags
SHARING_SECONDS = 1.0

#: receiver → partition that it takes in → its lag in records, None: not known yet
Lags = Mapping[str, Mapping[TopicPartition, int | None]]


@dataclass(frozen=True, slots=True)
class Sharer:
    """``size``: its weight in what is shared evenly. Gets no less than ``least`` and no more than ``most``, which wins."""

    lag: float
    size: int
    least: float
    most: float


def share(rate: float, sharers: Sequence[Sharer]) -> list[float]:
    """What each gets, in order: by lag, but for ``EVEN_PART``; what one may not take is for the others.

    The sum is ``rate``, or that of all ``least`` if they come to more, or that of all ``most`` if they come to less.
    """
    if not sharers:
        return []
    sizes, lags = sum(s.size for s in sharers), sum(s.lag for s in sharers)
    even = EVEN_PART if lags else 1.0
    weights = [even * s.size / sizes + ((1.0 - even) * s.lag / lags if lags else 0.0) for s in sharers]
    bounds = [(min(s.least, s.most), s.most) for s in sharers]
    # each gets level × weight, within its bounds: the sum grows with the level, and its slope changes where one leaves a bound
    turns = [(low / w, w) for (low, _), w in zip(bounds, weights, strict=True)]
    turns += [(high / w, -w) for (_, high), w in zip(bounds, weights, strict=True) if math.isfinite(high)]
    given, slope, level = sum(low for low, _ in bounds), 0.0, 0.0
    for turn, change in sorted(turns):
        if given + slope * (turn - level) >= rate:
            break
        given += slope * (turn - level)
        level, slope = turn, slope + change
    # at the last turn the slope is 0 but for rounding, unless somebody has no bound above
    if given < rate and slope > 1e-9:
        level += (rate - given) / slope
    return [min(max(level * w, low), high) for w, (low, high) in zip(weights, bounds, strict=True)]


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Of each receiver and partition, in records/s; 0: none."""

    max_rate: float = 0.0
    max_rate_per_partition: float = 0.0
    min_rate_per_partition: float = 1.0


def share_out(rate: float, lags: Lags, limits: RateLimits) -> dict[str, Rates]:
    """What each receiver may take in, in all and of each partition. A receiver that has none gets, until it has, what each
    would get if all got the same: it may be given many within a moment."""
    most_each = limits.max_rate or math.inf
    most = limits.max_rate_per_partition or math.inf
    least = limits.min_rate_per_partition
    told = {
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
        told[receiver] = Rates(
            records_per_second=given,
            partitions=tuple(
                PartitionRate(topic=tp.topic, partition=tp.partition, records_per_second=part)
                for tp, part in zip(lags[receiver], share(given, own), strict=True)
            ),
        )
    return told


class RateSharing:
    """``told``: what each receiver was last told. ``rate``: the stream's, 0: none was learned yet, nobody is told anything."""

    def __init__(self, limits: RateLimits, rate: float = 0.0) -> None:
        self.rate = rate
        self.told: dict[str, Rates] = {}
        self._limits = limits
        self._shares: dict[str, Rates] = {}
        self._due = -math.inf  # monotonic seconds

    def change(self, rate: float) -> None:
        """Every receiver is told at its next heartbeat, if that makes a difference to it."""
        self.rate = rate
        self._due = -math.inf

    def changed_rates(self, receiver_id: str, lags: Callable[[], Lags], now: float) -> Rates | None:
        """What ``receiver_id`` is to be told now; None: nothing that it does not know. ``lags`` is asked at most each
        ``SHARING_SECONDS``, since it looks at every partition."""
        if not self.rate:
            return None
        if now >= self._due or receiver_id not in self._shares:
            self._shares = share_out(self.rate, lags(), self._limits)
            self._due = now + SHARING_SECONDS
        rates = self._shares.get(receiver_id)
        if rates is None or not differ(self.told.get(receiver_id), rates):
            return None
        self.told[receiver_id] = rates
        return rates

    def forget(self, receiver_id: str) -> None:
        """A new process of it was told nothing yet."""
        self.told.pop(receiver_id, None)


def differ(old: Rates | None, new: Rates) -> bool:
    """Whether a receiver that was told ``old`` would do otherwise by ``new``."""
    if old is None or is_significant(old.records_per_second, new.records_per_second):
        return True
    before = {(p.topic, p.partition): p.records_per_second for p in old.partitions}
    after = {(p.topic, p.partition): p.records_per_second for p in new.partitions}
    return before.keys() != after.keys() or any(is_significant(before[tp], after[tp]) for tp in after)
