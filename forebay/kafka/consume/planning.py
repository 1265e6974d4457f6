"""How much is read, and in how many tasks: decisions on offsets alone, by the rules of Spark's Kafka source and direct streams.

Nothing here asks Kafka: ``begin`` and ``end`` are next offsets of partitions, and a partition that ``begin`` does not have
begins at its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from forebay.kafka.consume.spans import Span
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition

Offsets = Mapping[TopicPartition, int]


def split_ranges(
    ranges: Sequence[Span], min_partitions: int | None = None, max_records: int | None = None
) -> list[Span]:
    """``ranges`` without empty ones, in order, as those that one task each reads.

    ``max_records``: first, none has more offsets than this. ``min_partitions``: then, if there are fewer, large ones are cut
    in proportion to their size so that about as many come out; small ones stay whole. A part knows no ``records``. Raises
    UsageError for a number below 1.
    """
    for name, number in (("min_partitions", min_partitions), ("max_records", max_records)):
        if number is not None and number < 1:
            raise UsageError(f"{name} {number}: allowed are numbers from 1")
    whole = [range_ for range_ in ranges if range_.size]
    if max_records is not None:
        whole = [part for range_ in whole for part in _cut(range_, -(-range_.size // max_records))]
    if min_partitions is None or len(whole) >= min_partitions:
        return whole
    total = sum(range_.size for range_ in whole)
    small = {place for place, range_ in enumerate(whole) if _parts(range_.size, total, min_partitions) == 1}
    large_total = total - sum(whole[place].size for place in small)
    large_parts = max(1, min_partitions - len(small))
    return [
        part
        for place, range_ in enumerate(whole)
        for part in _cut(range_, 1 if place in small else _parts(range_.size, large_total, large_parts))
    ]


def gathered(parts: Iterable[Span], parts_max: int, offsets_max: int) -> list[tuple[Span, ...]]:
    """``parts``, in order, as what one task each reads: neighbours together, at most ``parts_max`` of them with at most
    ``offsets_max`` offsets in all; a larger one stays alone."""
    found: list[tuple[Span, ...]] = []
    size = 0
    for part in parts:
        size += part.size
        if found and len(found[-1]) < parts_max and size <= offsets_max:
            found[-1] += (part,)
        else:
            found.append((part,))
            size = part.size
    return found


def _parts(size: int, total: int, wanted: int) -> int:
    return max(1, math.floor(size * wanted / total + 0.5))  # rounded as Java does


def _cut(range_: Span, parts: int) -> list[Span]:
    """Parts that touch, of nearly the same size; none is empty."""
    if parts <= 1:
        return [range_]
    found: list[Span] = []
    begin, remaining = range_.from_offset, range_.size
    for part in range(parts):
        size = remaining // (parts - part)
        remaining -= size
        if size:
            end = begin + size
            found.append(msgspec.structs.replace(range_, from_offset=begin, until_offset=end, records=None))
            begin = end
    return found


def lags(begin: Offsets, end: Offsets) -> dict[TopicPartition, int]:
    """Offsets between ``begin`` and ``end`` of each partition of ``end``, never below 0."""
    return {tp: max(0, offset - begin.get(tp, offset)) for tp, offset in end.items()}


def share_by_lag(begin: Offsets, end: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Until where to read of each partition of ``end`` so that about ``limit`` offsets are read of all
    (``maxOffsetsPerTrigger``): each gets a part in proportion to its lag, and at least one offset if it has any lag."""
    lag = lags(begin, end)
    total = sum(lag.values())
    if not total:
        return dict(end)
    until: dict[TopicPartition, int] = {}
    for tp, offset in end.items():
        share = limit * lag[tp] / total
        own = math.ceil(share) if share < 1 else math.floor(share)
        until[tp] = min(offset, begin[tp] + own) if lag[tp] else offset
    return until


def is_enough(begin: Offsets, end: Offsets, minimum: int, waited_seconds: float, wait_seconds_max: float) -> bool:
    """Whether a trigger shall read now (``minOffsetsPerTrigger``, ``maxTriggerDelay``): so many offsets wait, or the last one
    that read is that long ago."""
    return waited_seconds >= wait_seconds_max or sum(lags(begin, end).values()) >= minimum


@dataclass(frozen=True, slots=True)
class PartitionRates:
    """``most``: records a second and partition (0: no bound). ``least``: records a batch that a partition may always have; from
    1, or one whose share of a batch is less than a record would wait for ever. Raises UsageError for others."""

    most: float = 0.0
    least: int = 1

    def __post_init__(self) -> None:
        if self.most < 0 or self.least < 1:
            raise UsageError(f"rates {self.most:g} and {self.least}: allowed are most from 0, and least from 1")


def limit_by_rates(
    begin: Offsets, end: Offsets, rates: PartitionRates, learned_rate: float, interval_seconds: float
) -> dict[TopicPartition, int]:
    """Until where a batch of a direct stream reads of each partition of ``end``.

    ``learned_rate``: what backpressure allows of all partitions together, in records a second (0: not known); it is shared by
    lag, and ``rates.most`` bounds each share.
    """
    lag = lags(begin, end)
    total = sum(lag.values())
    if learned_rate > 0 and total:
        allowed = {tp: learned_rate * own / total for tp, own in lag.items()}
        if rates.most > 0:
            allowed = {tp: min(rate, rates.most) for tp, rate in allowed.items()}
    elif rates.most > 0:
        allowed = dict.fromkeys(end, rates.most)
    else:
        return dict(end)
    return {
        tp: min(offset, offset - lag[tp] + max(int(allowed[tp] * interval_seconds), rates.least))
        for tp, offset in end.items()
    }


def spans(begin: Offsets, end: Offsets, topic_ids: Mapping[str, str] | None = None) -> list[Span]:
    """What lies between, in the order of partitions; empty ones too."""
    ids = topic_ids or {}
    return [
        Span(tp.topic, tp.partition, begin.get(tp, offset), offset, ids.get(tp.topic, ""))
        for tp, offset in sorted(end.items())
    ]


def sizes(ranges: Iterable[Span]) -> int:
    """Offsets of all of them."""
    return sum(range_.size for range_ in ranges)
