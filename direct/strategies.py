"""Which partitions a direct stream reads: by questions to brokers, never by joining a group."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from forebay.errors import UsageError
from forebay.kafka.admin import KafkaAdmin
from forebay.kafka.starting import Starting
from forebay.values import TopicPartition


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of ``topics``. ``offsets``: where some of them begin."""

    topics: Collection[str]
    offsets: Mapping[TopicPartition, Starting] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics whose whole name matches ``pattern``, also of those that come later."""

    pattern: str
    offsets: Mapping[TopicPartition, Starting] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions alone."""

    partitions: Collection[TopicPartition]
    offsets: Mapping[TopicPartition, Starting] = field(default_factory=dict)


ConsumerStrategy: TypeAlias = Subscribe | SubscribePattern | Assign


def check(strategy: ConsumerStrategy) -> None:
    """Raises UsageError for one that can't be."""
    if isinstance(strategy, SubscribePattern):
        try:
            re.compile(strategy.pattern)
        except re.error as error:
            raise UsageError(f"SubscribePattern: {strategy.pattern!r} is no regular expression: {error}") from None
    elif not (strategy.topics if isinstance(strategy, Subscribe) else strategy.partitions):
        raise UsageError(f"{type(strategy).__name__}: it names nothing to read")


def find_partitions(admin: KafkaAdmin, strategy: ConsumerStrategy) -> set[TopicPartition]:
    """Those that there are now; a topic or partition that is not there has none. Raises UnreachableError."""
    if isinstance(strategy, Subscribe):
        return admin.partitions(strategy.topics)
    if isinstance(strategy, SubscribePattern):
        return admin.partitions(pattern=strategy.pattern)
    return admin.partitions({tp.topic for tp in strategy.partitions}) & set(strategy.partitions)
