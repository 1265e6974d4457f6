"""``forebay dead-letters``: records that the job could not decode, counted, shown, or sent into a topic."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from deploy.commands.dead_letters.reporting import count, find, record_name, shown
from deploy.commands.dead_letters.sending import send_back
from deploy.commands.dead_letters.stored import LetterFilter
from deploy.commands.dead_letters.tables import letter_table, replay_tables, tables
from deploy.console.invocation import (
    FINDINGS,
    FINE,
    Invocation,
    changing_options,
    example,
    pass_invocation,
    shared_options,
)
from deploy.console.ownership import refuse_as_root
from deploy.console.parameters import MomentType, NumberType
from deploy.console.progress import spinner
from forebay.model.errors import UsageError

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _filters(function: _Function) -> _Function:
    for decorate in (
        click.option("--before", metavar="TIME", type=MomentType(), help="Only batches cut before TIME."),
        click.option(
            "--since",
            metavar="TIME",
            type=MomentType(),
            help="Only batches cut at or after TIME, as in 2026-11-21T14:30:00Z.",
        ),
        click.option("--batch", metavar="BATCH", type=NumberType(1), help="Only the batch with this number or id."),
        click.option("--cause", metavar="TEXT", default="", help="Only records whose cause contains TEXT."),
        click.option("--topic", metavar="TOPIC", default="", help="Only records of this topic."),
    ):
        function = decorate(function)
    return function


@click.group(
    "dead-letters",
    epilog=example("forebay dead-letters list", "forebay dead-letters replay --to-topic flights-repaired --apply"),
)
@shared_options
def dead_letters() -> None:
    """Count, show or resend dead letters: records that the job's decode function rejected, and that the batch left out.

    Only the dead letters of a batch's last successful run count.
    """


@dead_letters.command(
    "list",
    short_help="Count dead letters by batch, topic and cause.",
    epilog=example(
        "forebay dead-letters list --since 2026-11-21T00:00:00Z", "forebay dead-letters list --cause KeyError"
    ),
)
@_filters
@shared_options
@pass_invocation
def list_(
    invocation: Invocation, topic: str, cause: str, batch: int | None, since: int | None, before: int | None
) -> int:
    """Count dead letters by batch, output, topic and kind of cause.

    Exits with 1 if some of them were not sent into a topic yet.
    """
    settings = invocation.settings()
    with spinner("reading dead letters"):
        counted = count(settings, LetterFilter(topic, cause, batch, since, before))
    invocation.write(counted, lambda: tables(counted))
    return FINDINGS if any(row.sent < row.records for row in counted) else FINE


@dead_letters.command(
    "show",
    short_help="Show one dead letter.",
    epilog=example(
        "forebay dead-letters show flights/0@1234", "forebay dead-letters show flights/0@1234 --raw > value"
    ),
)
@click.argument("record", metavar="TOPIC/PARTITION@OFFSET")
@click.option("--raw", is_flag=True, help="Write only the bytes of the record's value to stdout.")
@shared_options
@pass_invocation
def show(invocation: Invocation, record: str, raw: bool) -> int:
    """Show a dead letter: cause, key, value and headers, as text if readable, otherwise as hexadecimal digits."""
    name = record_name(record)
    settings = invocation.settings()
    with spinner("reading dead letters"):
        found = find(settings, name)
    if not found:
        invocation.say(f"forebay: {record} is not a dead letter; `forebay dead-letters list` names some of each cause")
        return FINDINGS
    if raw:
        values = {row["value"] for _, row in found}
        if len(values) > 1:
            raise UsageError(
                f"{record}: {len(values)} different records of several incarnations have this offset; show them without --raw"
            )
        sys.stdout.flush()
        sys.stdout.buffer.write(values.pop() or b"")
        sys.stdout.buffer.flush()
        return FINE
    letters = [shown(piece, row) for piece, row in found]
    invocation.write(letters, lambda: [letter_table(letter) for letter in letters])
    return FINE


@dead_letters.command(
    "replay",
    short_help="Send dead letters that were not sent yet into a topic.",
    epilog=example(
        "forebay dead-letters replay --to-topic flights-repaired",
        "forebay dead-letters replay --to-source --cause Timeout --apply",
    ),
)
@click.option("--to-topic", "target", metavar="TOPIC", help="Topic for the records; it must exist.")
@click.option(
    "--to-source",
    is_flag=True,
    help="Send each record into the topic that it came from, so that the job gets it again.",
)
@click.option(
    "--because", metavar="TEXT", default="", help="Reason, kept with your name in the mark of the sent records."
)
@_filters
@changing_options
@shared_options
@pass_invocation
def replay(
    invocation: Invocation,
    target: str | None,
    to_source: bool,
    because: str,
    topic: str,
    cause: str,
    batch: int | None,
    since: int | None,
    before: int | None,
    yes: bool,
) -> int:
    """Send the dead letters of completed batches that were not sent yet into a topic, and mark them as sent.

    Each record keeps its key, value, headers and timestamp; added headers that begin with "forebay." name its origin and the
    cause. A later call skips marked records. If the command is killed between sending and marking, the next call sends those
    records a second time. Without --apply nothing is sent.

    Use it after a fix of the job's decode function, or to process the records elsewhere.
    """
    if (target is None) != to_source:
        raise click.UsageError("give either --to-topic TOPIC or --to-source")
    wanted = LetterFilter(topic, cause, batch, since, before)
    settings = invocation.settings()
    if yes and settings.dead_letters.url is not None:
        refuse_as_root(settings.stream, settings.dead_letters.url)
    with spinner("sending dead letters" if yes else "reading dead letters"):
        done = send_back(settings, wanted, target, because, yes)
    invocation.write(done, lambda: replay_tables(done))
    if done.waiting:
        invocation.say(f"{done.waiting} records are not sent, because their batches are not completed yet")
    if not yes:
        invocation.say(f"would send {sum(done.sent.values())} records; nothing was sent: add --apply to do it")
    return FINE
