"""The offsets of a streaming query, as its checkpoint stores them and as people read and write them. No I/O.

The form is that of Spark's Kafka source, ``{"topic": {"0": 23, "1": 5}}``: the next offset of each partition. Besides
topics, there may be keys that are not valid names of topics:

* ``"#topic-ids"``: the id of each topic in Kafka, which changes when a topic is deleted and created again;
* ``"#leader-epochs"``: the leader epoch of each partition when Kafka was asked for its end, in the form of offsets;
* ``"#start"``: only in the end of a query's first batch: the offsets at which the query begins, in the same form;
* ``"#cursor"``: the name of the cursor of a query over an intake;
* ``"#lives"``, ``"#start-lives"``: over an intake, the incarnation of each offset that is not of the first incarnation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition

#: special offsets that an option may name for a partition
LATEST = -1
EARLIEST = -2

TOPIC_IDS = "#topic-ids"
START = "#start"
CURSOR = "#cursor"
LEADER_EPOCHS = "#leader-epochs"
INCARNATIONS = "#lives"
START_INCARNATIONS = "#start-lives"
_OWN = {TOPIC_IDS, START, CURSOR, LEADER_EPOCHS, INCARNATIONS, START_INCARNATIONS}

Positions = Mapping[TopicPartition, int]
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_MOST = 2**63 - 1
#: examples for errors
_LIKE_OFFSETS = '{"topicA": {"0": 23, "1": -1}, "topicB": {"0": -2}}'
_LIKE_TIMES = '{"topicA": {"0": 1700000000000}}'
_LIKE_PARTITIONS = '{"topic": [0, 1]}'


@dataclass(frozen=True, slots=True)
class Offsets:
    """The offsets of a streaming query at one moment.

    ``at``: the next offset of each partition. ``topic_ids``: the ids of topics whose id is known. ``start``: the
    offsets at which the query begins, only in the end of its first batch. ``cursor``: the cursor's name, only over an
    intake. ``incarnations`` and ``start_incarnations``: the incarnations of the offsets in ``at`` and
    ``start``, without those of a first incarnation. ``leader_epochs``: those of the leaders that reported the ends of the
    partitions; partitions whose leader does not report it, and offsets beyond that end, have none.
    """

    at: Positions
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    start: Positions | None = None
    cursor: str = ""
    incarnations: Positions = field(default_factory=dict)
    start_incarnations: Positions = field(default_factory=dict)
    leader_epochs: Positions = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """Return the offsets as JSON values, sorted, so that equal offsets always produce the same text."""
        made: dict[str, Any] = _by_topic(self.at)
        if self.topic_ids:
            made[TOPIC_IDS] = dict(sorted(self.topic_ids.items()))
        if self.start is not None:
            made[START] = _by_topic(self.start)
        if self.cursor:
            made[CURSOR] = self.cursor
        for key, numbers in (
            (INCARNATIONS, self.incarnations),
            (START_INCARNATIONS, self.start_incarnations),
            (LEADER_EPOCHS, self.leader_epochs),
        ):
            if numbers:
                made[key] = _by_topic(numbers)
        return made

    @classmethod
    def of(cls, given: Any, name: str = "offsets") -> Offsets:
        """Return the offsets that the JSON values ``given`` contain. Raises UsageError that begins with ``name``."""
        if not isinstance(given, dict):
            raise _wrong(name, given)
        at = _numbers({topic: own for topic, own in given.items() if not topic.startswith("#")}, name)
        ids = given.get(TOPIC_IDS, {})
        if not isinstance(ids, dict) or not all(isinstance(own, str) for own in ids.values()):
            raise _wrong(f"{name}: {TOPIC_IDS}", ids)
        start = given.get(START)
        if {key for key in given if key.startswith("#")} - _OWN:
            raise UsageError(f"{name}: written by a newer release, or not offsets: {json.dumps(given)[:200]}")
        cursor = given.get(CURSOR, "")
        if not isinstance(cursor, str):
            raise _wrong(f"{name}: {CURSOR}", cursor)
        return cls(
            at,
            ids,
            None if start is None else _numbers(start, f"{name}: {START}"),
            cursor,
            _numbers(given.get(INCARNATIONS, {}), f"{name}: {INCARNATIONS}"),
            _numbers(given.get(START_INCARNATIONS, {}), f"{name}: {START_INCARNATIONS}"),
            _numbers(given.get(LEADER_EPOCHS, {}), f"{name}: {LEADER_EPOCHS}"),
        )


def parse_offsets(text: str, name: str) -> Offsets:
    """Return the offsets of the option ``name``: JSON in which -1 means the latest and -2 the earliest.

    Raises UsageError.
    """
    found = Offsets.of(_json(text, name), f"option {name}")
    for tp, offset in found.at.items():
        if offset < EARLIEST:
            raise UsageError(
                f"option {name}: {offset} of {tp}: allowed are offsets from 0, -1 (latest) and -2 (earliest)"
            )
    return found


def parse_times(text: str, name: str) -> dict[TopicPartition, int]:
    """Return the times of the option ``name`` by partition, as in ``{"topic": {"0": 1700000000000}}``.

    Raises UsageError, also for a negative one: Kafka takes such a time as one of the ends of the partition.
    """
    found = _numbers(_json(text, name, _LIKE_TIMES), f"option {name}", _LIKE_TIMES)
    for tp, time_ms in found.items():
        if time_ms < 0:
            raise UsageError(f"option {name}: {time_ms} of {tp}: allowed are milliseconds since 1970 UTC, from 0")
    return found


def parse_partitions(text: str, name: str) -> list[TopicPartition]:
    """Return the partitions of the option ``name``, as in ``{"topic": [0, 1]}``. Raises UsageError."""
    given = _json(text, name, _LIKE_PARTITIONS)
    if not isinstance(given, dict) or not all(isinstance(own, list) for own in given.values()):
        raise _wrong(f"option {name}", text, _LIKE_PARTITIONS)
    return [
        TopicPartition(_topic(topic, f"option {name}"), _checked(number, f"option {name}", lambda it: 0 <= it < 2**31))
        for topic, own in given.items()
        for number in own
    ]


def comma_separated(partitions: Iterable[TopicPartition]) -> str:
    """Return the sorted partitions, separated by commas."""
    return ", ".join(str(tp) for tp in sorted(partitions))


def _by_topic(positions: Positions) -> dict[str, Any]:
    made: dict[str, dict[str, int]] = {}
    for tp, offset in sorted(positions.items()):
        made.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return made


def _numbers(given: Any, name: str, example: str = _LIKE_OFFSETS) -> dict[TopicPartition, int]:
    if not isinstance(given, dict) or not all(isinstance(own, dict) for own in given.values()):
        raise _wrong(name, given, example)
    found: dict[TopicPartition, int] = {}
    for topic, own in given.items():
        for key, number in own.items():
            partition = int(key) if re.fullmatch("[0-9]{1,9}", key) else -1
            tp = TopicPartition(_topic(topic, name), _checked(partition, name, lambda it: it >= 0, key))
            found[tp] = _checked(number, name, lambda it: abs(it) <= _MOST)
    return found


def _topic(topic: str, name: str) -> str:
    if not _NAME.fullmatch(topic):
        raise UsageError(f"{name}: {topic!r} can't be the name of a topic")
    return topic


def _checked(number: Any, name: str, allowed: Callable[[int], bool], shown: object = None) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not allowed(number):
        given = shown if shown is not None else number
        raise UsageError(f"{name}: {given!r} is not allowed: allowed are whole numbers up to {_MOST}")
    return number


def _json(text: str, name: str, example: str = _LIKE_OFFSETS) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _wrong(f"option {name}", text, example) from None


def _wrong(name: str, given: object, example: str = _LIKE_OFFSETS) -> UsageError:
    shown = given if isinstance(given, str) else json.dumps(given)
    return UsageError(f"{name}: {shown[:200]!r}: expected JSON like {example}")
