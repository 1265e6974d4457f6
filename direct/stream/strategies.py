"""Which partitions a direct stream reads. The stream asks brokers and joins no consumer group."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.starting import Starting
from forebay.model.errors import UsageError
from forebay.model.topic_pattern import check_pattern
from forebay.model.values import TopicPartition


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of ``topics``. ``offsets``: where partitions of a new stream begin."""

    topics: Collection[str]
    offsets: Mapping[TopicPartition, Starting] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics whose whole name matches ``pattern``, including topics that are created later.

    ``offsets``: where partitions of a new stream begin.
    """

    pattern: str
    offsets: Mapping[TopicPartition, Starting] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Assign:
    """Only ``partitions``. ``offsets``: where partitions of a new stream begin."""

    partitions: Collection[TopicPartition]
    offsets: Mapping[TopicPartition, Starting] = field(default_factory=dict)


ConsumerStrategy: TypeAlias = Subscribe | SubscribePattern | Assign


def check(strategy: ConsumerStrategy) -> None:
    """Raise UsageError for an invalid strategy."""
    name = type(strategy).__name__
    if isinstance(strategy, SubscribePattern):
        try:
            check_pattern(strategy.pattern)
        except ValueError as error:
            raise UsageError(f"{name}: {strategy.pattern!r} {error}") from None
    elif isinstance(strategy, Subscribe):
        _check_kind(f"{name}: the topics", strategy.topics, str)
    else:
        _check_kind(f"{name}: the partitions", strategy.partitions, TopicPartition)
    if strategy.offsets:
        _check_kind(f"{name}: the keys of offsets", strategy.offsets, TopicPartition)


def _check_kind(what: str, given: Collection[object], kind: type) -> None:
    if not given:
        raise UsageError(f"{what}: the list is empty")
    if isinstance(given, str) or not all(isinstance(one, kind) for one in given):
        expected = "texts, in a list" if kind is str else "TopicPartition(topic, number)"
        raise UsageError(f"{what} are {given!r}: allowed are {expected}")


def find_partitions(admin: KafkaAdmin, strategy: ConsumerStrategy) -> set[TopicPartition]:
    """Return the partitions that exist at present; others are omitted. Raises UnreachableError."""
    if isinstance(strategy, Subscribe):
        return admin.partitions(strategy.topics)
    if isinstance(strategy, SubscribePattern):
        return admin.partitions(pattern=strategy.pattern)
    return admin.partitions({tp.topic for tp in strategy.partitions}) & set(strategy.partitions)


def absent(strategy: ConsumerStrategy, there: Collection[TopicPartition]) -> list[str]:
    """Return descriptions of the topics and partitions that ``strategy`` names and that are not in ``there``."""
    if isinstance(strategy, Subscribe):
        return [f"topic {topic}" for topic in sorted({*strategy.topics} - {tp.topic for tp in there})]
    if isinstance(strategy, SubscribePattern):
        return [] if there else [f"topic that matches {strategy.pattern}"]
    return [f"partition {tp}" for tp in sorted({*strategy.partitions} - {*there})]
