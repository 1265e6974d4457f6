"""Describes for errors which partitions have no leader, and which brokers could lead them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from forebay.model.values import TopicPartition

#: part of a request's timeout that is reserved for finding the partition without a leader
WHY_SECONDS = 2.0


def shown_partitions(
    client: AdminClient | Producer, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Any] | None:
    """Return the metadata of each partition; None for one that does not exist. Return None if no broker answers."""
    try:
        topics = client.list_topics(timeout=WHY_SECONDS).topics
    except KafkaException:
        return None
    return {tp: topics[tp.topic].partitions.get(tp.partition) if tp.topic in topics else None for tp in partitions}


def without_leader(tp: TopicPartition, shown: Any) -> str:
    """Describe the missing leader of ``tp``, and which brokers could lead it; "" if it has a leader, or nothing is known."""
    if shown is None or shown.leader >= 0:
        return ""
    return f"{tp} has no leader until broker {' or '.join(map(str, shown.isrs or shown.replicas))} is back"


def why_not_accepted(client: Producer, tp: TopicPartition) -> str:
    """Return why brokers may not have accepted records of ``tp`` in time; "" if no broker answers, or the metadata shows none."""
    shown = (shown_partitions(client, [tp]) or {}).get(tp)
    if shown is None:
        return ""
    away = " and ".join(str(number) for number in sorted(set(shown.replicas) - set(shown.isrs)))
    if shown.leader >= 0 and away:
        return f"broker {away} is not in sync with the leader of {tp}: min.insync.replicas may need it"
    return without_leader(tp, shown)
