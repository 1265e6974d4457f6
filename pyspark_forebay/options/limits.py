"""Reads the options ``starting…`` and ``ending…``: the offsets or times at which a query starts and ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from pyspark_forebay.offsets import EARLIEST, LATEST, comma_separated, parse_offsets, parse_times
from pyspark_forebay.options.values import whole_number

_STRATEGY = "startingOffsetsByTimestampStrategy"


@dataclass(frozen=True, slots=True)
class Limit:
    """Where a query starts, or where a batch query ends. Exactly one field is set.

    ``policy``: "earliest" or "latest". ``offsets``: one for every partition; ``EARLIEST`` and ``LATEST`` are allowed.
    ``timestamps``: milliseconds for every partition. ``timestamp``: milliseconds for all partitions.
    """

    policy: str = ""
    offsets: Mapping[TopicPartition, int] | None = None
    timestamps: Mapping[TopicPartition, int] | None = None
    timestamp: int | None = None


def read_limit(given: Mapping[str, str], end: str, default: str) -> Limit:
    """Return the limit that the options set. Raises UsageError.

    ``given``: option name in lower case → value. ``end``: how the options' names begin, "starting" or "ending".
    ``default``: "earliest" or "latest", used if no such option is set. ``…Timestamp`` takes
    precedence over ``…OffsetsByTimestamp``, and both over ``…Offsets``.
    """
    name = f"{end}Timestamp"
    if name.lower() in given:
        return Limit(timestamp=whole_number(given, name, at_least=0))
    name = f"{end}OffsetsByTimestamp"
    if name.lower() in given:
        return Limit(timestamps=parse_times(given[name.lower()].strip(), name))
    name = f"{end}Offsets"
    value = given.get(name.lower(), default).strip()
    if value.lower() in ("earliest", "latest"):
        return Limit(policy=value.lower())
    if not value.startswith("{"):
        raise UsageError(
            f'option {name}: {value!r}: allowed are "earliest", "latest", or JSON: {{"topic": {{"0": 23, "1": -2}}}}'
        )
    return Limit(offsets=parse_offsets(value, name).at)


def check_batch_limits(starting: Limit, ending: Limit) -> None:
    """Raise UsageError if a batch query would start at "latest" or end at "earliest", for all partitions or for one."""
    for limit, forbidden, end, word in (
        (starting, LATEST, "starting", "latest"),
        (ending, EARLIEST, "ending", "earliest"),
    ):
        if limit.policy == word:
            raise UsageError(f"option {end}Offsets: {end} offset can't be {word} for batch queries on Kafka")
        for tp, offset in (limit.offsets or {}).items():
            if offset == forbidden:
                raise UsageError(f"option {end}Offsets: {tp} can't be {word} for batch queries on Kafka")


def latest_without_match(given: Mapping[str, str]) -> bool:
    """Return whether a partition without a record at or after the starting timestamp starts at its end.

    Raises UsageError.
    """
    value = given.get(_STRATEGY.lower(), "error").strip().lower()
    if value not in ("error", "latest"):
        raise UsageError(f'option {_STRATEGY}: {value!r}: allowed are "error" and "latest"')
    return value == "latest"


def check_all_named(wanted: set[TopicPartition], given: set[TopicPartition], name: str) -> None:
    """Raise UsageError unless the option ``name`` lists exactly the partitions that the query reads.

    ``wanted``: partitions that the query reads. ``given``: partitions that the option lists.
    """
    if wanted != given:
        missing, surplus = wanted - given, given - wanted
        parts = [f"missing: {comma_separated(missing)}"] if missing else []
        parts += [f"not read by this query: {comma_separated(surplus)}"] if surplus else []
        raise UsageError(
            f"option {name} must name every partition that is read (-1 means latest, -2 earliest); {'; '.join(parts)}"
        )


def no_record_since(tp: TopicPartition, time_ms: int) -> UsageError:
    """Return the error for a partition without a record at or after the starting time."""
    return UsageError(
        f"no offset matched: {tp} has no record at or after {time_ms} ms; "
        'to begin at the end of such a partition, set startingOffsetsByTimestampStrategy to "latest"'
    )
