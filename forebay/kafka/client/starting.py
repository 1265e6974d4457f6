"""Where reading begins or ends in each partition: asked of brokers by questions, never by joining a group.

Each partition has a :class:`Position`, which says in words how the offset was found, so that it can be shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from forebay.kafka.client.admin import KafkaAdmin
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition

#: what an offset of -2 and of -1 means where users give offsets by partition
EARLIEST, LATEST = -2, -1


class Timestamp(msgspec.Struct, frozen=True):
    """The first record at or after ``ms`` since 1970 UTC."""

    ms: int


#: "earliest", "latest", an offset, or a time
Starting: TypeAlias = Literal["earliest", "latest"] | int | Timestamp


@dataclass(frozen=True, slots=True)
class Position:
    """``why``: in words, as "committed by group g"."""

    offset: int
    why: str


def find_offsets(
    admin: KafkaAdmin,
    asked: Mapping[TopicPartition, Starting],
    *,
    without_record: Literal["error", "latest"] = "error",
) -> dict[TopicPartition, int]:
    """The offset of each partition; offsets pass as they are, but for -2 (earliest) and -1 (latest).

    ``without_record``: what a time means to a partition that has no record as young. The ends are those of a consumer with the
    options of ``admin``: for committed records, the last stable offset. Raises UsageError for a partition that is not there, and
    for a time without record; UnreachableError.
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
            f"no record of {tp} is as young as timestamp {questions[tp]}"
            f"{f', nor of {len(without) - 1} other partitions' if len(without) > 1 else ''}: "
            "ask for an earlier one, or let such partitions begin at their end"
        )
    return {**offsets, **found, **admin.places(dict.fromkeys(without, "latest"))}


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of where to begin, the stronger first: ``checkpoint``: next offsets of an earlier run (None: there was
    none); ``given`` by the user; ``committed`` by ``group``."""

    checkpoint: Mapping[TopicPartition, int] | None
    given: Mapping[TopicPartition, Starting]
    committed: Mapping[TopicPartition, int]
    group: str = ""


def begin(
    admin: KafkaAdmin, partitions: Iterable[TopicPartition], known: Known, reset: str
) -> dict[TopicPartition, Position]:
    """Where each partition begins: by the checkpoint, else as given, else as committed, else by ``reset``.

    A partition that the checkpoint does not know is new and begins at its beginning. ``reset``:
    "earliest", "latest", or "error", which refuses a partition of which nothing is known. Raises as :func:`find_offsets`.
    """
    asked: dict[TopicPartition, tuple[Starting, str]] = {}
    for tp in sorted(partitions):
        if known.checkpoint is not None and tp in known.checkpoint:
            given = ", which goes before the one that is given" if tp in known.given else ""
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
                f"nothing says where {tp} begins: no offset is given or committed, and kafka.'auto.offset.reset' is none"
            )
    offsets = find_offsets(admin, {tp: starting for tp, (starting, _) in asked.items()})
    return {tp: Position(offsets[tp], why) for tp, (_, why) in asked.items()}
