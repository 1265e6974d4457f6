"""``forebay offsets reset``: begin a new incarnation of partitions at other offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from deploy.console.driver_requests import operator
from deploy.console.invocation import (
    FINE,
    NOTHING_CHANGED,
    Invocation,
    because_option,
    changing_options,
    example,
    pass_invocation,
    person,
    shared_options,
)
from deploy.console.parameters import MomentType
from deploy.console.progress import spinner
from forebay.messages import ResetAnswer, ResetRequest
from forebay.model.bounds import INT32_MAX, OFFSET_MAX
from forebay.model.numbers import whole_number

if TYPE_CHECKING:
    from rich.console import Group

#: time for the driver's answer beyond the time for receivers to settle, for requests to Kafka
MARGIN_SECONDS = 60.0


class TopicOrPartitionType(click.ParamType[tuple[str, int]]):
    """``topic`` or ``topic/partition``; -1 as the partition means all of the topic. The name of a topic has no slash."""

    name = "topic"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        topic, slash, number = str(value).partition("/")
        partition = whole_number(number, INT32_MAX) if slash else -1
        if not topic or partition is None:
            self.fail(f"{value!r}: write TOPIC or TOPIC/PARTITION, as in flights or flights/0", parameter, context)
        return topic, partition


class TargetType(click.ParamType[tuple[str, int]]):
    """``earliest``, ``latest``, a time, or an offset, as the kind and the value of a ``ResetRequest``."""

    name = "target"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        text = str(value).strip()
        if text in ("earliest", "latest"):
            return text, 0
        if (offset := whole_number(text, OFFSET_MAX)) is not None:
            return "offset", offset
        if not text[:4].isdigit() or text.isdigit():
            self.fail(f"{value!r}: write earliest, latest, an offset, or 2026-11-21T14:30:00Z", parameter, context)
        return "time", MomentType().convert(text, parameter, context)


def _tables(answer: ResetAnswer) -> list[Group]:
    from deploy.console.table import table

    rows = [
        (f"{p.topic}/{p.partition}", p.incarnation, p.position, p.start, p.start - p.position)
        for p in answer.partitions
    ]
    return [table("New incarnations", ("partition", "incarnation", "taken in up to", "begins at", "difference"), rows)]


@click.command(
    "reset",
    short_help="Continue partitions at other offsets of Kafka's log.",
    epilog=example(
        "forebay offsets reset flights --to earliest",
        "forebay offsets reset flights/0 --to 1200 --apply",
        "forebay offsets reset flights --to 2026-11-21T14:30:00Z --apply",
    ),
)
@click.argument("named", metavar="TOPIC[/PARTITION]", type=TopicOrPartitionType())
@click.option(
    "--to",
    "target",
    required=True,
    metavar="earliest|latest|TIME|OFFSET",
    type=TargetType(),
    help="Offset where the new incarnation begins, or a time such as 2026-11-21T14:30:00Z.",
)
@because_option
@changing_options
@shared_options
@pass_invocation
def reset(invocation: Invocation, named: tuple[str, int], target: tuple[str, int], because: str, yes: bool) -> int:
    """Continue a partition, or all partitions of a topic, at other offsets of Kafka's log, in a new incarnation.

    Records that are already taken in are kept and processed. Records between the old and the new position are skipped, or are
    taken in a second time. The audit lists both incarnations. The receivers first report their pending blocks; if one does
    not within driver.receiver_timeout, nothing is changed. Use it to skip records on purpose or to read them again.
    """

    settings = invocation.settings()
    request = ResetRequest(
        topic=named[0], partition=named[1], to=target[0], value=target[1], apply=yes, cause=person(because)
    )
    timeout_seconds = settings.driver.receiver_timeout + MARGIN_SECONDS
    with operator(settings, timeout_seconds) as client, spinner("waiting for the receivers' reports"):
        answer = client.reset(request)
    invocation.write(answer, lambda: _tables(answer))
    invocation.say("the new incarnations have begun" if answer.done else NOTHING_CHANGED)
    return FINE
