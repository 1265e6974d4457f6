"""Decides how many offsets are read, and in how many tasks, by the rules of Spark's Kafka source and direct streams.

No function sends a request to Kafka. ``begin`` and ``end`` are next offsets of partitions; a partition that is missing in
``begin`` begins at its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from forebay.kafka.consume.spans import OffsetRange, part_of
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition

Offsets = Mapping[TopicPartition, int]


#: maximum number of parts into which the ranges of one batch are cut
PARTS_MAX = 1_000_000


def split_ranges(
    ranges: Sequence[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Return the ranges that one task each reads: ``ranges`` without empty ones, in order, some of them cut.

    ``max_records``: first, ranges with more offsets are cut. ``min_partitions``: then, if there are fewer ranges, large ones are
    cut in proportion to their size into about this number; small ones stay whole. A part has no ``records``. Raises UsageError
    for a number below 1, and for more than ``PARTS_MAX`` parts, as of an end far beyond the log's.
    """
    for name, number in (("min_partitions", min_partitions), ("max_records", max_records)):
        if number is not None and number < 1:
            raise UsageError(f"{name} {number}: allowed are numbers from 1")
    whole = [range_ for range_ in ranges if range_.size]
    if max_records is not None:
        _check_parts(sum(-(-range_.size // max_records) for range_ in whole))
        whole = [part for range_ in whole for part in _cut(range_, -(-range_.size // max_records))]
    if min_partitions is None or len(whole) >= min_partitions:
        return whole
    total = sum(range_.size for range_ in whole)
    _check_parts(min(min_partitions, total))
    small = {place for place, range_ in enumerate(whole) if _parts(range_.size, total, min_partitions) == 1}
    large_total = total - sum(whole[place].size for place in small)
    large_parts = max(1, min_partitions - len(small))
    return [
        part
        for place, range_ in enumerate(whole)
        for part in _cut(range_, 1 if place in small else _parts(range_.size, large_total, large_parts))
    ]


def gathered(parts: Iterable[OffsetRange], parts_max: int, offsets_max: int) -> list[tuple[OffsetRange, ...]]:
    """Return what one task each reads: neighbours of ``parts`` together, in order.

    A task has at most ``parts_max`` parts with at most ``offsets_max`` offsets in total; a larger part has a task of its own.
    """
    found: list[tuple[OffsetRange, ...]] = []
    size = 0
    for part in parts:
        size += part.size
        if found and len(found[-1]) < parts_max and size <= offsets_max:
            found[-1] += (part,)
        else:
            found.append((part,))
            size = part.size
    return found


def _check_parts(parts: int) -> None:
    if parts > PARTS_MAX:
        raise UsageError(
            f"the ranges would be read by {parts} tasks; allowed are {PARTS_MAX}: allow more records for each task"
        )


def _parts(size: int, total: int, wanted: int) -> int:
    return max(1, math.floor(size * wanted / total + 0.5))  # rounded as in Java


def _cut(range_: OffsetRange, parts: int) -> list[OffsetRange]:
    """Cut into adjacent parts of nearly the same size; none is empty."""
    parts = min(parts, range_.size)
    if parts <= 1:
        return [range_]
    found: list[OffsetRange] = []
    begin, remaining = range_.from_offset, range_.size
    for part in range(parts):
        size = remaining // (parts - part)
        remaining -= size
        end = begin + size
        found.append(part_of(range_, begin, end))
        begin = end
    return found


def lags(begin: Offsets, end: Offsets) -> dict[TopicPartition, int]:
    """Return the offsets from ``begin`` to ``end`` of each partition of ``end``, never below 0."""
    return {tp: max(0, offset - begin.get(tp, offset)) for tp, offset in end.items()}


def share_by_lag(begin: Offsets, end: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Return the offset to which each partition of ``end`` is read if about ``limit`` offsets are read in total
    (``maxOffsetsPerTrigger``): each has a share in proportion to its lag, and at least one offset if it has a lag."""
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
    """Return whether a trigger reads now (``minOffsetsPerTrigger``, ``maxTriggerDelay``): at least ``minimum`` offsets wait, or
    the last read was ``wait_seconds_max`` ago."""
    return waited_seconds >= wait_seconds_max or sum(lags(begin, end).values()) >= minimum


@dataclass(frozen=True, slots=True)
class PartitionRates:
    """Bounds for each partition.

    ``most``: maximum records per second (0: no bound). ``least``: minimum records per batch, at least 1: otherwise a partition
    whose share is less than one record would never be read. Raises UsageError for other values.
    """

    most: float = 0.0
    least: int = 1

    def __post_init__(self) -> None:
        if self.most < 0 or self.least < 1:
            raise UsageError(
                f"PartitionRates: most = {self.most:g}, least = {self.least}: allowed are most from 0, and least from 1"
            )


#: the bounds of all partitions, or a function that returns those of one partition, as Spark's ``PerPartitionConfig``
Rates: TypeAlias = PartitionRates | Callable[[TopicPartition], PartitionRates]


def limit_by_rates(
    begin: Offsets, end: Offsets, rates: Rates, learned_rate: float, interval_seconds: float
) -> dict[TopicPartition, int]:
    """Return the offset to which a batch of a direct stream reads each partition of ``end``.

    ``learned_rate``: the rate that backpressure allows for all partitions together, in records per second (0: unknown). It is
    shared in proportion to the lag, and ``rates`` bounds each share. ``interval_seconds``: the batch interval. Raises UsageError
    if the function ``rates`` returns something else than PartitionRates.
    """
    lag = lags(begin, end)
    total = sum(lag.values())
    until: dict[TopicPartition, int] = {}
    for tp, offset in end.items():
        bounds = rates if isinstance(rates, PartitionRates) else _rates_of(rates, tp)
        allowed = learned_rate * lag[tp] / total if learned_rate > 0 and total else math.inf
        allowed = min(allowed, bounds.most or math.inf)
        limit = lag[tp] if allowed == math.inf else max(int(allowed * interval_seconds), bounds.least)
        until[tp] = min(offset, offset - lag[tp] + limit)
    return until


def _rates_of(rates: Callable[[TopicPartition], PartitionRates], tp: TopicPartition) -> PartitionRates:
    found = rates(tp)
    if not isinstance(found, PartitionRates):
        raise UsageError(f"rates: the function returned {found!r} for {tp}: return a PartitionRates")
    return found


def spans(begin: Offsets, end: Offsets, topic_ids: Mapping[str, str] | None = None) -> list[OffsetRange]:
    """Return the offsets from ``begin`` to ``end``, in the order of partitions; also empty ranges."""
    ids = topic_ids or {}
    return [
        OffsetRange(tp.topic, tp.partition, begin.get(tp, offset), offset, ids.get(tp.topic, ""))
        for tp, offset in sorted(end.items())
    ]


def sizes(ranges: Iterable[OffsetRange]) -> int:
    """Return the number of offsets of all ranges."""
    return sum(range_.size for range_ in ranges)
