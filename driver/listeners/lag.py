"""How far a stream is behind Kafka, as an event for listeners."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from driver.listeners.events import LagMeasured, PartitionLag

#: maximum number of partitions that the event names
PARTITIONS_MAX = 100
#: about how often the lag is measured
LAG_SECONDS = 10.0


def measured(partitions: Iterable[PartitionLag], lag_seconds: float | None, now_ms: int) -> LagMeasured:
    """Return the event for ``partitions``, which are all partitions of the stream."""
    known = list(partitions)
    return LagMeasured(
        time_ms=now_ms,
        not_taken_in=_sum(_behind(one, one.position) for one in known),
        not_processed=_sum(_behind(one, one.completed) for one in known),
        lag_seconds=lag_seconds,
        partitions=tuple(heapq.nlargest(PARTITIONS_MAX, known, key=lambda one: _behind(one, one.completed) or 0)),
    )


def _behind(partition: PartitionLag, offset: int) -> int | None:
    return None if partition.end is None else max(0, partition.end - offset)


def _sum(lags: Iterable[int | None]) -> int | None:
    found = list(lags)
    return None if not found or None in found else sum(lag for lag in found if lag is not None)
