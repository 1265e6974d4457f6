"""``forebay offsets``: how far each partition is, and the decision about offsets that Kafka lost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from deploy.commands.offsets.file import export_offsets, import_offsets
from deploy.commands.offsets.reset import reset
from deploy.commands.status import TIMEOUT_SECONDS, ask, lag_in_words
from deploy.console.invocation import (
    FINE,
    FOUND,
    Invocation,
    because_option,
    changing_options,
    example,
    pass_invocation,
    person,
    shared_options,
)
from forebay.messages import AcceptGapRequest, FenceRequest, OperatorAnswer, TrackedPartition
from forebay.model.errors import RefusedError, UsageError
from forebay.model.values import TopicPartition

if TYPE_CHECKING:
    from rich.console import Group

    from forebay.http.driver_client import DriverClient


#: a receiver that is fenced is the last that was waited for, or there are more: so long the search of the WAL may take
SEARCH_SECONDS_MAX = 30.0
SEARCH_PAUSE_SECONDS = 0.25


@click.group(
    invoke_without_command=True,
    short_help="Show, export, import or reset offsets; accept a gap that Kafka left.",
    epilog=example("forebay offsets", "forebay offsets accept-gap flights/0 1200 1800 --yes"),
)
@shared_options
@click.pass_context
def offsets(context: click.Context) -> int | None:
    """Show for each partition the offsets taken in, completed, and written in Kafka.

    Exits with 1 if a partition waits for a decision.
    """
    if context.invoked_subcommand is not None:
        return None
    invocation = context.ensure_object(Invocation)
    partitions = ask(invocation.settings()).partitions
    invocation.write(partitions, lambda: [_table(partitions)])
    waiting = [partition.fault for partition in partitions if partition.fault]
    for words in waiting:
        invocation.say(f"forebay: {words}")
    return FOUND if waiting else FINE


def _table(partitions: tuple[TrackedPartition, ...]) -> Group:
    from deploy.console.table import table

    return table(
        "Offsets",
        ("partition", "life", "taken in", "completed", "end in Kafka", "lag", "topic id"),
        [
            (
                f"{p.topic}/{p.partition}",
                p.incarnation,
                p.position,
                p.completed,
                p.high_watermark if p.high_watermark >= 0 else "-",
                lag_in_words(p),
                p.topic_id or "-",
            )
            for p in partitions
        ],
    )


class PartitionType(click.ParamType[TopicPartition]):
    """``topic/partition``."""

    name = "topic/partition"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> TopicPartition:
        if isinstance(value, TopicPartition):
            return value
        topic, slash, number = str(value).rpartition("/")
        if not slash or not topic or not (number.isascii() and number.isdigit()):
            self.fail(f"{value!r}: write TOPIC/PARTITION, as in flights/0", parameter, context)
        return TopicPartition(topic, int(number))


@offsets.command(
    "accept-gap",
    short_help="Go on after offsets that Kafka lost.",
    epilog=example(
        "forebay offsets accept-gap flights/0 1200 1800", "forebay offsets accept-gap flights/0 1200 1800 --yes"
    ),
)
@click.argument("partition", metavar="TOPIC/PARTITION", type=PartitionType())
@click.argument("from_offset", metavar="FROM", type=click.IntRange(min=0))
@click.argument("until_offset", metavar="UNTIL", type=click.IntRange(min=0))
@because_option
@click.option(
    "--fence",
    metavar="RECEIVER",
    help="End the epoch of a receiver that the partition waits for and whose host is gone for good.",
)
@changing_options
@shared_options
@pass_invocation
def accept_gap(
    invocation: Invocation,
    partition: TopicPartition,
    from_offset: int,
    until_offset: int,
    because: str,
    fence: str | None,
    yes: bool,
) -> int:
    """Accept that Kafka lost the offsets FROM (inclusive) to UNTIL (exclusive) of a partition, and go on after them.

    The range must be the one that `forebay status` shows. The gap is journalled and stays in every audit. Nothing is given
    up that the WAL holds: it is searched first, as soon as no receiver can write any more of it. Without --yes nothing is
    changed.
    """
    settings = invocation.settings()
    request = AcceptGapRequest(
        topic=partition.topic,
        partition=partition.partition,
        from_offset=from_offset,
        until_offset=until_offset,
        cause=person(because),
    )
    if not yes:
        known = {TopicPartition(p.topic, p.partition): p for p in ask(settings).partitions}
        words = would_accept(known, partition, from_offset, until_offset, fence)
        invocation.write({"done": False, "message": words})
        invocation.say(words)
        return FINE
    from forebay.http.driver_client import DriverClient

    client = DriverClient.of(settings, TIMEOUT_SECONDS)
    try:
        words = fence_and_accept(client, request, fence) if fence else accept(client, request)
    finally:
        client.close()
    invocation.write({"done": True, "message": words})
    invocation.say(words)
    return FINE


def accept(client: DriverClient, request: AcceptGapRequest) -> str:
    """What the driver says. Raises RefusedError."""
    return client.post("/v1/operator/accept-gap", request, OperatorAnswer).message


def fence_and_accept(client: DriverClient, request: AcceptGapRequest, receiver_id: str) -> str:
    """Ends the receiver's epoch, lets the driver search the WAL, and accepts what was shown, if it is still lost then. Raises
    RefusedError."""
    fence = FenceRequest(topic=request.topic, partition=request.partition, receiver_id=receiver_id)
    fenced = client.post("/v1/operator/fence", fence, OperatorAnswer).message
    deadline = time.monotonic() + SEARCH_SECONDS_MAX
    while True:
        try:
            return f"{fenced}; {accept(client, request)}"
        except RefusedError as refusal:
            if refusal.code == "not-found":  # adopted meanwhile: there is nothing to accept
                return f"{fenced}; the WAL held what was missing: nothing is lost"
            if refusal.code != "not-searched" or time.monotonic() > deadline:
                raise RefusedError(f"{fenced}. But {refusal}", refusal.code) from None
        time.sleep(SEARCH_PAUSE_SECONDS)


def would_accept(
    known: Mapping[TopicPartition, TrackedPartition],
    partition: TopicPartition,
    from_offset: int,
    until_offset: int,
    fence: str | None,
) -> str:
    """What accepting would do. Raises UsageError for an unknown partition, RefusedError if nothing is to be decided."""
    tracked = known.get(partition)
    if tracked is None:
        raise UsageError(f"{partition} is no partition of this stream; known are {', '.join(map(str, sorted(known)))}")
    if not tracked.fault:
        raise RefusedError(f"{partition} waits for no decision", "conflict")
    first = f"end the epoch of receiver {fence} and " if fence else ""
    return (
        f"{tracked.fault}. Would {first}accept {partition} from {from_offset} until {until_offset}; nothing was changed: "
        "say --yes to do it"
    )


offsets.add_command(export_offsets)
offsets.add_command(import_offsets)
offsets.add_command(reset)
