"""Which offsets a batch of a streaming query reads, and what was lost: decisions on offsets alone, by Spark's rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.kafka.consume.spans import Span
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from pyspark_forebay.offsets import Offsets, Positions, in_words


@dataclass(frozen=True, slots=True)
class Plan:
    """``losses``: a sentence for each thing that Kafka no longer has; with ``failOnDataLoss`` the first one ends the query."""

    spans: list[Span]
    losses: list[str]


def recreated(known: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """Topics that were deleted and created again: both ids are known, and differ."""
    return {topic for topic, own in known.items() if now.get(topic, own) != own}


def continued(start: Offsets, now_ids: Mapping[str, str]) -> dict[TopicPartition, int]:
    """Where reading goes on from ``start``: without the partitions of topics that were created again."""
    again = recreated(start.topic_ids, now_ids)
    return {tp: offset for tp, offset in start.at.items() if tp.topic not in again}


def lower_ends(known: Offsets, latest: Offsets) -> set[TopicPartition]:
    """Partitions that end below what is known of them, though their topic is the same."""
    continuing = continued(known, latest.topic_ids)
    return {tp for tp, offset in latest.at.items() if offset < continuing.get(tp, 0)}


def unmatched(wanted: set[TopicPartition], given: set[TopicPartition], name: str) -> None:
    """Raises UsageError unless ``given`` (by the option ``name``) are just those that there are."""
    if wanted != given:
        missing, surplus = wanted - given, given - wanted
        words = [f"missing: {in_words(missing)}"] if missing else []
        words += [f"not read by this query: {in_words(surplus)}"] if surplus else []
        raise UsageError(
            f"option {name} must name every partition that is read, with -1 for latest and -2 for earliest where it does not "
            f"matter; {'; '.join(words)}"
        )


def unmatched_time(tp: TopicPartition, time_ms: int) -> UsageError:
    return UsageError(
        f"no offset matched: {tp} has no record at or after {time_ms} ms; "
        'startingOffsetsByTimestampStrategy "latest" begins at the end then'
    )


def plan(start: Offsets, end: Offsets, beginnings: Positions, now_ids: Mapping[str, str]) -> Plan:
    """``[start, end)`` of each partition of ``end``, in order.

    ``beginnings``: first offsets that Kafka has now of the partitions that :func:`continued` leaves out, as far as they are
    there. ``now_ids``: the topics' ids now. A partition without a start begins at its first offset; one whose topic is another
    one than ``end`` was made for has nothing to give.
    """
    losses: list[str] = []
    known = continued(start, end.topic_ids)
    again = recreated(start.topic_ids, end.topic_ids)
    for topic in sorted(again):
        held = {tp for tp in start.at if tp.topic == topic}
        losses.append(
            f"Topic {topic} was deleted and created again: it had the id {start.topic_ids[topic]} and has "
            f"{end.topic_ids[topic]}. What was not read of {in_words(held)} is lost"
        )
    replaced = recreated(end.topic_ids, now_ids)
    losses += [
        f"Topic {topic} was deleted and created again since the batch was planned: it had the id {end.topic_ids[topic]} and "
        f"has {now_ids[topic]}. What the batch was to read of it is lost"
        for topic in sorted(replaced)
    ]
    new = {tp for tp in end.at if tp not in known and tp.topic not in replaced}
    unknown = new - set(beginnings)
    if unknown:
        losses.append(f"Cannot find earliest offsets of {in_words(unknown)}. Some data may have been missed")
    losses += [
        f"Added partition {tp} starts from {beginnings[tp]} instead of 0. Some data may have been missed"
        for tp in sorted(new - unknown)
        if beginnings[tp]
    ]
    gone = {tp for tp in start.at if tp not in end.at and tp.topic not in again}
    if gone:
        losses.append(f"{in_words(gone)} are gone. Some data may have been missed")
    spans: list[Span] = []
    for tp, until in sorted(end.at.items()):
        begin = known.get(tp, beginnings.get(tp))
        if begin is None or tp.topic in replaced:
            continue
        if until < begin:
            losses.append(
                f"Partition {tp}'s offset was changed from {begin} to {until}. This could be either 1) a user error that the "
                "start offset is set beyond available offset when starting query, or 2) the topic-partition was deleted and "
                "created again"
            )
            continue
        spans.append(Span(tp.topic, tp.partition, begin, until, end.topic_ids.get(tp.topic, "")))
    return Plan(spans, losses)


def behind(consumed: Positions, latest: Positions) -> dict[str, str]:
    """What Spark's Kafka source shows in a query's progress, by the same names: how many offsets of a partition wait, at least,
    at most and on average. Empty without partitions."""
    lags = [max(0, offset - consumed[tp]) for tp, offset in latest.items() if tp in consumed]
    if not lags:
        return {}
    return {
        "minOffsetsBehindLatest": str(min(lags)),
        "maxOffsetsBehindLatest": str(max(lags)),
        "avgOffsetsBehindLatest": str(sum(lags) / len(lags)),
    }
