"""The progress of a query as Spark's Kafka source reports it: offsets with topics alone, and how far the query is behind."""

from __future__ import annotations

import json
from typing import Any, Protocol

from forebay.model.errors import UsageError
from pyspark_forebay.offsets import Offsets, Positions

#: the fields of a source's progress that hold offsets
_OFFSETS = ("startOffset", "endOffset", "latestOffset")


class SourceProgress(Protocol):
    """The part of ``pyspark.sql.streaming.listener.SourceProgress`` that is used: offsets as JSON, None or "null" for
    none."""

    @property
    def endOffset(self) -> str | None: ...  # noqa: N802
    @property
    def latestOffset(self) -> str | None: ...  # noqa: N802


class QueryProgress(Protocol):
    """The part of ``pyspark.sql.streaming.StreamingQueryProgress`` that is used."""

    @property
    def json(self) -> str: ...


def offsets_behind_latest(progress: SourceProgress) -> dict[str, str]:
    """Return ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest``, computed from
    ``progress``.

    ``progress``: ``query.lastProgress.sources[n]``. Spark's Kafka source reports these values as ``metrics``, which a
    source in Python cannot. Returns an empty dict before the first batch.
    """
    return _behind_latest(json.loads(progress.endOffset or "null"), json.loads(progress.latestOffset or "null"))


def kafka_offsets(offsets: str) -> str:
    """Return ``offsets`` with topics alone, as Spark's Kafka source and tools for its offsets read them.

    ``offsets``: JSON from a query's progress, or the last line of a file in the folder ``offsets`` of its checkpoint. The
    result, as in ``{"topic":{"0":23,"1":5}}``, is also valid for the option ``startingOffsets`` of both sources. Raises
    UsageError if ``offsets`` are not those of a query on Kafka or over an intake.
    """
    return json.dumps(_topics_alone(_value(offsets)), separators=(",", ":"))


def kafka_progress(progress: QueryProgress) -> dict[str, Any]:
    """Return the JSON values of ``progress`` as a query of Spark's Kafka source would report them.

    ``progress``: ``query.lastProgress``, or ``event.progress`` in a ``StreamingQueryListener``. In each source whose offsets
    have the form of Kafka's, the offsets have topics alone, and ``metrics`` has the values of :func:`offsets_behind_latest`.
    Everything else stays as it is, also sources of other formats.
    """
    made: dict[str, Any] = json.loads(progress.json)
    made["sources"] = [_kafka_source(source) for source in made.get("sources", ())]
    return made


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


def _kafka_source(source: dict[str, Any]) -> dict[str, Any]:
    try:
        given = {name: _value(source.get(name)) for name in _OFFSETS}
        own = {name: value and _topics_alone(value) for name, value in given.items()}
    except UsageError:
        return source  # of another format
    metrics = {**_behind_latest(own["endOffset"], own["latestOffset"]), **source.get("metrics", {})}
    return {**source, **own, **({"metrics": metrics} if metrics else {})}  # without any, Spark's source has no such key


def _value(offsets: Any) -> Any:
    """Return ``offsets`` as JSON values. They may be JSON themselves, as over Spark Connect. Raises UsageError."""
    if not isinstance(offsets, str):
        return offsets
    try:
        return json.loads(offsets)
    except (ValueError, RecursionError) as error:  # deep nesting
        raise UsageError(f"offsets: not JSON: {error}") from None


def _topics_alone(offsets: Any) -> dict[str, Any]:
    return Offsets(Offsets.of(offsets).at).json()


def _behind_latest(end: Any, latest: Any) -> dict[str, str]:
    if not end or not latest:
        return {}
    return behind(Offsets.of(end).at, Offsets.of(latest).at)
