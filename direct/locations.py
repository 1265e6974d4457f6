"""Where the tasks of an RDD would best run: decisions on values alone."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from forebay.kafka.consume.spans import Span
from forebay.model.values import TopicPartition


@dataclass(frozen=True, slots=True)
class PreferConsistent:
    """Each partition of Kafka always on the same executor, as long as there are the same ones, so that its consumer is used
    again; all of them evenly used."""


@dataclass(frozen=True, slots=True)
class PreferBrokers:
    """On the host of the partition's leader, for executors beside brokers. A host without an executor counts for nothing."""


@dataclass(frozen=True, slots=True)
class PreferFixed:
    """On the host named for the partition; consistently where none is named."""

    hosts: Mapping[TopicPartition, str] = field(default_factory=dict)


LocationStrategy: TypeAlias = PreferConsistent | PreferBrokers | PreferFixed
#: (host, id)
Executor = tuple[str, str]


def places(
    strategy: LocationStrategy,
    ranges: Sequence[Span],
    executors: Collection[Executor],
    leaders: Mapping[TopicPartition, str],
) -> list[tuple[str, ...]]:
    """For each of ``ranges`` what Spark takes as its preferred locations; () for none. ``leaders``: hosts."""
    known = sorted(executors)
    hosts = {host for host, _ in known}

    def place(tp: TopicPartition) -> tuple[str, ...]:
        if isinstance(strategy, PreferBrokers):
            return (leaders[tp],) if leaders.get(tp) in hosts else ()
        if isinstance(strategy, PreferFixed) and tp in strategy.hosts:
            return (strategy.hosts[tp],) if strategy.hosts[tp] in hosts else ()
        if not known:
            return ()
        host, executor_id = known[zlib.crc32(str(tp).encode()) % len(known)]
        return (f"executor_{host}_{executor_id}",)

    return [place(range_.tp) for range_ in ranges]
