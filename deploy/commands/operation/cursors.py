"""``forebay cursors``: the cursors of queries that read the intake beside the batch job."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from deploy.commands.inspection.status import problems
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
from forebay.messages import StatusAnswer, TrackedCursor
from forebay.model.errors import RefusedError

if TYPE_CHECKING:
    from rich.console import Group


@click.group(
    invoke_without_command=True,
    epilog=example("forebay cursors", "forebay cursors drop query-1a2b3c4d --apply"),
)
@shared_options
@click.pass_context
def cursors(context: click.Context) -> int | None:
    """Show the cursors of queries that read the intake beside the batch job, and how far behind each cursor is.

    The WAL keeps all blocks that a cursor has not read yet. Exits with 1 if a cursor expired and was not dropped yet.
    """
    if context.invoked_subcommand is not None:
        return None
    invocation = context.ensure_object(Invocation)
    answer = ask_status(invocation.settings())
    invocation.write(answer.cursors, lambda: [_table(answer.cursors)])
    expired = [problem.cause for problem in problems(answer) if problem.kind == "cursor"]
    for cause in expired:
        invocation.say(f"forebay: {cause}")
    return FINDINGS if expired else FINE


def _table(shown: tuple[TrackedCursor, ...]) -> Group:
    from deploy.console.table import table

    return table(
        "Cursors",
        ("cursor", "state", "since", "last heartbeat", "behind", "user", "detail"),
        [
            (c.cursor, c.state, _since(c.opened_ms), f"{c.silent_seconds:.0f} s ago", c.behind, c.user, c.detail)
            for c in shown
        ],
    )


@cursors.command(
    short_help="Drop a cursor, and the blocks that only it needs.",
    epilog=example("forebay cursors drop query-1a2b3c4d --apply"),
)
@click.argument("name", metavar="CURSOR")
@because_option
@changing_options
@shared_options
@pass_invocation
def drop(invocation: Invocation, name: str, because: str, yes: bool) -> int:
    """Drop CURSOR: the driver may then delete blocks that only this cursor still needs. A query that uses the cursor ends.

    Deleted blocks can't be read again. If the query is started again, it fails unless Kafka still holds their records. For an
    expired cursor, this command only ends the problem in `forebay status`.
    """
    settings = invocation.settings()
    if not yes:
        found = _found(ask_status(settings), name)
        plan = f"would drop cursor {name} of {found.user} ({found.state}, {found.behind} offsets behind)"
        invocation.write({"done": False, "cursor": name, "behind": found.behind, "state": found.state})
        invocation.say(f"{plan}; {NOTHING_CHANGED}")
        return FINE
    with operator(settings) as client:
        message = client.drop_cursor(name, cause=person(because))
    invocation.write({"done": True, "cursor": name, "message": message})
    invocation.say(message)
    return FINE


def _found(answer: StatusAnswer, name: str) -> TrackedCursor:
    for cursor in answer.cursors:
        if cursor.cursor == name and cursor.state != "dropped":
            return cursor
    raise RefusedError(f"there is no cursor {name}; `forebay cursors` lists all cursors", "not-found")


def _since(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, timezone.utc).isoformat(timespec="seconds") if time_ms else ""
