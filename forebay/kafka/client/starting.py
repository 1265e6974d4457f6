"""Finds where reading begins or ends in each partition, by requests and without joining a group.

Each :class:`StartPosition` has the origin of its offset as text, for display.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from forebay.kafka.client.admin import KafkaAdmin, check_time
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition

#: the offsets -2 and -1 in a user's offsets by partition
EARLIEST, LATEST = -2, -1


class Timestamp(msgspec.Struct, frozen=True):
    """The first record at or after ``ms`` since 1970 UTC. Raises UsageError for a time that is not a whole number from 0."""

    ms: int

    def __post_init__(self) -> None:
        check_time(self.ms)


#: "earliest", "latest", an offset, or a time
Starting: TypeAlias = Literal["earliest", "latest"] | int | Timestamp


@dataclass(frozen=True, slots=True)
class StartPosition:
    """The offset at which reading of a partition begins. ``why``: its origin as text, such as "committed by group g"."""

    offset: int
    why: str


def find_offsets(
    admin: KafkaAdmin,
    asked: Mapping[TopicPartition, Starting],
    *,
    without_record: Literal["error", "latest"] = "error",
) -> dict[TopicPartition, int]:
    """Return the offset of each partition. Offsets are returned as they are, except -2 (earliest) and -1 (latest).

    ``without_record``: whether a time after a partition's last record is an error, or means the partition's end. If ``admin``
    reads only committed records, the end is the last stable offset. Raises UsageError for a partition that does not exist, and
    for a time after the last record; UnreachableError.
    """
    offsets: dict[TopicPartition, int] = {}
    questions: dict[TopicPartition, Literal["earliest", "latest"] | int] = {}
    for tp, starting in asked.items():
        if isinstance(starting, Timestamp):
            questions[tp] = starting.ms
        elif starting == EARLIEST or starting == "earliest":
            questions[tp] = "earliest"
        elif starting == LATEST or starting == "latest":
            questions[tp] = "latest"
        elif isinstance(starting, int) and starting >= 0:
            offsets[tp] = starting
        else:
            raise UsageError(f"offset {starting!r} of {tp}: allowed are offsets from 0, -2 (earliest) and -1 (latest)")
    found = admin.places(questions)
    without = [tp for tp, offset in found.items() if offset < 0]
    if without and without_record == "error":
        tp = min(without)
        raise UsageError(
            f"{tp} has no record at or after timestamp {questions[tp]}"
            f"{f', and {len(without) - 1} other partitions have none' if len(without) > 1 else ''}: "
            "use an earlier timestamp, or -1 (latest) for such partitions"
        )
    return {**offsets, **found, **admin.places(dict.fromkeys(without, "latest"))}


@dataclass(frozen=True, slots=True)
class Known:
    """Known offsets, in order of precedence.

    ``checkpoint``: next offsets of an earlier run (None: there was no run). ``given``: by the user. ``committed``: by ``group``.
    """

    checkpoint: Mapping[TopicPartition, int] | None
    given: Mapping[TopicPartition, Starting]
    committed: Mapping[TopicPartition, int]
    group: str = ""


def begin(
    admin: KafkaAdmin, partitions: Iterable[TopicPartition], known: Known, reset: str
) -> dict[TopicPartition, StartPosition]:
    """Return where reading of each partition begins: at the first offset of ``known``, else as ``reset`` says.

    If there is a checkpoint without the partition, the partition is new and is read from its first offset. ``reset``: "earliest",
    "latest", or "error", which raises UsageError for a partition without a known offset. Raises as :func:`find_offsets`.
    """
    asked: dict[TopicPartition, tuple[Starting, str]] = {}
    for tp in sorted(partitions):
        if known.checkpoint is not None and tp in known.checkpoint:
            given = ", which takes precedence over the given one" if tp in known.given else ""
            asked[tp] = known.checkpoint[tp], f"of the checkpoint{given}"
        elif known.checkpoint is not None:
            asked[tp] = "earliest", "its beginning, since it is new"
        elif tp in known.given:
            asked[tp] = known.given[tp], "given"
        elif tp in known.committed:
            asked[tp] = known.committed[tp], f"committed by group {known.group}"
        elif reset == "earliest":
            asked[tp] = "earliest", "earliest, by the reset policy"
        elif reset == "latest":
            asked[tp] = "latest", "latest, by the reset policy"
        else:
            raise UsageError(
                f"no starting offset of {tp} is known: none is given or committed, and kafka.'auto.offset.reset' is none; "
                "give an offset, or set auto.offset.reset to earliest or latest"
            )
    offsets = find_offsets(admin, {tp: starting for tp, (starting, _) in asked.items()})
    return {tp: StartPosition(offsets[tp], why) for tp, (_, why) in asked.items()}
