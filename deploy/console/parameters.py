"""Types of arguments and options: a duration, a time, a partition."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from forebay.model.bounds import INT32_MAX, OFFSET_MAX
from forebay.model.numbers import whole_number
from forebay.model.units import parse_duration
from forebay.model.values import TopicPartition


class DurationType(click.ParamType[float]):
    """A duration as in the settings, such as ``30s``, in seconds."""

    name = "duration"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return float(parse_duration(value))
        except ValueError as error:
            self.fail(f"{value!r} {error}", parameter, context)


class NumberType(click.IntRange):
    """A whole number from ``least`` on, of at most 63 bits, as those of messages and files. The help names ``least`` alone."""

    def __init__(self, least: int) -> None:
        super().__init__(min=least)

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        number = super().convert(value, parameter, context)
        if number > OFFSET_MAX:
            self.fail(f"{value} is above the largest number, {OFFSET_MAX}", parameter, context)
        return number


class MomentType(click.ParamType[int]):
    """A time with its time zone, in milliseconds since 1970 UTC."""

    name = "time"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip()
        try:
            moment = datetime.fromisoformat(f"{text[:-1]}+00:00" if text[-1:] in ("Z", "z") else text)
        except ValueError:
            self.fail(f"{value!r}: write it as 2026-11-21T14:30:00Z", parameter, context)
        if moment.tzinfo is None:
            self.fail(f"{value!r}: add its time zone, as in 2026-11-21T14:30:00Z", parameter, context)
        return max(1, round(moment.timestamp() * 1000))


class PartitionType(click.ParamType[TopicPartition]):
    """``topic/partition``."""

    name = "topic/partition"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> TopicPartition:
        if isinstance(value, TopicPartition):
            return value
        topic, _, number = str(value).rpartition("/")
        partition = whole_number(number, INT32_MAX)
        if not topic or partition is None:
            self.fail(f"{value!r}: write TOPIC/PARTITION, as in flights/0", parameter, context)
        return TopicPartition(topic, partition)
