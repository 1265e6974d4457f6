"""``forebay cursors``: the queries that read the intake beside the batch job, and what they hold."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from deploy.commands.status import TIMEOUT_SECONDS, ask, problems
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
from forebay.messages import DropCursorRequest, OperatorAnswer, StatusAnswer, TrackedCursor
from forebay.model.errors import RefusedError

if TYPE_CHECKING:
    from rich.console import Group


@click.group(
    invoke_without_command=True,
    short_help="Show the cursors of queries over the intake, or drop one.",
    epilog=example("forebay cursors", "forebay cursors drop query-1a2b3c4d --yes"),
)
@shared_options
@click.pass_context
def cursors(context: click.Context) -> int | None:
    """Show who reads the intake beside the batch job, and how far behind each is.

    What a cursor has yet to read stays in the WAL. Exits with 1 if one expired that nobody has seen to yet.
    """
    if context.invoked_subcommand is not None:
        return None
    invocation = context.ensure_object(Invocation)
    answer = ask(invocation.settings())
    invocation.write(answer.cursors, lambda: [_table(answer.cursors)])
    expired = [problem.cause for problem in problems(answer) if problem.kind == "cursor"]
    for words in expired:
        invocation.say(f"forebay: {words}")
    return FOUND if expired else FINE


def _table(shown: tuple[TrackedCursor, ...]) -> Group:
    from deploy.console.table import table

    return table(
        "Cursors",
        ("cursor", "state", "since", "heard", "behind", "user", "detail"),
        [
            (c.cursor, c.state, _since(c.opened_ms), f"{c.silent_seconds:.0f} s ago", c.behind, c.user, c.detail)
            for c in shown
        ],
    )


@cursors.command(
    short_help="Hold nothing for a cursor any more.", epilog=example("forebay cursors drop query-1a2b3c4d --yes")
)
@click.argument("name", metavar="CURSOR")
@because_option
@changing_options
@shared_options
@pass_invocation
def drop(invocation: Invocation, name: str, because: str, yes: bool) -> int:
    """Let the WAL go that only CURSOR has yet to read. A query that reads by it ends.

    Nothing can be read again of what is deleted then; a query that comes back fails, unless Kafka still has it. Of a cursor that
    expired: say that you have seen it.
    """
    settings = invocation.settings()
    if not yes:
        found = _found(ask(settings), name)
        words = f"cursor {name} of {found.user} ({found.state}, {found.behind} offsets behind) would be dropped"
        invocation.write({"done": False, "cursor": name, "behind": found.behind, "state": found.state})
        invocation.say(f"{words}; nothing was changed: say --yes to do it")
        return FINE
    from forebay.http.driver_client import DriverClient

    client = DriverClient.of(settings, TIMEOUT_SECONDS)
    try:
        request = DropCursorRequest(cursor=name, cause=person(because))
        answer = client.post("/v1/operator/drop-cursor", request, OperatorAnswer)
    finally:
        client.close()
    invocation.write({"done": True, "cursor": name, "message": answer.message})
    invocation.say(answer.message)
    return FINE


def _found(answer: StatusAnswer, name: str) -> TrackedCursor:
    for cursor in answer.cursors:
        if cursor.cursor == name and cursor.state != "dropped":
            return cursor
    raise RefusedError(f"there is no cursor {name}: `forebay cursors` shows those that there are", "not-found")


def _since(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, timezone.utc).isoformat(timespec="seconds") if time_ms else ""
