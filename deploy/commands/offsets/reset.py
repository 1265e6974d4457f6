"""``forebay offsets reset``: partitions begin a new life at other offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from deploy.commands.replay import MomentType
from deploy.console.invocation import (
    FINE,
    Invocation,
    because_option,
    changing_options,
    example,
    pass_invocation,
    person,
    shared_options,
)
from forebay.messages import ResetAnswer, ResetRequest

if TYPE_CHECKING:
    from rich.console import Group

#: what a driver may need beyond the time in which receivers settle: Kafka's answers, and a replay that is planned
MARGIN_SECONDS = 60.0


class TopicType(click.ParamType[tuple[str, int]]):
    """``topic`` or ``topic/partition``; a topic's name has no slash."""

    name = "topic"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        topic, slash, number = str(value).partition("/")
        if not topic or (slash and not (number.isascii() and number.isdigit())):
            self.fail(f"{value!r}: write TOPIC or TOPIC/PARTITION, as in flights or flights/0", parameter, context)
        return topic, int(number) if slash else -1


class TargetType(click.ParamType[tuple[str, int]]):
    """``earliest``, ``latest``, a moment, or an offset."""

    name = "target"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        text = str(value).strip()
        if text in ("earliest", "latest"):
            return text, 0
        if text.isascii() and text.isdigit() and len(text) <= 18:
            return "offset", int(text)
        if not text[:4].isdigit():
            self.fail(f"{value!r}: write earliest, latest, an offset, or 2026-11-21T14:30:00Z", parameter, context)
        return "time", MomentType().convert(text, parameter, context)


def _tables(answer: ResetAnswer) -> list[Group]:
    from deploy.console.table import table

    rows = [
        (f"{p.topic}/{p.partition}", p.incarnation, p.position, p.start, p.start - p.position)
        for p in answer.partitions
    ]
    return [table("New lives", ("partition", "life", "taken in up to", "begins at", "difference"), rows)]


@click.command(
    "reset",
    short_help="Let partitions go on elsewhere.",
    epilog=example(
        "forebay offsets reset flights --to earliest",
        "forebay offsets reset flights/0 --to 1200 --apply",
        "forebay offsets reset flights --to 2026-11-21T14:30:00Z --apply",
    ),
)
@click.argument("named", metavar="TOPIC[/PARTITION]", type=TopicType())
@click.option("--to", "target", required=True, metavar="earliest|latest|TIME|OFFSET", type=TargetType())
@because_option
@changing_options
@shared_options
@pass_invocation
def reset(invocation: Invocation, named: tuple[str, int], target: tuple[str, int], because: str, yes: bool) -> int:
    """Begin a new life of a partition, or of all of a topic, at other offsets of Kafka's log.

    What was taken in stays and is processed; records that lie between are skipped, or come a second time, in the new life. The
    audit keeps both. Receivers first hand over what they have on its way; if one does not within driver.receiver_timeout,
    nothing is changed.
    """
    from forebay.http.driver_client import DriverClient

    settings = invocation.settings()
    request = ResetRequest(
        topic=named[0], partition=named[1], to=target[0], value=target[1], apply=yes, cause=person(because)
    )
    client = DriverClient.of(settings, settings.driver.receiver_timeout + MARGIN_SECONDS)
    try:
        answer = client.post("/v1/operator/reset", request, ResetAnswer)
    finally:
        client.close()
    invocation.write(answer, lambda: _tables(answer))
    invocation.say("new lives were begun" if answer.done else "nothing was changed: say --apply to do it")
    return FINE
