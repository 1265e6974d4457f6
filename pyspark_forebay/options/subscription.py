"""Which topics and partitions a query reads: the options ``subscribe``, ``subscribePattern`` and ``assign``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.model.errors import UsageError
from forebay.model.topic_pattern import check_pattern
from forebay.model.values import TopicPartition
from pyspark_forebay.offsets import parse_partitions

STRATEGIES = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a query reads. Exactly one field is set; over an intake none may be, which means everything it takes in."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: frozenset[TopicPartition] = frozenset()

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"subscribePattern {self.pattern}"
        return ", ".join(self.topics) or ", ".join(str(tp) for tp in sorted(self.partitions))


def read_subscription(given: Mapping[str, str]) -> Subscription:
    """Return the subscription that the options set. ``given``: option name in lower case → value. Raises UsageError."""
    named = [name for name in STRATEGIES if name.lower() in given]
    if not named and "tracker" in given:
        return Subscription()
    if not named:
        raise UsageError(f"one of the options {', '.join(STRATEGIES)} must say what to read")
    if len(named) > 1:
        raise UsageError(f"only one of the options {', '.join(STRATEGIES)} may be set, not {' and '.join(named)}")
    (name,) = named
    value = given[name.lower()].strip()
    if name == "assign":
        partitions = parse_partitions(value, "assign") if value.startswith("{") else []
        if not partitions:  # an empty set means everything, over an intake
            raise UsageError(f'option assign: {value!r} names no partitions; write, for example, {{"topic": [0, 1]}}')
        return Subscription(partitions=frozenset(partitions))
    if name == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
        if not topics:
            raise UsageError(f"option subscribe: {value!r} names no topics to subscribe to")
        return Subscription(topics=topics)
    if not value:
        raise UsageError("option subscribePattern: the pattern is empty")
    try:
        check_pattern(value)
    except ValueError as error:
        raise UsageError(f"option subscribePattern: {value!r} {error}") from None
    return Subscription(pattern=value)
