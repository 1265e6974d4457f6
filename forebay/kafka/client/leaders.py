"""Who leads partitions now, and who could, as words for errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from forebay.model.values import TopicPartition

#: kept of a question's time-out for finding out which partition it failed for
WHY_SECONDS = 2.0


def shown_partitions(
    client: AdminClient | Producer, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, Any] | None:
    """What brokers show of each, None of one that they do not know; None for all if no broker tells."""
    try:
        topics = client.list_topics(timeout=WHY_SECONDS).topics
    except KafkaException:
        return None
    return {tp: topics[tp.topic].partitions.get(tp.partition) if tp.topic in topics else None for tp in partitions}


def without_leader(tp: TopicPartition, shown: Any) -> str:
    """That nobody leads ``tp``, and who could; "" if somebody does, or it is not known."""
    if shown is None or shown.leader >= 0:
        return ""
    return f"nobody leads {tp} until broker {' or '.join(map(str, shown.isrs or shown.replicas))} is back"


def hindrance(client: Producer, tp: TopicPartition) -> str:
    """Why records of ``tp`` may not have been taken in time; "" if no broker tells, or nothing is to be seen."""
    shown = (shown_partitions(client, [tp]) or {}).get(tp)
    if shown is None:
        return ""
    away = " and ".join(str(number) for number in sorted(set(shown.replicas) - set(shown.isrs)))
    if shown.leader >= 0 and away:
        return f"broker {away} is not in sync with the leader of {tp}: min.insync.replicas may need it"
    return without_leader(tp, shown)
