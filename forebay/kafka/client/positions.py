"""Offsets to commit, as confluent-kafka takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from confluent_kafka import TopicPartition as WirePartition

from forebay.model.values import TopicPartition


class Point(Protocol):
    """A position to commit: the next offset to take in, the leader epoch of the record before it (-1: unknown), a note."""

    @property
    def offset(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def metadata(self) -> str: ...


def commit_list(positions: Mapping[TopicPartition, Point]) -> list[WirePartition]:
    return [
        WirePartition(tp.topic, tp.partition, point.offset, point.metadata, point.leader_epoch)
        if point.leader_epoch >= 0
        else WirePartition(tp.topic, tp.partition, point.offset, point.metadata)
        for tp, point in positions.items()
    ]
