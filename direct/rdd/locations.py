"""Where the tasks of an RDD prefer to run: decisions on values, without I/O."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from forebay.kafka.consume.spans import OffsetRange
from forebay.model.values import TopicPartition


@dataclass(frozen=True, slots=True)
class PreferConsistent:
    """Each Kafka partition is read on the same executor while the executors stay the same, so that its consumer is reused.

    Partitions are distributed evenly.
    """


@dataclass(frozen=True, slots=True)
class PreferBrokers:
    """Each partition is read on the host of its leader, if that host has an executor.

    For executors on the hosts of brokers.
    """


@dataclass(frozen=True, slots=True)
class PreferFixed:
    """Each partition is read on the host that ``hosts`` names; others as with :class:`PreferConsistent`."""

    hosts: Mapping[TopicPartition, str] = field(default_factory=dict)


LocationStrategy: TypeAlias = PreferConsistent | PreferBrokers | PreferFixed
#: (host, id)
Executor = tuple[str, str]


def places(
    strategy: LocationStrategy,
    ranges: Sequence[OffsetRange],
    executors: Collection[Executor],
    leaders: Mapping[TopicPartition, str],
) -> list[tuple[str, ...]]:
    """Return Spark's preferred locations for each of ``ranges``; () for none.

    ``leaders``: the hosts of partition leaders.
    """
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
