"""Which offsets a batch of a streaming query reads, and what Kafka lost of them: decisions on values, by Spark's rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.kafka.client.log_cuts import LogPoint
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.values import TopicPartition
from pyspark_forebay.offsets import Offsets, Positions, comma_separated

NO_CUTS: Positions = {}


@dataclass(frozen=True, slots=True)
class KafkaBatchPlan:
    """What one batch reads from Kafka.

    ``spans``: in the order of partitions. ``losses``: a sentence for each loss; with ``failOnDataLoss`` the first one
    ends the query.
    """

    spans: list[OffsetRange]
    losses: list[str]


def recreated(known: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """Return the topics that were deleted and created again: both ids are known, and differ."""
    return {topic for topic, own in known.items() if now.get(topic, own) != own}


def continued(start: Offsets, now_ids: Mapping[str, str]) -> dict[TopicPartition, int]:
    """Return the offsets of ``start``, without those of topics that were created again since. Reading continues there."""
    again = recreated(start.topic_ids, now_ids)
    return {tp: offset for tp, offset in start.at.items() if tp.topic not in again}


def lower_ends(known: Offsets, latest: Offsets) -> set[TopicPartition]:
    """Return the partitions whose end is below the ``known`` offset, although their topic was not created again."""
    continuing = continued(known, latest.topic_ids)
    return {tp for tp, offset in latest.at.items() if offset < continuing.get(tp, 0)}


def points_to_compare(start: Offsets, end: Offsets, now_ids: Mapping[str, str]) -> dict[TopicPartition, LogPoint]:
    """Return the offsets of ``start`` that other leaders reported than those of ``end``: the logs may have been cut back.

    ``now_ids``: as of :func:`plan_kafka_batch`.
    """
    replaced = recreated(end.topic_ids, now_ids)
    known = {tp: offset for tp, offset in continued(start, end.topic_ids).items() if tp in end.at}
    epochs = start.leader_epochs
    return {
        tp: LogPoint(offset, epochs[tp])
        for tp, offset in known.items()
        if tp in epochs and epochs[tp] != end.leader_epochs.get(tp) and tp.topic not in replaced
    }


def plan_kafka_batch(
    start: Offsets,
    end: Offsets,
    beginnings: Positions,
    now_ids: Mapping[str, str],
    cuts: Positions = NO_CUTS,
) -> KafkaBatchPlan:
    """Return the range from ``start`` to ``end`` of each partition of ``end``, and what was lost.

    ``beginnings``: Kafka's first offsets of the partitions that :func:`continued` omits, as far as they exist.
    ``now_ids``: the present ids of the topics. A partition without a start begins at its first offset. If a topic was
    created again after ``end`` was determined, its partitions are lost. ``cuts``: where the logs were cut back below
    :func:`points_to_compare`; what they have from there on is read.
    """
    losses: list[str] = []
    known = continued(start, end.topic_ids)
    again = recreated(start.topic_ids, end.topic_ids)
    for topic in sorted(again):
        held = {tp for tp in start.at if tp.topic == topic}
        losses.append(
            f"Topic {topic} was deleted and created again: it had the id {start.topic_ids[topic]} and has "
            f"{end.topic_ids[topic]}. Unread records of {comma_separated(held)} are lost"
        )
    replaced = recreated(end.topic_ids, now_ids)
    losses += [
        f"Topic {topic} was deleted and created again since the batch was planned: it had the id {end.topic_ids[topic]} and "
        f"has {now_ids[topic]}. The records that the batch was planned to read are lost"
        for topic in sorted(replaced)
    ]
    new = {tp for tp in end.at if tp not in known and tp.topic not in replaced}
    unknown = new - set(beginnings)
    if unknown:
        losses.append(f"Cannot find earliest offsets of {comma_separated(unknown)}. Some data may have been missed")
    losses += [
        f"Added partition {tp} starts from {beginnings[tp]} instead of 0. Some data may have been missed"
        for tp in sorted(new - unknown)
        if beginnings[tp]
    ]
    gone = {tp for tp in start.at if tp not in end.at and tp.topic not in again}
    if gone:
        losses.append(f"{comma_separated(gone)} are gone. Some data may have been missed")
    spans: list[OffsetRange] = []
    for tp, until in sorted(end.at.items()):
        begin = known.get(tp, beginnings.get(tp))
        if begin is None or tp.topic in replaced:
            continue
        if tp in cuts:
            losses.append(
                f"The log of partition {tp} was cut back to {cuts[tp]}, as after an unclean election, and has other records from "
                f"there on than those that the query read up to {begin}"
            )
            begin = cuts[tp]
        if until < begin:
            losses.append(
                f"Partition {tp}'s offset was changed from {begin} to {until}. This could be either 1) a user error that the "
                "start offset is set beyond available offset when starting query, or 2) the topic-partition was deleted and "
                "created again"
            )
            continue
        topic_id, epoch = end.topic_ids.get(tp.topic, ""), end.leader_epochs.get(tp, -1)
        spans.append(OffsetRange(tp.topic, tp.partition, begin, until, topic_id, leader_epoch=epoch))
    return KafkaBatchPlan(spans, losses)
