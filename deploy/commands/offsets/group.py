"""``forebay offsets``: show the position of each partition, or accept a gap that Kafka left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import click

from deploy.commands.inspection.status import lag_text
from deploy.commands.offsets.file import export_offsets, import_offsets
from deploy.commands.offsets.reset import reset
from deploy.console.driver_requests import ask_status, operator
from deploy.console.invocation import (
    FINDINGS,
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
from deploy.console.parameters import NumberType, PartitionType
from deploy.console.progress import spinner
from forebay.messages import TrackedPartition
from forebay.model.errors import RefusedError, UsageError
from forebay.model.values import TopicPartition

if TYPE_CHECKING:
    from rich.console import Group


#: maximum time for the search of the WAL after a receiver is fenced; more receivers may have to settle first
SEARCH_SECONDS_MAX = 30.0
SEARCH_PAUSE_SECONDS = 0.25


@click.group(
    invoke_without_command=True,
    epilog=example("forebay offsets", "forebay offsets accept-gap flights/0 1200 1800 --apply"),
)
@shared_options
@click.pass_context
def offsets(context: click.Context) -> int | None:
    """Show for each partition the offset up to which it is taken in and completed, and the end of Kafka's log.

    Exits with 1 if a partition waits for a decision.
    """
    if context.invoked_subcommand is not None:
        return None
    invocation = context.ensure_object(Invocation)
    partitions = ask_status(invocation.settings()).partitions
    invocation.write(partitions, lambda: [_table(partitions)])
    waiting = [partition.fault for partition in partitions if partition.fault]
    for sentence in waiting:
        invocation.say(f"forebay: {sentence}")
    return FINDINGS if waiting else FINE


def _table(partitions: tuple[TrackedPartition, ...]) -> Group:
    from deploy.console.table import table

    return table(
        "Offsets",
        ("partition", "incarnation", "taken in", "completed", "end in Kafka", "lag", "topic id"),
        [
            (
                f"{p.topic}/{p.partition}",
                p.incarnation,
                p.position,
                p.completed,
                p.high_watermark if p.high_watermark >= 0 else "-",
                lag_text(p),
                p.topic_id or "-",
            )
            for p in partitions
        ],
    )


@offsets.command(
    "accept-gap",
    short_help="Continue a partition after offsets that Kafka lost.",
    epilog=example(
        "forebay offsets accept-gap flights/0 1200 1800", "forebay offsets accept-gap flights/0 1200 1800 --apply"
    ),
)
@click.argument("partition", metavar="TOPIC/PARTITION", type=PartitionType())
@click.argument("from_offset", metavar="FROM", type=NumberType(0))
@click.argument("until_offset", metavar="UNTIL", type=NumberType(0))
@because_option
@click.option(
    "--fence",
    metavar="RECEIVER",
    help="Id of a receiver that the partition waits for and whose host will not return; its epoch is ended first.",
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
    """Accept that Kafka lost the offsets FROM (inclusive) to UNTIL (exclusive) of a partition, and continue after them.

    The journal and every audit keep the gap. Records in the WAL are not lost: the driver first waits until no receiver can
    still write blocks of the partition, and searches the WAL. Without --apply nothing is changed.

    Use it when `forebay status` shows that a partition waits for a decision, with the range that it shows.
    """
    settings = invocation.settings()
    if not yes:
        known = {TopicPartition(p.topic, p.partition): p for p in ask_status(settings).partitions}
        message = would_accept(known, partition, from_offset, until_offset, fence)
        invocation.write({"done": False, "message": message})
        invocation.say(message)
        return FINE
    place, cause = (partition.topic, partition.partition), person(because)
    with operator(settings) as client, spinner("waiting for the search of the WAL"):
        accept = partial(client.accept_gap, *place, from_offset, until_offset, cause=cause)
        end_epoch = partial(client.fence, *place, fence or "", cause=cause)
        message = fence_and_accept(end_epoch, accept) if fence else accept()
    invocation.write({"done": True, "message": message})
    invocation.say(message)
    return FINE


def fence_and_accept(fence: Callable[[], str], accept: Callable[[], str]) -> str:
    """``fence`` the receiver, wait for the driver's search of the WAL, and ``accept`` the gap if the offsets are still lost.

    Returns the driver's messages. Raises RefusedError.
    """
    fenced = fence()
    deadline = time.monotonic() + SEARCH_SECONDS_MAX
    while True:
        try:
            return f"{fenced}; {accept()}"
        except RefusedError as refusal:
            if refusal.code == "not-found":  # adopted meanwhile: there is nothing to accept
                return f"{fenced}; the WAL held the missing records: nothing is lost"
            if refusal.code != "not-searched" or time.monotonic() > deadline:
                raise RefusedError(f"{fenced}, but the gap was not accepted: {refusal}", refusal.code) from None
        time.sleep(SEARCH_PAUSE_SECONDS)


def would_accept(
    known: Mapping[TopicPartition, TrackedPartition],
    partition: TopicPartition,
    from_offset: int,
    until_offset: int,
    fence: str | None,
) -> str:
    """Return what accepting would do. Raises UsageError for an unknown partition, RefusedError if it waits for no decision."""
    tracked = known.get(partition)
    if tracked is None:
        raise UsageError(
            f"{partition} is no partition of this stream; its partitions are {', '.join(map(str, sorted(known)))}"
        )
    if not tracked.fault:
        raise RefusedError(f"{partition} waits for no decision", "conflict")
    first = f"end the epoch of receiver {fence} and " if fence else ""
    return (
        f"{tracked.fault}. Would {first}accept {partition} from {from_offset} until {until_offset}; {NOTHING_CHANGED}"
    )


offsets.add_command(export_offsets)
offsets.add_command(import_offsets)
offsets.add_command(reset)
