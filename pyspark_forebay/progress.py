"""How far a query is behind Kafka, with the names that Spark's Kafka source uses."""

from __future__ import annotations

import json
from typing import Protocol

from pyspark_forebay.offsets import Offsets, Positions


class SourceProgress(Protocol):
    """The part of ``pyspark.sql.streaming.listener.SourceProgress`` that is used: offsets as JSON, None or "null" for
    none."""

    @property
    def endOffset(self) -> str | None: ...  # noqa: N802
    @property
    def latestOffset(self) -> str | None: ...  # noqa: N802


def offsets_behind_latest(progress: SourceProgress) -> dict[str, str]:
    """Return ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest``, computed from
    ``progress``.

    ``progress``: ``query.lastProgress.sources[n]``. Spark's Kafka source reports these values as ``metrics``, which a
    source in Python cannot. Returns an empty dict before the first batch.
    """
    end = json.loads(progress.endOffset or "null")
    latest = json.loads(progress.latestOffset or "null")
    if not end or not latest:
        return {}
    return behind(Offsets.of(end).at, Offsets.of(latest).at)


def behind(consumed: Positions, latest: Positions) -> dict[str, str]:
    """Return the least, greatest and average number of offsets that a partition has yet to read; empty without
    partitions."""
    lags = [max(0, offset - consumed[tp]) for tp, offset in latest.items() if tp in consumed]
    if not lags:
        return {}
    return {
        "minOffsetsBehindLatest": str(min(lags)),
        "maxOffsetsBehindLatest": str(max(lags)),
        "avgOffsetsBehindLatest": str(sum(lags) / len(lags)),
    }
