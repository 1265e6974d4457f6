"""What a consumer returns: records as columns, and events, in the order of arrival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from confluent_kafka import KafkaError

from forebay.model.values import TopicPartition

#: in place of a partition, for an event of the whole client
CLIENT = TopicPartition("", -1)


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive records of one partition. ``batch``: a ``pyarrow.RecordBatch`` of ``SOURCE_SCHEMA``, not empty.
    ``leader_epoch``: of the last record; -1 if unknown."""

    tp: TopicPartition
    batch: Any
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Event:
    """The end of a partition, or an error, at ``offset``. ``tp``: :data:`CLIENT` if it concerns the whole client."""

    tp: TopicPartition
    error: KafkaError
    offset: int


Received: TypeAlias = Records | Event
