"""Questions to Kafka about offsets: first, next, by time, committed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, TypeAlias

from direct.parameters import checked_options
from forebay.kafka.client import starting
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.starting import Timestamp
from forebay.kafka.options.access import TIMEOUT_SECONDS
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition

#: a place in a partition
Place: TypeAlias = Literal["earliest", "latest", "committed"] | Timestamp


def find_offsets(
    kafka_params: Mapping[str, object],
    of: Collection[str | TopicPartition],
    place: Place,
    *,
    without_record: Literal["error", "latest"] = "latest",
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> dict[TopicPartition, int]:
    """Return the offset of ``place`` in each partition, without joining a consumer group.

    ``kafka_params``: as of a direct stream. ``of``: partitions, and topics for all of their partitions. ``place``:
    "earliest": the first offset; "latest": the offset of the next record, or of the first one in an open transaction if
    only committed records are read; a ``Timestamp``: the first record at or after it; "committed": what ``group.id``
    committed, and partitions without a commit are omitted. ``without_record``: whether a time after a partition's last
    record is an error or means "latest". Raises UsageError, SettingsError, and UnreachableError if no broker answers within
    ``timeout_seconds``.
    """
    safe = checked_options(kafka_params)
    if isinstance(of, str) or not all(isinstance(one, (str, TopicPartition)) for one in of):
        raise UsageError(f"of {of!r}: allowed are names of topics and TopicPartition(topic, number), in a list")
    if not isinstance(place, Timestamp) and place not in ("earliest", "latest", "committed"):
        raise UsageError(f"place {place!r}: allowed are earliest, latest, committed and Timestamp(ms)")
    if place == "committed" and not safe.group:
        raise UsageError("no consumer group is set: set group.id in kafka_params")
    topics = {one for one in of if isinstance(one, str)}
    partitions = {one for one in of if isinstance(one, TopicPartition)}
    with KafkaAdmin(safe.options, timeout_seconds=timeout_seconds, client_id="forebay-offsets") as admin:
        there = admin.partitions({*topics, *(tp.topic for tp in partitions)})
        absent = [f"topic {topic}" for topic in sorted(topics - {tp.topic for tp in there})]
        absent += [f"partition {tp}" for tp in sorted(partitions - there)]
        if absent:
            raise UsageError(f"Kafka has no {', '.join(absent)}")
        wanted = {*partitions, *(tp for tp in there if tp.topic in topics)}
        if place == "committed":
            return {tp: commit.offset for tp, commit in admin.committed(safe.group, wanted).items()}
        return starting.find_offsets(admin, dict.fromkeys(sorted(wanted), place), without_record=without_record)
