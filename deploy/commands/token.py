"""``forebay token``: new tokens for the services."""

from __future__ import annotations

import secrets

import click

from deploy.console.groups import LazyGroup
from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from deploy.installation import TOKEN_BYTES
from forebay.security.roles import ROLES, parse_tokens


@click.group(
    cls=LazyGroup,
    modules={"new": "deploy.commands.token"},
    short_help="Make tokens for the services.",
    epilog=example("forebay token new operator >> tokens"),
)
@shared_options
def token() -> None:
    """Make tokens: who may ask the services of a stream.

    A token file (security.token_file) has a line for each, as `forebay token new` prints it. A service accepts every line; a
    client sends the first one of its role. Services read the file again when it has changed.
    """


@click.command(
    short_help="Print a line with a new token.",
    epilog=example(
        "forebay token new operator >> tokens", "forebay token new receiver:r1", "forebay token new agent:host1"
    ),
)
@click.argument("role", metavar="ROLE[:NAME]")
@shared_options
@pass_invocation
def new(invocation: Invocation, role: str) -> int:
    """Print a line for a token file, with a new random token.

    ROLE is receiver, agent, task (Spark's tasks of the batch job), query (queries over the intake), reader (dashboards: status
    and lag alone) or operator. With a NAME a receiver's token is of that receiver id alone, an agent's of that host. The file
    must not be readable by everybody (`umask 077`).
    """
    if role.partition(":")[0] not in ROLES:
        raise click.UsageError(f"{role}: roles are {', '.join(ROLES)}, as in receiver:r1")
    made = secrets.token_urlsafe(TOKEN_BYTES)
    parse_tokens(f"{role} {made}", "ROLE[:NAME]")
    if invocation.json:
        invocation.write({"role": role, "token": made})
    else:
        click.echo(f"{role} {made}")
    return FINE
