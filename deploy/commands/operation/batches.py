"""``forebay batch``: retry failed batches, or skip one."""

from __future__ import annotations

import click

from deploy.console.driver_requests import ask_status, operator
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
from deploy.console.parameters import NumberType
from deploy.console.unfinished import find_batch


@click.group(epilog=example("forebay batch retry", 'forebay batch skip 42 --cause "corrupt order, ticket 7" --apply'))
@shared_options
def batch() -> None:
    """Retry failed batches, or skip one. `forebay status` shows the batches and their states."""


@batch.command(short_help="Retry all failed batches now.", epilog=example("forebay batch retry"))
@shared_options
@pass_invocation
def retry(invocation: Invocation) -> int:
    """Start the next attempt at every failed or unreadable batch now, instead of after its delay.

    Use it when the cause outside the job is fixed. The driver runs the code that it has loaded: after a change of the job's
    code, restart the driver instead.
    """
    with operator(invocation.settings()) as client:
        message = client.retry(cause=person())
    invocation.write({"message": message})
    invocation.say(message)
    return FINE


@batch.command(
    short_help="End a failed batch without its job.",
    epilog=example('forebay batch skip 42 --cause "corrupt order, ticket 7" --apply'),
)
@click.argument("named", metavar="ID", type=NumberType(1))
@because_option
@changing_options
@shared_options
@pass_invocation
def skip(invocation: Invocation, named: int, because: str, yes: bool) -> int:
    """End the failed or unreadable batch ID (its id or number) without its job, so that the next batch begins.

    No output gets the batch's records. The audit lists them as a loss for ever, with your name and the reason. A window of a
    later batch shows the batch as empty. While the WAL still holds its blocks, `forebay recover --to-batch ID` can run it again.
    """
    if not because.strip():
        raise click.UsageError("a batch is skipped only with a reason, which the audit keeps: add --cause TEXT")
    settings = invocation.settings()
    found = find_batch(ask_status(settings).batches, named)
    if not yes:
        plan = f"would skip batch {found.batch_id} (number {found.number}, {found.state}) with {found.records} records"
        invocation.write({"done": False, "batch_id": found.batch_id, "records": found.records, "state": found.state})
        invocation.say(f"{plan}; {NOTHING_CHANGED}")
        return FINE
    with operator(settings) as client:
        message = client.skip(found.batch_id, person(because))
    invocation.write({"done": True, "batch_id": found.batch_id, "message": message})
    invocation.say(message)
    return FINE
